"""How many tokens a speculative decode step accepts."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TABLE = 1 << 16
# An odd stride walks the whole table from any row, so that neighbouring requests do not accept in step.
STRIDE = 40_503


@dataclass(frozen=True, slots=True)
class AcceptLengths:
    """Accepted tokens of each decode step: entry `(row * stride + step) % len(table)` of `table`.

    It depends on the request and its own step alone, never on what else is scheduled: two replays of one
    trace differ by what the scheduler does, not by luck. `mean` is the table's.
    """

    table: Sequence[int]
    stride: int
    basis: str

    @property
    def mean(self) -> float:
        return sum(self.table) / len(self.table)


def every(tokens: int, basis: str = "given") -> AcceptLengths:
    """Return the model in which each step accepts `tokens`."""
    return AcceptLengths([tokens], 1, basis)


def from_mean(mean: float, width: int, seed: int = 0) -> AcceptLengths:
    """Return accepted lengths with this mean: each draft token is accepted with the same probability.

    With chance p a step of `width` tokens accepts k or more with p^(k - 1), 1 <= k <= width; p is what
    makes the mean. Raises ValueError for a mean outside [1, width].
    """
    if not 1 <= mean <= width:
        raise ValueError(
            f"accept length {mean:g} is given; a step accepts 1 to {width} tokens (decode_input_tokens)"
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        chance = (low + high) / 2
        if sum(chance**k for k in range(width)) < mean:
            low = chance
        else:
            high = chance
    reach = [high**k for k in range(width)] + [0.0]
    return from_weights({k + 1: reach[k] - reach[k + 1] for k in range(width)}, width, seed)


def from_weights(weights: Mapping[int, float], width: int, seed: int = 0) -> AcceptLengths:
    """Return accepted lengths distributed as `weights` (length: share).

    The table holds each length as often as its share says, to one part in 65,536, in an order drawn from
    `seed`. Raises ValueError for a length outside [1, width] or shares that do not add up to 1.
    """
    for length, share in weights.items():
        if not 1 <= length <= width:
            raise ValueError(
                f"accept length {length} is given; a step accepts 1 to {width} tokens (decode_input_tokens)"
            )
        if not 0 <= share <= 1:
            raise ValueError(f"accept length {length} has the share {share:g}; 0 to 1 is expected")
    total = sum(weights.values())
    if abs(total - 1) > 0.005:
        raise ValueError(f"the shares of the accept lengths add up to {total:g}; 1 is expected")
    lengths = sorted(weights)
    exact = [weights[length] / total * TABLE for length in lengths]
    counts = [int(count) for count in exact]
    by_rest = sorted(range(len(lengths)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_rest[: TABLE - sum(counts)]:
        counts[i] += 1
    table = [length for length, count in zip(lengths, counts, strict=True) for _ in range(count)]
    random.Random(seed).shuffle(table)
    if len(set(table)) == 1:
        return every(table[0])
    return AcceptLengths(table, STRIDE, "given")


def parse_accept(text: str | None, width: int, seed: int = 0) -> AcceptLengths:
    """Return the model of an option: a mean ("2.5"), or lengths with shares ("1:0.2,2:0.5,4:0.3").

    Absent, every token of the width is accepted (an assumption). Raises ValueError, one sentence.
    """
    width = max(width, 1)
    if text is None:
        return every(width, "assumed" if width > 1 else "decode_input_tokens is 1")
    if ":" not in text:
        return from_mean(_number(text, text), width, seed)
    weights: dict[int, float] = {}
    for part in text.split(","):
        length, colon, share = part.partition(":")
        digits = length.strip()
        if not colon or not (digits.isascii() and digits.isdigit()):
            raise ValueError(_expected(text, part))
        if int(digits) in weights:
            raise ValueError(f"accept length {int(digits)} is given twice in {text!r}; once is expected")
        weights[int(digits)] = _number(share, text)
    return from_weights(weights, width, seed)


def _number(part: str, text: str) -> float:
    try:
        value = float(part)
    except ValueError:
        raise ValueError(_expected(text, part)) from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(_expected(text, part))
    return value


def _expected(text: str, part: str) -> str:
    what = f"accept length {text!r} is given"
    if part != text:
        what += f", {part.strip()!r} in it is neither"
    return f"{what}; a mean (2.5) or lengths with shares (1:0.2,2:0.5,4:0.3) are expected"
