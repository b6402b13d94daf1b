"""Bisection over integers."""

from __future__ import annotations

from collections.abc import Callable


def largest(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the largest integer in [``low``, ``high``] for which ``holds``, or None if there is none.

    ``holds`` must be monotone: once false, false for everything above.
    """
    if high < low or not holds(low):
        return None
    fits, beyond = low, high + 1
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        if holds(middle):
            fits = middle
        else:
            beyond = middle
    return fits
