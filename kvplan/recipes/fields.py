"""A configuration's fields, read one by one with their type and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kvplan.recipes.config_file import ConfigFile
from kvplan.recipes.errors import RecipeError

MAX_COUNT: Final = 2**31 - 1
MAX_LAYERS: Final = 10_000
_UNSET: Final = object()


class Fields:
    """The fields of a configuration file, with the defaults that its architecture documents."""

    def __init__(self, file: ConfigFile, family: str, defaults: Mapping[str, object]) -> None:
        self.file = file
        self.family = family
        self._values = file.values
        self._defaults = defaults

    def has(self, name: str) -> bool:
        """Whether the file gives the field, and not as null."""
        return self._values.get(name) is not None

    def named(self, name: str) -> str:
        """How a message names a field."""
        inside = f"{self.file.nested}." if self.file.nested else ""
        return f"{self.file.source}: {inside}{name}"

    def wrong(self, name: str, needed: str) -> RecipeError:
        """The error for a field whose value is not what is needed."""
        return RecipeError(f"{self.named(name)} is {_shown(self.get(name))}; {needed}")

    def get(self, name: str) -> object:
        """Return what the file gives, or else the architecture's documented default; None without either."""
        value = self._values.get(name, _UNSET)
        return self._defaults.get(name) if value is _UNSET else value

    def count(self, *names: str, least: int = 1, most: int = MAX_COUNT) -> int:
        """Return the integer of the first of ``names`` (spellings of one field) that is given.

        Raises ``RecipeError`` if none is, or it is no integer of ``least`` to ``most``.
        """
        for name in names:
            if self.get(name) is not None:
                return self._count(name, least, most)
        raise RecipeError(f"{self.named(names[0])} is missing; every {self.family} configuration gives it")

    def optional_count(self, *names: str, least: int = 1, most: int = MAX_COUNT) -> int | None:
        """As ``count``, or None where the field is absent or null."""
        return (
            self.count(*names, least=least, most=most)
            if any(self.get(n) is not None for n in names)
            else None
        )

    def switch(self, name: str, otherwise: bool = False) -> bool:
        """Return true or false; ``otherwise`` where the field is absent or null."""
        value = self.get(name)
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false is needed")
        return value

    def text(self, name: str) -> str | None:
        """Return a string; None where the field is absent or null."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "a string is needed")
        return value

    def indices(self, name: str, first: int, beyond: int) -> list[int] | None:
        """Return a list of layer numbers from ``first`` to ``beyond`` − 1, none twice; None where absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self.wrong(name, "a list of layer numbers is needed")
        for one in value:
            if isinstance(one, bool) or not isinstance(one, int) or not first <= one < beyond:
                raise RecipeError(
                    f"{self.named(name)} names layer {_shown(one)}; layers are {first} to {beyond - 1}"
                )
        if len(set(value)) != len(value):
            raise self.wrong(name, "no layer may be named twice")
        return list(value)

    def nested(self, name: str) -> Fields:
        """Return the fields of a table inside the configuration."""
        value = self._values.get(name)
        if value is None:
            raise RecipeError(f"{self.named(name)} is missing; every {self.family} configuration gives it")
        if not isinstance(value, Mapping):
            raise self.wrong(name, "an object is needed")
        inside = f"{self.file.nested}.{name}" if self.file.nested else name
        file = ConfigFile(self.file.name, self.file.source, value, self.file.outer, inside, self.file.folder)
        return Fields(file, self.family, {})

    def outer(self, name: str) -> object:
        """Return what the file gives, here or, for a nested configuration, around it; None without either."""
        value = self.get(name)
        return self.file.outer.get(name) if value is None else value

    def _count(self, name: str, least: int, most: int) -> int:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, "an integer is needed")
        if value < least:
            raise self.wrong(name, f"at least {least:,} is needed")
        if value > most:
            raise self.wrong(name, f"at most {most:,} is possible")
        return value


def _shown(value: object) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    if value is None:
        text = "null"
    return text if len(text) <= 40 else text[:39] + "…"
