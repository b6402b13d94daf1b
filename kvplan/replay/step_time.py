"""How long one forward takes, and the times of a replay: whole nanoseconds, so that they add up exactly."""

import math
import re
from dataclasses import dataclass
from decimal import Decimal

NS = 1_000_000_000
UNITS = {"ns": "1e-9", "us": "1e-6", "µs": "1e-6", "ms": "1e-3", "s": "1", "": "1"}
TIME = re.compile(r"((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([a-zµ]*)", re.ASCII)
MOMENT = re.compile(
    r"(?:(\d+)\s*d)?\s*(?:(\d+)\s*h)?\s*(?:(\d+)\s*m(?!s))?\s*(?:(\d+(?:\.\d+)?)\s*s)?", re.ASCII
)

# Assumptions, not measurements: the order of magnitude of an 8 B dense model in bf16 on one datacentre GPU
# (about 28,000 prefill tokens a second, 10 ms to read the weights). Every figure can be given instead.
FIXED_S = 10e-3
PER_PREFILL_TOKEN_S = 35e-6
PER_DECODE_REQUEST_S = 20e-6
PER_CONTEXT_TOKEN_S = 0.0


def nanoseconds(seconds: float) -> int:
    """Return `seconds` as whole nanoseconds, the nearest."""
    return round(seconds * NS)


def parse_seconds(text: str, name: str) -> float:
    """Return the seconds that `text` says: a number of them, or one with a unit (10ms, 35us, 1.5s).

    Raises ValueError, naming what was given as `name`.
    """
    match = TIME.fullmatch(text.strip())
    if match is None or match[2] not in UNITS:
        raise ValueError(f"{name} {text!r} is given; seconds (0.01) or a time with a unit (10ms) is expected")
    return float(Decimal(match[1]) * Decimal(UNITS[match[2]]))


def parse_moment(text: str, name: str) -> float:
    """Return the seconds that `text` says, as `parse_seconds`, or as reports print them (10 m 30 s, 1 h 02 m).

    Raises ValueError, naming what was given as `name`.
    """
    match = MOMENT.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        return parse_seconds(text, name)
    parts = zip(match.groups(), (86_400, 3_600, 60, 1), strict=True)
    return float(sum(Decimal(count) * unit for count, unit in parts if count))


@dataclass(frozen=True, slots=True)
class StepTime:
    """The seconds of a forward: fixed + per prefill token + per decode request + per context token.

    A *prefill token* is a token that a prefill chunk feeds to the model, the re-fed ones of a replayable
    group included (engine.md §8); a *decode request* is one row of the batch that decodes, whatever its
    width; *context tokens* are those whose KV the forward reads: what stands before each chunk and each
    decode. With `lockstep` every round takes `fixed_s`, scheduled work or not (`--rounds`).
    """

    fixed_s: float = FIXED_S
    per_prefill_token_s: float = PER_PREFILL_TOKEN_S
    per_decode_request_s: float = PER_DECODE_REQUEST_S
    per_context_token_s: float = PER_CONTEXT_TOKEN_S
    lockstep: bool = False

    def __post_init__(self) -> None:
        for name in ("fixed_s", "per_prefill_token_s", "per_decode_request_s", "per_context_token_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"step time {name} is {value}; a finite number of seconds >= 0 is needed")
        if self.shortest_ns < 1:
            raise ValueError(
                "a step takes no time: fixed_s is 0, and so is per_prefill_token_s or per_decode_request_s; "
                "fixed_s above 0, or both others, is needed"
            )

    @property
    def shortest_ns(self) -> int:
        """The least that a forward can take: one token of prefill or one decode."""
        return nanoseconds(self.fixed_s + min(self.per_prefill_token_s, self.per_decode_request_s))

    def ns(self, prefill_tokens: int, decode_requests: int, context_tokens: int = 0) -> int:
        """Return the nanoseconds of a forward with these counts."""
        return round(
            NS
            * (
                self.fixed_s
                + self.per_prefill_token_s * prefill_tokens
                + self.per_decode_request_s * decode_requests
                + self.per_context_token_s * context_tokens
            )
        )


def unit_rounds() -> StepTime:
    """Return the step time of `--rounds`: every round takes one unit, shown as one second."""
    return StepTime(1.0, 0.0, 0.0, 0.0, lockstep=True)
