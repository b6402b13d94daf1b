"""What a replay notes of its cache while it plays: which pages were evicted for whom, and why hits ended.

This is the one place that reaches into a scheduler from outside. It only listens: the calls it stands in for
get and give what they always did.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from kvplan.explain.misses import MissedPages, missed_pages, short_key
from kvplan.replay.engine import Engine
from kvplan.scheduler import ExecutionPlan
from kvplan.scheduler.cache.coordinator import MatchSteps, Probe
from kvplan.scheduler.request import Request
from kvplan.scheduler.rounds.build import Outcome

DEVICE, HOST = 0, 1


@dataclass(slots=True)
class Evictions:
    """Pages that left an index, column by column; ``by`` is the row of the request they made way for."""

    rounds: array[int] = field(default_factory=lambda: array("i"))
    tiers: array[int] = field(default_factory=lambda: array("b"))
    groups: array[int] = field(default_factory=lambda: array("b"))
    keys: array[int] = field(default_factory=lambda: array("Q"))
    by: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.rounds)

    @property
    def columns(self) -> tuple[array[int], ...]:
        """The columns, in order."""
        return self.rounds, self.tiers, self.groups, self.keys, self.by


@dataclass(slots=True)
class Admission:
    """A first chunk that was scheduled: what it hit and what ended the hit. Lengths are in tokens."""

    round: int
    request_id: str
    again: bool  # after a retraction
    prompt_tokens: int
    prefill_tokens: int
    headroom: int  # generated tokens that the admission secures
    limit: int
    limit_rule: str
    device_hit: int
    hit: int
    closed_hit: int
    pages: MissedPages


@dataclass(slots=True)
class _Probed:
    """What a first chunk's probe found, and under which bound; ``mark`` evictions came before it."""

    limit: int
    rule: str
    headroom: int
    found: Probe
    steps: MatchSteps
    mark: int


@dataclass(slots=True)
class Observer:
    """Listens to one engine; ``attach`` it, and ``detach`` it while the scheduler is saved."""

    engine: Engine
    rows: dict[str, int]
    evictions: Evictions = field(default_factory=Evictions)
    admissions: list[Admission] = field(default_factory=list)
    gone: dict[tuple[int, int], int] = field(default_factory=dict)
    """The newest eviction from the device of a key, by (group, first 8 bytes of the key)."""
    plans: array[int] = field(default_factory=lambda: array("I"))
    """A number for each round's plan: who is in it, in which order, with how many tokens."""
    _for: int = -1
    _probe: _Probed | None = None

    def attach(self) -> None:
        """Begin to listen."""
        scheduler = self.engine.scheduler
        admissions, cache = scheduler._admissions, scheduler._cache
        hooked: Any = scheduler
        hooked.next_execution_plan = self._planned(scheduler.next_execution_plan)
        hooked = admissions
        hooked.first_chunk = self._named(admissions.first_chunk, self._admitted)
        hooked.later_chunk = self._named(admissions.later_chunk)
        hooked._admit = self._named(admissions._admit)
        hooked.probe = self._probing(admissions.probe)
        cache.index.on_change = self._changes(DEVICE, cache.index.on_change)
        if cache.host is not None:
            cache.host.index.on_change = self._changes(HOST, cache.host.index.on_change)

    def detach(self) -> None:
        """Leave the scheduler as it was."""
        scheduler = self.engine.scheduler
        vars(scheduler).pop("next_execution_plan", None)
        for name in ("first_chunk", "later_chunk", "_admit", "probe"):
            vars(scheduler._admissions).pop(name, None)
        cache = scheduler._cache
        for index in [cache.index] if cache.host is None else [cache.index, cache.host.index]:
            index.on_change = getattr(index.on_change, "before", index.on_change)

    def _planned(self, call: Callable[[], ExecutionPlan]) -> Callable[[], ExecutionPlan]:
        plans = self.plans

        def planned() -> ExecutionPlan:
            plan = call()
            number = 0
            for batch in plan.forward:
                number = crc32("\0".join(batch.request_ids).encode(), number)
                prefills = batch.num_extends()
                if prefills:
                    number = crc32(repr(batch.input_lengths[:prefills]).encode(), number)
            plans.append(number)
            return plan

        return planned

    def _named(
        self, call: Callable[..., Any], after: Callable[[Request, Any, int, int], None] | None = None
    ) -> Callable[..., Any]:
        """``call``, whose second argument is a request, with evictions in it noted as for that request."""

        def named(build: Any, request: Request, *rest: Any, **more: Any) -> Any:
            outer, self._for = self._for, self.rows.get(request.id, -1)
            size, retractions = request.prefill_size, request.retractions
            try:
                result = call(build, request, *rest, **more)
            finally:
                self._for = outer
            if after is not None:
                after(request, result, size, retractions)
            return result

        return named

    def _probing(self, call: Callable[..., Probe]) -> Callable[..., Probe]:
        limit_of = self.engine.scheduler._admissions.match_limit

        def probe(request: Request, steps: MatchSteps | None = None) -> Probe:
            steps = ([], []) if steps is None else steps
            found = call(request, steps)
            self._probe = _Probed(*limit_of(request), request.headroom, found, steps, len(self.evictions))
            return found

        return probe

    def _changes(
        self, tier: int, before: Callable[[int, bytes, bool], None] | None
    ) -> Callable[[int, bytes, bool], None]:
        evictions, gone, engine = self.evictions, self.gone, self.engine

        def changed(group: int, key: bytes, present: bool) -> None:
            if before is not None:
                before(group, key, present)
            if present:
                return
            short = short_key(key)
            if tier == DEVICE:
                gone[group, short] = len(evictions.rounds)
            evictions.rounds.append(engine.round_index)
            evictions.tiers.append(tier)
            evictions.groups.append(group)
            evictions.keys.append(short)
            evictions.by.append(self._for)

        changed.before = before  # type: ignore[attr-defined]
        return changed

    def _admitted(self, request: Request, outcome: Outcome, size: int, retractions: int) -> None:
        probed = self._probe
        if not outcome.scheduled or probed is None:
            return
        cache, found = self.engine.scheduler._cache, probed.found
        page = cache.prefix
        self.admissions.append(
            Admission(
                self.engine.round_index,
                request.id,
                retractions > 0,
                request.submitted_size,
                size,
                probed.headroom,
                probed.limit * page,
                probed.rule,
                found.device * page,
                found.hit * page,
                found.closed * page,
                missed_pages(cache, request.keys, found, probed.steps, probed.limit, self.gone, probed.mark),
            )
        )
