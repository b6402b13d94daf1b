"""Where tokens and pages meet: integer arithmetic, nothing else."""

from __future__ import annotations


def ceil_div(amount: int, unit: int) -> int:
    """How many units cover an amount."""
    return -(-amount // unit)
