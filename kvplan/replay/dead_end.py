"""Replays that will never end: stalls, and cycles in which no request gains a token."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvplan.replay.engine import Engine
from kvplan.replay.flight import Flight
from kvplan.replay.totals import Totals


@dataclass(frozen=True, slots=True)
class Stuck:
    """A request that cannot go on: its state, its place, and the scheduler's reason."""

    request_id: str
    state: str
    prompt_tokens: int
    generated_tokens: int
    output_tokens: int
    retractions: int
    in_cycle: bool
    why: object


@dataclass(frozen=True, slots=True)
class DeadEnd:
    """Why a replay cannot end. `kind`: "stall" (nothing scheduled, nothing in flight, no request to come,
    requests waiting) or "livelock" (the same rounds again and again, no token in any of them).

    `round` and `time_ns` are when it was noticed; a livelock repeats every `period_rounds` (0 for a stall).
    `requests` are all that are not finished, those that take part in the cycle first.
    """

    kind: str
    round: int
    time_ns: int
    period_rounds: int
    requests: Sequence[Stuck]


@dataclass(frozen=True, slots=True)
class Cycle:
    """A stretch of rounds that repeats: it began as the engine is now."""

    rounds: int
    ns: int
    first_event: int
    totals: Totals
    flights: dict[str, tuple[int, int, int]]


@dataclass(slots=True)
class Watch:
    """Finds a cycle: the engine as it was before, and not one token in between.

    A cycle without a token needs a retraction, or its chunks would come to an end. So the engine is looked
    at only after rounds that retract something, and only from the third such round without a token or an
    arrival on: a replay without trouble never pays for it. One earlier look is kept at a time, and replaced
    after 1, 2, 4, 8… looks (Brent), so that a cycle of any length is found.
    """

    patience: int = 2
    _looks: int = 0
    _until_next: int = 0
    _power: int = 1
    _key: tuple[object, ...] | None = None
    _round: int = 0
    _now_ns: int = 0
    _first_event: int = 0
    _totals: Totals = field(default_factory=Totals)
    _flights: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget what was seen: a token was gained, or a request came or went."""
        if self._looks:
            self._looks = 0
            self._key = None
            self._power = 1

    def look(self, engine: Engine) -> Cycle | None:
        """Note the engine after a round with a retraction; return the cycle, once it is one."""
        self._looks += 1
        if self._looks <= self.patience:
            return None
        key = engine.key()
        if key == self._key:
            return Cycle(
                engine.round_index - self._round,
                engine.now_ns - self._now_ns,
                self._first_event,
                self._totals,
                self._flights,
            )
        if self._key is None or self._until_next == 0:
            self._key = key
            self._round, self._now_ns = engine.round_index, engine.now_ns
            self._first_event = len(engine.events)
            self._totals = engine.totals.copy()
            self._flights = {name: _counts(flight) for name, flight in engine.live.items()}
            self._until_next = self._power
            self._power *= 2
        self._until_next -= 1
        return None


def _counts(flight: Flight) -> tuple[int, int, int]:
    computed = flight.computed_again + flight.computed_prompt + flight.computed_output
    return flight.retractions, computed, flight.cache_again + flight.from_cache


def skip_cycles(engine: Engine, cycle: Cycle, until_ns: int) -> int:
    """Move the engine on by as many whole cycles as end by then; return how many.

    Each of them does what the one that was seen did, so its counts are those times as many; what it
    computes or finds in cache has been there before.
    """
    times = (until_ns - engine.now_ns) // cycle.ns
    if times <= 0:
        return 0
    engine.totals.repeat(cycle.totals, times)
    for name, flight in engine.live.items():
        retractions, computed, cached = cycle.flights[name]
        now_retractions, now_computed, now_cached = _counts(flight)
        flight.retractions += times * (now_retractions - retractions)
        flight.computed_again += times * (now_computed - computed)
        flight.cache_again += times * (now_cached - cached)
    engine.events.append(engine.round_index, engine.now_ns, "skipped", None, times * cycle.rounds)
    engine.skip(times * cycle.rounds, times * cycle.ns)
    return times


def dead_end(engine: Engine, cycle: Cycle | None) -> DeadEnd:
    """Return the account of an engine that is stuck: in `cycle`, or with nothing at all to do."""
    events = engine.events
    moved: set[str | None] = set()
    if cycle is not None:
        moved = set(events.request_ids[cycle.first_event :]) | set(events.others[cycle.first_event :])
    scheduler = engine.scheduler
    stuck = [
        Stuck(
            request_id=name,
            state=scheduler.request_state(name),
            prompt_tokens=flight.prompt_tokens,
            generated_tokens=flight.generated,
            output_tokens=flight.output_tokens,
            retractions=flight.retractions,
            in_cycle=name in moved,
            why=scheduler.explain_waiting(name),
        )
        for name, flight in engine.live.items()
    ]
    return DeadEnd(
        kind="stall" if cycle is None else "livelock",
        round=engine.round_index,
        time_ns=engine.now_ns,
        period_rounds=0 if cycle is None else cycle.rounds,
        requests=sorted(stuck, key=lambda request: not request.in_cycle),
    )
