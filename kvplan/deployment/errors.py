"""What a deployment says when it is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class DeploymentError(ValueError):
    """One sentence: what was given, where (file and table, or flag), what would be right."""


def shown(value: object, width: int = 40) -> str:
    """Return ``value`` as TOML spells it, cut to ``width`` characters."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= width else text[: width - 1] + "…"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` most likely means, or None where none is like it."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None
