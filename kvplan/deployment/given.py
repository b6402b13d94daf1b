"""What was given: names and values, as written in a file or as flags, checked one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kvplan.deployment.errors import DeploymentError, nearest, shown
from kvplan.deployment.fields import FLAG_FIELDS, GROUP_FIELDS, GROUPS, Field, Kind, flag


@dataclass(frozen=True, slots=True)
class Origin:
    """Where values come from: a file (with the table inside it), flags, or a caller (neither)."""

    file: str | None = None
    table: str = ""
    flags: bool = False

    def named(self, name: str) -> str:
        """Return how a message names the field that was written as ``name``."""
        if self.flags and not self.table:
            return flag(name)
        return "".join(f"{part}: " for part in (self.file, self.table) if part) + name

    def source(self, name: str) -> str:
        """Return what ``Deployment.sources`` says of it."""
        return f"flag {flag(name)}" if self.flags else self.file or "set by the caller"

    def inside(self, table: str) -> Origin:
        """Return the origin of what stands in ``table``."""
        return Origin(self.file, table, self.flags)


@dataclass(frozen=True, slots=True)
class Given:
    """A field that was given: its ``value`` checked, ``written`` the name it was given under."""

    field: Field
    value: int | float | str
    written: str
    origin: Origin

    @property
    def named(self) -> str:
        """How a message names it."""
        return self.origin.named(self.written)


def collect(
    values: Mapping[str, object], fields: tuple[Field, ...], origin: Origin, also: tuple[str, ...] = ()
) -> dict[str, Given]:
    """Return what ``values`` gives, by place (a field's name, or the slot it shares with others).

    A value of None gives nothing. ``also`` are names that may stand beside them, to be suggested where a name
    is not known.

    Raises ``DeploymentError`` for a name that is not known, for two names of one place, and for a value of
    the wrong type or outside the field's limits.
    """
    by_name = {name: field for field in fields for name in field.names}
    found: dict[str, Given] = {}
    for written, value in values.items():
        field = by_name.get(written.replace("-", "_"))
        if field is None:
            raise DeploymentError(_unknown(written, value, [*by_name, *also], origin))
        if value is None:
            continue
        given = Given(field, _checked(field, value, origin.named(written)), written, origin)
        earlier = found.setdefault(field.place, given)
        if earlier is not given:
            raise DeploymentError(_twice(earlier, given))
    return found


def _unknown(written: str, value: object, known: list[str], origin: Origin) -> str:
    name = written.replace("-", "_")
    if isinstance(value, Mapping) and not origin.table and not nearest(name.lower(), [GROUPS]):
        return (
            f"{origin.named(f'[{written}]')} is not a table here; settings stand above all tables, and a table is "
            f"[[{GROUPS}]]"
        )
    if origin.table and any(name in field.names for field in FLAG_FIELDS):
        # A line after the last table belongs to that table, which is not what it looks like.
        hint = f"it is a setting, which stands above the first [[{GROUPS}]]"
    elif not origin.table and any(name in field.names for field in GROUP_FIELDS):
        hint = f"it belongs in a [[{GROUPS}]] table"
    elif near := nearest(name.lower(), known):
        spelt = flag(near) if origin.flags and not origin.table else near
        hint = f"{spelt} is the nearest known name"
    else:
        hint = "no known name is like it, see the README for all of them"
    return f"{origin.named(written)} is not a field here; {hint}"


def _twice(earlier: Given, later: Given) -> str:
    other = later.origin.inside("").named(later.written) if later.origin.flags else later.written
    if earlier.field is later.field:
        return (
            f"{earlier.named} and {other} are two names of one field ({later.field.name}); give one of them"
        )
    return f"{earlier.named} and {other} both size {later.field.slot}; give one of them"


def _checked(field: Field, value: object, named: str) -> int | float | str:
    match field.kind:
        case Kind.SWITCH:
            if not isinstance(value, bool):
                raise DeploymentError(f"{named} is {shown(value)}; true or false is needed")
            return value
        case Kind.TEXT:
            if not isinstance(value, str) or not value.strip() or not value.isprintable():
                raise DeploymentError(
                    f"{named} is {shown(value)}; a string of printable characters is needed"
                )
            return value
        case Kind.CHOICE:
            return _choice(field, value, named)
        case Kind.GIB:
            return _gib(field, value, named)
        case Kind.COUNT:
            return _count(field, value, named)


def _count(field: Field, value: object, named: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise DeploymentError(f"{named} is {shown(value)}; an integer is needed")
    if value < field.least:
        raise DeploymentError(f"{named} is {shown(value)}; at least {field.least:,} is needed")
    if value > field.most:
        raise DeploymentError(f"{named} is {shown(value)}; at most {field.most:,} is possible")
    return value


def _gib(field: Field, value: object, named: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DeploymentError(f"{named} is {shown(value)}; a number of GiB is needed")
    if not 0 < value < math.inf:  # nan is neither
        raise DeploymentError(f"{named} is {shown(value)}; a number of GiB above 0 is needed")
    if value > field.most:
        raise DeploymentError(f"{named} is {shown(value)} GiB; at most {field.most:,} is possible")
    return float(value)


def _choice(field: Field, value: object, named: str) -> str:
    name = getattr(value, "name", value)  # an enum's member serves as well as its name
    if isinstance(name, str):
        wanted = dict(field.synonyms).get(name.lower(), name)
        for choice in field.choices:
            if choice.lower() == wanted.lower():
                return choice
    raise DeploymentError(f"{named} is {shown(value)}; one of {', '.join(field.choices)} is needed")
