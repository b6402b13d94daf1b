"""Numbers as people read them in a replay's report."""

from collections.abc import Sequence
from textwrap import wrap

from kvplan.replay.step_time import StepTime

LEVELS = "▁▂▃▄▅▆▇█"


def grouped(number: int) -> str:
    """Return a count with its thousands grouped: 12,031."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Return "1 request", "2,000 requests"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def tokens(number: int) -> str:
    """Return tokens with three digits from a million on: 999,999; 1.00 M; 92.4 M; 1,230 M."""
    return grouped(number) if number < 1_000_000 else f"{digits(number / 1e6)} M"


def digits(value: float) -> str:
    """Return a value with three digits, or as many as its whole part has: 0.0123, 1.21, 31.2, 1,234."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.9995 else f"{value:.3g}"


def percent(share: float) -> str:
    """Return a share with one digit after the point, and never 0 or 100 % for what is not."""
    if 0 < share < 0.0005:
        return "<0.1 %"
    if 0.9995 <= share < 1:
        return ">99.9 %"
    return f"{100 * share:.1f} %"


def duration(seconds: float) -> str:
    """Return a stretch of time by its two largest units, or three digits below a minute."""
    if seconds < 1e-3:
        return f"{digits(seconds * 1e6)} µs" if seconds else "0 s"
    if seconds < 0.9995:
        return f"{digits(seconds * 1e3)} ms"
    if seconds < 59.95:
        return f"{digits(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02} m"
    hours = round(seconds / 3600)
    return f"{hours // 24:,} d {hours % 24:02} h"


def given_time(seconds: float) -> str:
    """Return a time that was given, as it would be given: 10 ms, 35 µs."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{seconds / size:.6g} {unit}"
    return f"{seconds * 1e9:.6g} ns" if seconds else "0"


def rounds_time(units: float) -> str:
    """Return a time of a lockstep replay: rounds."""
    return f"{digits(units)} rounds" if units != 1 else "1 round"


def sparkline(values: Sequence[float], top: float | None = None) -> str:
    """Return one mark a value, from ▁ (0) to █ (`top`, or the largest value)."""
    top = max(values, default=0) if top is None else top
    if top <= 0:
        return LEVELS[0] * len(values)
    return "".join(LEVELS[min(int(max(value, 0) / top * len(LEVELS)), len(LEVELS) - 1)] for value in values)


def folded(text: str, width: int, indent: int = 0) -> list[str]:
    """Return `text` on lines of at most `width`, later ones indented; a longer word has its line alone."""
    return wrap(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    ) or [""]


def step_words(step: StepTime, given: bool) -> str:
    """Return a step time as people read it, and whether it was given or is assumed."""
    if step.lockstep:
        return "one unit of time a round (--rounds)"
    words = f"{given_time(step.fixed_s)} + {given_time(step.per_prefill_token_s)}/prefill token"
    words += f" + {given_time(step.per_decode_request_s)}/decode"
    if step.per_context_token_s:
        words += f" + {given_time(step.per_context_token_s)}/context token"
    return words + (" (given)" if given else " (assumed)")
