"""Figures as people read them in a sizing report."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvplan.reports.replay_units import counted, grouped
from kvplan.sizing import Alternative

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: int | None) -> str:
    """Return bytes with two digits after the point: 768 B, 2.00 MiB, 62.50 GiB; "unknown" for None."""
    if count is None:
        return "unknown"
    value, unit = float(count), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count:,} B" if unit == 0 else f"{value:,.2f} {UNITS[unit]}"


def numbers_grouped(text: str) -> str:
    """Return a text with the thousands of its numbers grouped: "131072 / 64" is "131,072 / 64"."""
    return re.sub(r"\d+", lambda number: grouped(int(number[0])), text)


def blocks(count: int) -> str:
    """Return "1 LCM block", "2,000 LCM blocks"."""
    return counted(count, "LCM block")


def share(part: int, whole: int) -> str:
    """Return "217 of 300 LCM blocks (72 %)"."""
    return f"{grouped(part)} of {blocks(whole)} ({100 * part / whole:.0f} %)"


def pasted(flags: Mapping[str, object]) -> str:
    """Return flags and values as a shell takes them."""
    return " ".join(f"{name} {value}" for name, value in flags.items())


def tried(alternative: Alternative, why: str) -> str:
    """Return a ``try`` line's text: flags that can be pasted, and what they achieve."""
    flags = pasted(alternative.flags).replace(" ", "\u00a0")
    instead = f"instead of {alternative.replaces}: " if alternative.replaces else ""
    return f"{flags}\u00a0\u00a0 {instead}{why}"
