"""Playing a workload on one engine until everything has ended, or nothing ever will."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from kvplan.replay.arrivals import Arrivals
from kvplan.replay.dead_end import DeadEnd, Watch, livelock, skip_cycles, stall
from kvplan.replay.engine import Engine, Outcome

PROGRESS_ROUNDS = 200


class Ending(StrEnum):
    """How a replay ended."""

    COMPLETE = "complete"
    STALL = "stall"
    LIVELOCK = "livelock"
    ROUND_LIMIT = "round limit"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a replay is: requests that ended, of how many, at which time of the trace, in which round."""

    ended: int
    requests: int
    time_ns: int
    rounds: int
    retractions: int


def play(
    engine: Engine,
    arrivals: Arrivals,
    *,
    max_rounds: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> tuple[Ending, DeadEnd | None]:
    """Play until the last request has ended, and return how it ended; for a dead end, with its account.

    `max_rounds` bounds the rounds; `stop` is asked after each one whether to end here. What was played until
    then stands.
    """
    watch = Watch()
    next_report = 0
    while True:
        come = arrivals.due(engine.now_ns)
        engine.receive(come)
        outcome = engine.round()
        for flight in engine.ended_now:
            arrivals.ended(flight.row, engine.now_ns)
        if progress is not None and engine.round_index >= next_report:
            next_report = engine.round_index + PROGRESS_ROUNDS
            progress(progress_of(engine))
        cycle = None
        if come or engine.gained_now or engine.ended_now:
            watch.reset()
        else:
            cycle = watch.after_round(engine)
        if cycle is not None:
            next_ns = arrivals.next_ns()
            if next_ns is None:
                return Ending.LIVELOCK, livelock(engine, cycle)
            skip_cycles(engine, cycle, next_ns)
            watch.reset()
        elif outcome is Outcome.IDLE:
            wakes = [at for at in (arrivals.next_ns(), engine.next_ns()) if at is not None]
            if wakes:
                engine.wait(min(wakes))
            elif engine.live:
                return Ending.STALL, stall(engine)
            else:
                return Ending.COMPLETE, None
        if max_rounds is not None and engine.round_index >= max_rounds:
            return Ending.ROUND_LIMIT, None
        if stop is not None and stop():
            return Ending.INTERRUPTED, None


def progress_of(engine: Engine) -> Progress:
    """Return how far the engine is."""
    return Progress(
        ended=len(engine.finished) + len(engine.refused),
        requests=len(engine.workload),
        time_ns=engine.now_ns,
        rounds=engine.round_index,
        retractions=engine.totals.retractions.total(),
    )
