"""Replays that will never end: stalls, and cycles in which no request gains a token."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvplan.replay.engine import Engine
from kvplan.replay.flight import Flight
from kvplan.replay.totals import Totals
from kvplan.scheduler.rounds.diagnosis import Diagnosis

RUNTIME = ""  # stands for the engine's runtime where a request's name would be


@dataclass(frozen=True, slots=True)
class Shortage:
    """Pages of a group that a request's next chunk or decode needs, and those that it could have."""

    group_id: str
    needed_pages: int
    free_pages: int
    evictable_pages: int


@dataclass(frozen=True, slots=True)
class Stuck:
    """A request that cannot go on, and why.

    `fits` tells whether its next `next_tokens` would fit now; where they do not, `groups` are what they need.
    `exempt`: it may not be retracted. `in_cycle`: it is admitted and retracted again and again, for the
    requests of `retracted_for`, or `by_runtime`: a load of its forward failed, or retractions are forced.
    `never_ends`: its prompt and whole output are more than the pool admits of one request; it came in because
    it does not declare them. `reason` is the scheduler's own sentence.
    """

    request_id: str
    state: str
    prompt_tokens: int
    generated_tokens: int
    output_tokens: int
    retractions: int
    in_cycle: bool
    retracted_for: Sequence[str]
    by_runtime: bool
    fits: bool
    next_tokens: int
    groups: Sequence[Shortage]
    exempt: bool
    never_ends: bool
    reason: str


@dataclass(frozen=True, slots=True)
class DeadEnd:
    """Why a replay cannot end. `kind`: "stall" (nothing scheduled, nothing in flight, no request to come,
    requests waiting) or "livelock" (the same rounds again and again, no token in any of them).

    `since_round` is the last round in which anything was scheduled or retracted, or the one in which the cycle
    was first seen; `round` and `time_ns` are when it was certain. A livelock repeats every `period_rounds`
    (0 for a stall). `requests` are all that came and have not ended, those that take part in the cycle first.
    """

    kind: str
    since_round: int
    round: int
    time_ns: int
    period_rounds: int
    requests: Sequence[Stuck]


