"""Points in time as a trace writes them, exact until the first has been subtracted.

A time is an `int` or a `Decimal` in the unit of its trace, so that a wall clock with seven fractional
digits and an epoch in nanoseconds keep every digit; only offsets from the first arrival become floats, in
seconds.
"""

import re
from datetime import date
from decimal import Context, Decimal
from typing import Final

from kvplan.traces.errors import TraceError, counted

Exact = int | Decimal

DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
EXACT: Final = Context(prec=80)
EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
LARGEST_EXPONENT: Final = 24

NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
WALL_CLOCK: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ]\s*(\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?"
    r"\s*(?:([Zz]|UTC)|([+-])(\d\d):?(\d\d)?)?",
    re.ASCII,
)

# A trace that people replay has between 1,000 requests a second and one a minute. Sparser ones exist, but
# not for hours on end; outside of this the unit is more likely wrong than the trace.
SHORTEST_GAP_S: Final = 1e-3
LONG_GAP_S: Final = 60.0
LONGEST_GAP_S: Final = 3600.0
LONG_SPAN_S: Final = 86400.0


def check_unit(unit: str) -> str:
    """Return `unit` when it is one of s, ms, us, ns; raises TraceError otherwise."""
    if unit not in DIGITS:
        raise TraceError(f"time unit {unit!r} is not known; one of {', '.join(DIGITS)} is expected")
    return unit


def number(text: str) -> Exact | None:
    """Return the number that `text` spells, exact, or None when it spells none."""
    if text.isascii() and text.isdigit():
        return int(text) if len(text) <= LARGEST_EXPONENT else Decimal(text)
    return Decimal(text) if NUMBER.fullmatch(text) else None


def wall_clock(text: str) -> Decimal | None:
    """Return the seconds since 1970 UTC at a wall-clock time, every digit kept; None when `text` is none.

    Read are `2023-11-16 18:17:03.9799600`, with `T` or a space, `Z`, `UTC` or an offset (absent means UTC),
    whole seconds or none.
    """
    match = WALL_CLOCK.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, _, sign, off_hour, off_minute = match.groups()
    hours, minutes, seconds = int(hour), int(minute), int(second or 0)
    try:
        days = date(int(year), int(month), int(day)).toordinal() - EPOCH_DAY
    except ValueError:
        return None
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if sign:
        offset = int(off_hour) * 3600 + int(off_minute or 0) * 60
        whole -= offset if sign == "+" else -offset
    if not fraction:
        return Decimal(whole)
    return EXACT.add(Decimal(whole), Decimal(f"0.{fraction[:40]}"))


def in_range(value: Exact) -> bool:
    """Whether `value` is a size that a clock can show (under 10^24 of any unit, no finer than 10^-40)."""
    if isinstance(value, int):
        return abs(value) < 10**LARGEST_EXPONENT
    exponent = value.as_tuple().exponent
    return isinstance(exponent, int) and exponent >= -40 and value.adjusted() < LARGEST_EXPONENT


def offset_s(value: Exact, first: Exact, unit: str) -> float:
    """Return `value - first` in seconds: subtracted exactly, then rounded once."""
    if isinstance(value, int) and isinstance(first, int):
        return (value - first) / int(10 ** DIGITS[unit])  # true division of integers rounds once
    difference = EXACT.subtract(Decimal(value), Decimal(first))
    return float(EXACT.scaleb(difference, -DIGITS[unit]))


def say_s(seconds: float) -> str:
    """Return a duration in words that suit its size: "0.4 ms", "2 s", "40.9 days"."""
    for size, word in (
        (86400.0, "days"),
        (3600.0, "h"),
        (60.0, "min"),
        (1.0, "s"),
        (1e-3, "ms"),
        (1e-6, "us"),
    ):
        if seconds >= (2 if size > 1 else 1) * size:
            return (
                f"{seconds / size:,.4g} {word}" if seconds / size < 1e4 else f"{seconds / size:,.0f} {word}"
            )
    return f"{seconds * 1e9:.4g} ns"


def span_warning(span_s: float, arrivals: int, unit: str) -> str | None:
    """Return a sentence with both readings when a span is absurd for its unit, else None.

    Absurd is a mean gap between arrivals under 1 ms, over an hour, or over a minute in a trace of more than
    a day.
    """
    if arrivals < 2 or span_s <= 0:
        return None
    if not _absurd(span_s / (arrivals - 1), span_s):
        return None
    readings = {other: span_s * 10.0 ** (DIGITS[unit] - DIGITS[other]) for other in DIGITS if other != unit}
    other = min(readings, key=lambda name: _strangeness(readings[name] / (arrivals - 1)))
    return (
        f"the arrivals span {_reading(span_s, arrivals, unit)}, which is unlikely; "
        f"they would span {_reading(readings[other], arrivals, other)}: give the time unit if that is right"
    )


def _absurd(gap_s: float, span_s: float) -> bool:
    if gap_s < SHORTEST_GAP_S or gap_s > LONGEST_GAP_S:
        return True
    return gap_s > LONG_GAP_S and span_s > LONG_SPAN_S


def _strangeness(gap_s: float) -> float:
    """How many times, up or down, a gap is away from one second."""
    return max(gap_s, 1 / gap_s)


def _reading(span_s: float, arrivals: int, unit: str) -> str:
    rate = f"{counted(arrivals, 'request')}, one every {say_s(span_s / (arrivals - 1))}"
    return f"{say_s(span_s)} read in {unit} ({rate})"
