"""Thrashing: a stretch of rounds in which most prefill computes again what a retraction threw away."""

from dataclasses import dataclass

from kvplan.replay.rounds import RoundLog
from kvplan.replay.step_time import NS

MOST = 0.5
RETRACTIONS = 20


@dataclass(frozen=True, slots=True)
class Thrashing:
    """A stretch of rounds, both ends included, and what went on in it.

    `recomputed_share` is the part of `prefill_tokens` that had been computed before; `generated_tokens` still
    came, so that it is no dead end.
    """

    first_round: int
    last_round: int
    start_s: float
    end_s: float
    retractions: int
    prefill_tokens: int
    recomputed_tokens: int
    recomputed_share: float
    generated_tokens: int


def thrashing(rounds: RoundLog) -> Thrashing | None:
    """Return the stretch in which rework outweighs other prefill by most; None if there is no such trouble.

    Each round weighs what it computes again minus what it computes anew; the stretch is the one of greatest
    weight. It counts as trouble when it has 20 retractions or more: a request or two that come back after a
    retraction are what retractions are for.
    """
    prefill, again = rounds.column("prefill_tokens"), rounds.column("recomputed_tokens")
    best = weight = 0
    first = begin = end = 0
    for i, (all_tokens, recomputed) in enumerate(zip(prefill, again, strict=True)):
        if weight <= 0:
            weight, begin = 0, i
        weight += 2 * recomputed - all_tokens
        if weight > best:
            best, first, end = weight, begin, i + 1
    retractions = sum(rounds.column("retractions")[first:end])
    if retractions < RETRACTIONS:
        return None
    tokens, recomputed = sum(prefill[first:end]), sum(again[first:end])
    times, steps = rounds.column("time_ns"), rounds.column("step_ns")
    return Thrashing(
        first_round=rounds.column("round")[first],
        last_round=rounds.column("round")[end - 1],
        start_s=times[first] / NS,
        end_s=(times[end - 1] + steps[end - 1]) / NS,
        retractions=retractions,
        prefill_tokens=tokens,
        recomputed_tokens=recomputed,
        recomputed_share=recomputed / tokens,
        generated_tokens=sum(rounds.column("generated_tokens")[first:end]),
    )