@dataclass(slots=True)
class Glance:
    """The engine as it was after some round: its key, and the counts then."""

    key: tuple[object, ...]
    round: int
    now_ns: int
    events: int
    totals: Totals
    flights: dict[str, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Cycle:
    """Rounds that repeat: `since` is the engine when they began the last time, and as it is again now.

    `reasons` say why its requests could not go on when they could not.
    """

    rounds: int
    ns: int
    since: Glance
    reasons: Mapping[str, Diagnosis]


@dataclass(slots=True)
class Watch:
    """Finds a cycle: the engine as it was before, and not one token in between.

    A cycle without a token needs a retraction, or its chunks would come to an end. So the engine is looked
    at only after rounds that retract something, and only from the third such round without a token or an
    arrival on: a replay without trouble never pays for it. One earlier look is kept at a time, and replaced
    after 1, 2, 4, 8... looks (Brent), so that a cycle of any length is found. A cycle that was seen is played
    once more, to be certain, and to ask what keeps its requests while it does.
    """

    patience: int = 2
    _looks: int = 0
    _until_next: int = 0
    _power: int = 1
    _kept: Glance | None = None
    _suspected: int = 0
    _again: Glance | None = None
    _reasons: dict[str, Diagnosis] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget what was seen: a token was gained, or a request came or went."""
        if self._looks:
            self._looks = 0
            self._power = 1
            self._kept = self._again = None

    def after_round(self, engine: Engine) -> Cycle | None:
        """Note a round without a token; return the cycle, once it is certain."""
        if self._again is not None:
            self._ask(engine, self._again)
            if engine.round_index < self._again.round + self._suspected:
                return None
            again, self._again = self._again, None
            if engine.key() == again.key:
                return Cycle(self._suspected, engine.now_ns - again.now_ns, again, self._reasons)
        if not engine.retracted_now:
            return None
        self._looks += 1
        if self._looks <= self.patience:
            return None
        key = engine.key()
        if self._kept is not None and key == self._kept.key:
            self._suspected = engine.round_index - self._kept.round
            self._reasons = {}
            self._again = glance(engine, key)
            return None
        if self._kept is None or self._until_next == 0:
            self._kept = glance(engine, key)
            self._until_next = self._power
            self._power *= 2
        self._until_next -= 1
        return None

    def _ask(self, engine: Engine, since: Glance) -> None:
        """Keep why requests of the cycle cannot go on now: the first reason that is a lack of pages."""
        for name in moved(engine, since):
            known = self._reasons.get(name)
            if known is None or known.fits:
                reason = engine.scheduler.diagnose(name)
                if reason is not None:
                    self._reasons[name] = reason


def glance(engine: Engine, key: tuple[object, ...]) -> Glance:
    """Return the engine as it is now, known by `key`."""
    return Glance(
        key=key,
        round=engine.round_index,
        now_ns=engine.now_ns,
        events=len(engine.events),
        totals=engine.totals.copy(),
        flights={name: _counts(flight) for name, flight in engine.live.items()},
    )


def moved(engine: Engine, since: Glance) -> Iterable[str]:
    """Return the live requests that were admitted or retracted since then, or for which one was, in order."""
    log = engine.events
    names = dict.fromkeys([*log.request_ids[since.events :], *log.others[since.events :]])
    return [name for name in names if name is not None and name in engine.live]


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
    since = cycle.since
    engine.totals.repeat(since.totals, times)
    for name, flight in engine.live.items():
        retractions, computed, cached = since.flights[name]
        now_retractions, now_computed, now_cached = _counts(flight)
        flight.retractions += times * (now_retractions - retractions)
        flight.computed_again += times * (now_computed - computed)
        flight.cache_again += times * (now_cached - cached)
    engine.events.append(engine.round_index, engine.now_ns, "skipped", None, times * cycle.rounds)
    engine.skip(times * cycle.rounds, times * cycle.ns)
    return times


def stall(engine: Engine) -> DeadEnd:
    """Return the account of an engine that has nothing to do and requests that wait."""
    log = engine.rounds
    done = [log.column(name) for name in ("prefill_requests", "decode_requests", "retractions")]
    last = next((at for at in reversed(range(len(log))) if any(column[at] for column in done)), 0)
    requests = [_stuck(engine, name, None, (), False) for name in engine.live]
    return DeadEnd("stall", log.column("round")[last], engine.round_index - 1, engine.now_ns, 0, requests)


def livelock(engine: Engine, cycle: Cycle) -> DeadEnd:
    """Return the account of an engine in `cycle`."""
    log, since = engine.events, cycle.since
    retracted_for: dict[str, dict[str, None]] = {}
    for kind, name, other in zip(
        log.kinds[since.events :], log.request_ids[since.events :], log.others[since.events :], strict=True
    ):
        if kind == "retracted" and name is not None:
            retracted_for.setdefault(name, {})
            retracted_for[name][other or RUNTIME] = None
    inside = list(moved(engine, since))
    rest = [name for name in engine.live if name not in inside]
    requests = [
        _stuck(engine, name, cycle.reasons.get(name), tuple(retracted_for.get(name, ())), True)
        for name in inside
    ]
    requests += [_stuck(engine, name, None, (), False) for name in rest]
    first = since.round - cycle.rounds
    return DeadEnd("livelock", first, engine.round_index - 1, engine.now_ns, cycle.rounds, requests)


def _stuck(
    engine: Engine, name: str, reason: Diagnosis | None, retracted_for: Sequence[str], in_cycle: bool
) -> Stuck:
    flight = engine.live[name]
    reason = reason or engine.scheduler.diagnose(name)
    return Stuck(
        request_id=name,
        state=engine.scheduler.request_state(name),
        prompt_tokens=flight.prompt_tokens,
        generated_tokens=flight.generated,
        output_tokens=flight.output_tokens,
        retractions=flight.retractions,
        in_cycle=in_cycle,
        retracted_for=[other for other in retracted_for if other != RUNTIME],
        by_runtime=RUNTIME in retracted_for,
        fits=reason is not None and reason.fits,
        next_tokens=0 if reason is None else reason.tokens,
        groups=[]
        if reason is None
        else [Shortage(group.group_id, group.needed, group.free, group.evictable) for group in reason.groups],
        exempt=reason is not None and reason.exempt,
        never_ends=flight.prompt_tokens + flight.output_tokens > engine.limit_tokens,
        reason=str(reason),
    )
