"""Cache groups as a deployment declares them: the engine's fields and the bytes of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvplan.deployment.errors import DeploymentError, shown
from kvplan.deployment.fields import GROUP_FIELDS, GROUPS, REQUIRED_IN_GROUP
from kvplan.deployment.given import Given, Origin, collect

GroupValues = dict[str, Given]


def collect_groups(tables: object, origin: Origin) -> tuple[GroupValues, ...]:
    """Return what each group's table gives, by field name, in the order of the file.

    Raises ``DeploymentError`` for anything but a list of tables, a field that is not known or has a wrong
    value, a missing field, a window on a group that would ignore it, and a name used twice.
    """
    if not isinstance(tables, Sequence) or isinstance(tables, str) or not tables:
        raise DeploymentError(
            f"{origin.named(GROUPS)} is {shown(tables)}; at least one [[{GROUPS}]] table is needed"
        )
    groups: list[GroupValues] = []
    names: set[str] = set()
    for number, table in enumerate(tables, start=1):
        group = _collect_group(table, number, origin)
        name = group["group_id"]
        if str(name.value) in names:
            raise DeploymentError(f"{name.named} is {shown(name.value)} again; names must differ")
        names.add(str(name.value))
        groups.append(group)
    return tuple(groups)


def _collect_group(table: object, number: int, origin: Origin) -> GroupValues:
    where = origin.inside(f"[[{GROUPS}]] {number}")
    if not isinstance(table, Mapping):
        raise DeploymentError(f"{where.named(shown(table))} is not a table; [[{GROUPS}]] is needed")
    name = next((table[key] for key in ("group_id", "group-id", "name") if key in table), None)
    if isinstance(name, str) and name:
        where = origin.inside(f"{where.table} {shown(name)}")
    group = collect(table, GROUP_FIELDS, where)
    for needed in REQUIRED_IN_GROUP:
        if needed not in group:
            raise DeploymentError(f"{where.named(needed)} is missing; every cache group needs it")
    window = group.get("sliding_window_tokens")
    kept = group["retention"].value if "retention" in group else "FullHistory"
    if window and kept != "SlidingWindow":
        raise DeploymentError(
            f"{window.named} is {window.value} but retention is {kept}; a window needs "
            'retention = "SlidingWindow"'
        )
    if kept == "SlidingWindow" and not window:
        raise DeploymentError(
            f"{where.named('sliding_window_tokens')} is missing; {group['retention'].written} = "
            '"SlidingWindow" needs a window'
        )
    return group
