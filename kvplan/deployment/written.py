"""A deployment as TOML."""

from __future__ import annotations

import json
from collections.abc import Mapping

from kvplan.deployment.fields import GROUPS
from kvplan.deployment.given import Given


def toml(values: Mapping[str, Given], groups: tuple[Mapping[str, Given], ...]) -> str:
    """Return ``values`` and ``groups`` as TOML, under the engine's own names."""
    parts = [_lines(values)] + [f"[[{GROUPS}]]\n{_lines(group)}" for group in groups]
    return "\n".join(parts)


def _lines(values: Mapping[str, Given]) -> str:
    return "".join(f"{given.field.name} = {_value(given.value)}\n" for given in values.values())


def _value(value: int | float | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # of printable characters it is a TOML string as well
    return repr(value)
