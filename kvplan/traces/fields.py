"""The fields of one row, and the checks that every format makes of them."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from kvplan.traces.errors import TraceError, shown
from kvplan.traces.times import Exact, in_range, number, wall_clock

LARGEST: Final = 2**31 - 1


class Fields:
    """Values by field name, and where they stand. `text` tells that all values are strings, as in CSV."""

    __slots__ = ("line", "source", "text", "values")

    def __init__(self, values: Mapping[str, Any], source: str, line: int, *, text: bool) -> None:
        self.values = values
        self.source = source
        self.line = line
        self.text = text

    @property
    def place(self) -> str:
        """Where the row stands: file:line."""
        return f"{self.source}:{self.line}"

    def fault(self, problem: str) -> TraceError:
        """Return the error that says `problem` about this row."""
        return TraceError(f"{self.place}: {problem}")

    def get(self, name: str) -> Any:
        """Return the value of a field; None when it is absent, null or, in CSV, empty."""
        value = self.values.get(name)
        return None if self.text and value == "" else value

    def find(self, names: tuple[str, ...]) -> tuple[str, Any] | None:
        """Return (name, value) of the one field among `names` that the row has."""
        found: tuple[str, Any] | None = None
        for name in names:
            value = self.get(name)
            if value is None:
                continue
            if found is not None and found[1] != value:
                raise self.fault(
                    f"{found[0]} is {shown(found[1])} and {name} is {shown(value)}; one of them is expected"
                )
            found = found or (name, value)
        return found

    def count(self, names: tuple[str, ...]) -> tuple[str, int] | None:
        """Return (name, tokens) of a length; None when absent."""
        found = self.find(names)
        return None if found is None else (found[0], self.whole(*found))

    def whole(self, name: str, value: object) -> int:
        """Return `value` as a number of tokens, 0 to 2^31 - 1."""
        if type(value) is int:
            exact: Exact | None = value
        elif isinstance(value, Decimal):
            exact = value
        else:
            exact = number(value) if self.text and isinstance(value, str) else None
        if exact is None:
            raise self.fault(f"{name} is {shown(value)}; a whole number of tokens is expected")
        if exact < 0 or exact > LARGEST:
            raise self.fault(
                f"{name} is {shown(value)}; a number of tokens from 0 to {LARGEST:,} is expected"
            )
        whole = int(exact)
        if whole != exact:  # 374.0 is a whole number, as tables with gaps write one
            raise self.fault(f"{name} is {shown(value)}; a whole number of tokens is expected")
        return whole

    def label(self, names: tuple[str, ...]) -> str | None:
        """Return an id as a string; a string or an integer is read."""
        found = self.find(names)
        if found is None:
            return None
        name, value = found
        if type(value) is int:
            return str(value)
        if isinstance(value, str) and value.strip():
            return value
        raise self.fault(f"{name} is {shown(value)}; a name or a whole number is expected")

    def time(self, names: tuple[str, ...]) -> tuple[str, Exact, bool] | None:
        """Return (field, time, whether it is a wall clock: then seconds since 1970 UTC); None when absent."""
        found = self.find(names)
        if found is None:
            return None
        name, value = found
        clock = None
        exact = self._exact(value)
        if exact is None and isinstance(value, str):
            clock = wall_clock(value)
        if clock is not None:
            return name, clock, True
        if exact is None:
            raise self.fault(
                f"{name} is {shown(value)}; a number or a time such as 2023-11-16 18:17:03.97996 is expected"
            )
        return name, self._sensible(name, exact, value), False

    def duration(self, name: str) -> Exact | None:
        """Return a duration in the field's unit; None when absent."""
        value = self.get(name)
        if value is None:
            return None
        exact = self._exact(value)
        if exact is None:
            raise self.fault(f"{name} is {shown(value)}; a number is expected")
        return self._sensible(name, exact, value)

    def _exact(self, value: object) -> Exact | None:
        if isinstance(value, str):
            return number(value.strip())
        return value if type(value) is int or isinstance(value, Decimal) else None

    def _sensible(self, name: str, exact: Exact, value: object) -> Exact:
        if exact < 0:
            raise self.fault(f"{name} is {shown(value)}, a negative time; 0 or more is expected")
        if not in_range(exact):
            raise self.fault(
                f"{name} is {shown(value)}; a time under 10^24 with at most 40 decimals is expected"
            )
        return exact

    def ids(self, names: tuple[str, ...]) -> tuple[str, list[int]] | None:
        """Return (name, token ids); None when absent."""
        found = self.find(names)
        if found is None:
            return None
        name, value = found
        if not isinstance(value, list):
            raise self.fault(f"{name} is {shown(value)}; a list of token ids is expected")
        if not set(map(type, value)) <= {int}:
            odd = next(item for item in value if type(item) is not int)
            raise self.fault(f"{name} has {shown(odd)}; a list of whole numbers is expected")
        if value and not (min(value) >= 0 and max(value) <= LARGEST):
            odd = next(item for item in value if not 0 <= item <= LARGEST)
            raise self.fault(f"{name} has {shown(odd)}; token ids from 0 to {LARGEST:,} are expected")
        return name, value

    def hashes(self, names: tuple[str, ...]) -> tuple[str, list[int] | list[str]] | None:
        """Return (name, hash ids), whole numbers or strings; None when absent."""
        found = self.find(names)
        if found is None:
            return None
        name, value = found
        if not isinstance(value, list):
            raise self.fault(f"{name} is {shown(value)}; a list of hashes is expected")
        if not set(map(type, value)) <= {int, str}:
            odd = next(item for item in value if type(item) not in (int, str))
            raise self.fault(f"{name} has {shown(odd)}; whole numbers or strings are expected")
        return name, value
