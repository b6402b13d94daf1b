"""What a replay notes of its cache while it plays: which pages were evicted for whom, and why hits ended.

It is a listener (``scheduler.rounds.listener``), which takes part in no decision.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from zlib import crc32

from kvplan.explain.misses import MissedPages, missed_pages, short_key
from kvplan.replay.engine import Engine
from kvplan.scheduler import ExecutionPlan
from kvplan.scheduler.cache.coordinator import MatchSteps, Probe
from kvplan.scheduler.request import Request

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
    device_pages: tuple[int, ...]  # of the hit, by group
    host_pages: tuple[int, ...]
    pages: MissedPages


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
    """A number for each round's plan: who is in it, in which order, with which tokens."""
    _for: int = -1
    _mark: int = 0
    """Evictions that came before those for the request that is served."""

    def attach(self) -> None:
        """Begin to listen."""
        scheduler = self.engine.scheduler
        scheduler.listener = self
        for tier, index in enumerate(scheduler.indexes()):
            index.on_change = self._changes(tier, index.on_change)

    def detach(self) -> None:
        """Leave the scheduler as it was."""
        scheduler = self.engine.scheduler
        scheduler.listener = None
        for index in scheduler.indexes():
            index.on_change = getattr(index.on_change, "before", index.on_change)

    def planned(self, plan: ExecutionPlan) -> None:
        """Note a number for the plan."""
        number = 0
        for batch in plan.forward:
            number = crc32("\0".join(batch.request_ids).encode(), number)
            prefills = batch.num_extends()
            if prefills:
                chunks = batch.extend_prefix_lens[:prefills], batch.input_lengths[:prefills]
                number = crc32(repr(chunks).encode(), number)
        self.plans.append(number)

    def serves(self, request: Request | None) -> None:
        """Note for whom pages make way from now on."""
        row = -1 if request is None else self.rows.get(request.id, -1)
        if row != self._for:  # a first chunk that starts over goes on serving the same request
            self._for, self._mark = row, len(self.evictions)

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

    def admitted(self, request: Request, probe: Probe, steps: MatchSteps, limit: int, rule: str) -> None:
        """Note what a first chunk hit, and what ended the hit."""
        cache = self.engine.scheduler.cache
        page = cache.prefix
        self.admissions.append(
            Admission(
                self.engine.round_index,
                request.id,
                request.retractions > 0,
                request.submitted_size,
                request.prefill_size,
                request.headroom,
                limit * page,
                rule,
                probe.device * page,
                probe.hit * page,
                probe.closed * page,
                tuple(cache.device_pages(group, probe) for group in cache.groups),
                tuple(
                    cache.host_pages(group, probe.device, probe.host) if probe.host > probe.device else 0
                    for group in cache.groups
                ),
                missed_pages(cache, request.keys, probe, steps, limit, self.gone, self._mark),
            )
        )
