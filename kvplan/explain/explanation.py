"""A round explained: the scheduler's own record of it, who waits and why, and what would change that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvplan.explain.remedies import Remedies, Trials, scheduled
from kvplan.explain.witness import Witnessed, witness
from kvplan.replay.session import Session
from kvplan.replay.step_time import NS
from kvplan.scheduler import Scheduler, SchedulerConfig
from kvplan.scheduler.journal import Attempt, Held, PoolState, RetractionStep

DETAILED = 3
"""Waiting requests for which by default the round is tried again with more of something."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a round: each request's turn, those that got none, and steps of a retraction, in order."""

    name: str
    attempts: list[Attempt] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    retraction: list[RetractionStep] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LostPage:
    """The page that ended a hit: whether it was ever there and, if so, when it was evicted and for whom."""

    tier: str
    group_id: str
    page: int
    key: str
    evicted_round: int | None
    evicted_for: str | None


@dataclass(frozen=True, slots=True)
class Wait:
    """A request that the round leaves out. Either it was tried (``attempt``), or held back (``reason``).

    ``never``: it is not even submitted, since no empty pool could serve it. ``lost``: the pages that ended its
    prefix hit, not looked up where nothing was tried. ``remedies`` are None there. ``entered_round``: when it got in
    later.
    """

    request_id: str
    state: str
    tokens: int
    max_new_tokens: int
    phase: str
    attempt: Attempt | None
    reason: str
    by: str | None
    lost: list[LostPage]
    remedies: Remedies | None
    entered_round: int | None


@dataclass(frozen=True, slots=True)
class RoundExplanation:
    """One round. Times in seconds, budgets in tokens, the pool in LCM blocks (groups: pages)."""

    round: int
    time_s: float
    role: str
    mixed: bool
    budget: int
    budget_left: int
    batch: int
    scheduled: int
    blocker: str | None
    waiting: int
    running: int
    pool_before: PoolState
    pool_after: PoolState
    phases: list[Phase]
    waits: list[Wait]
    evictions_known: bool
    """Whether it is known when pages that a hit lacked were evicted: a kept run knows."""


EvictionOf = Callable[[int, int, bytes], tuple[int, str | None] | None]
"""(round, group index, page key) -> the round before that in which the page was evicted, and for whom."""


def explain_next(
    session: Session,
    *,
    request_id: str | None = None,
    detailed: int | None = DETAILED,
    eviction_of: EvictionOf | None = None,
    entered: Callable[[str, int], int | None] | None = None,
) -> RoundExplanation:
    """Play the session's next round and explain it; the arguments are those of ``explained``."""
    return explained(
        witness(session),
        session.engine.scheduler,
        session.config,
        request_id=request_id,
        detailed=detailed,
        eviction_of=eviction_of,
        entered=entered,
    )


def explained(
    seen: Witnessed,
    scheduler: Scheduler,
    config: SchedulerConfig,
    *,
    request_id: str | None = None,
    detailed: int | None = DETAILED,
    eviction_of: EvictionOf | None = None,
    entered: Callable[[str, int], int | None] | None = None,
) -> RoundExplanation:
    """Explain a round that was seen; ``scheduler`` is as the round left it.

    What would have changed it is tried for ``request_id`` alone if given, else for the first ``detailed``
    requests that wait (None: all). ``entered`` tells in which round after one a request was admitted.
    """
    journal = seen.journal
    assert journal.after is not None
    lost = _Lost(config, seen.figures.round, eviction_of)
    waits = _waits(config, scheduler, seen, request_id, detailed, lost, entered)
    return RoundExplanation(
        round=seen.figures.round,
        time_s=seen.figures.time_ns / NS,
        role=journal.role,
        mixed=journal.mixed,
        budget=journal.budget,
        budget_left=journal.budget_left,
        batch=journal.batch,
        scheduled=journal.scheduled,
        blocker=journal.blocker,
        waiting=seen.figures.waiting,
        running=seen.figures.running,
        pool_before=journal.before,
        pool_after=journal.after,
        phases=phases_of(journal.entries),
        waits=waits,
        evictions_known=eviction_of is not None,
    )


def phases_of(entries: Sequence[Attempt | Held | RetractionStep]) -> list[Phase]:
    """The journal's entries by phase, phases in the order in which they ran."""
    phases: list[Phase] = []
    for entry in entries:
        name = "retraction" if isinstance(entry, RetractionStep) else entry.phase
        if not phases or phases[-1].name != name:
            phases.append(Phase(name))
        if isinstance(entry, Attempt):
            phases[-1].attempts.append(entry)
        elif isinstance(entry, Held):
            phases[-1].held.append(entry)
        else:
            phases[-1].retraction.append(entry)
    return phases


def _waits(
    config: SchedulerConfig,
    scheduler: Scheduler,
    seen: Witnessed,
    request_id: str | None,
    detailed: int | None,
    lost: _Lost,
    entered: Callable[[str, int], int | None] | None,
) -> list[Wait]:
    inside = scheduled(seen.plan)
    outside: dict[str, tuple[str, Attempt | None, str, str | None]] = {}
    for entry in seen.journal.entries:
        if isinstance(entry, Attempt) and entry.request_id not in inside:
            outside[entry.request_id] = (entry.phase, entry, "", None)
        elif isinstance(entry, Held):
            for name in entry.request_ids:
                if name not in inside and name not in outside:
                    outside[name] = (entry.phase, None, entry.reason, entry.by)
    known = {request.id: request for request in seen.before.requests()}
    warm = {request.id: request.keys for request in scheduler.requests() if request.keys.digests}
    trials = Trials(seen.before, config, warm)
    waits: list[Wait] = []
    for name, (phase, attempt, reason, by) in outside.items():
        request = known[name]
        tried = name == request_id if request_id is not None else detailed is None or len(waits) < detailed
        short = attempt.blocks_short - attempt.blocks_reachable if attempt is not None else 0
        waits.append(
            Wait(
                request_id=name,
                state=attempt.state if attempt is not None else request.state.title,
                tokens=len(request.tokens),
                max_new_tokens=request.max_new,
                phase=phase,
                attempt=attempt,
                reason=reason,
                by=by,
                lost=lost.of(attempt, seen.before) if attempt is not None and tried else [],
                remedies=trials.remedies(name, short) if tried else None,
                entered_round=entered(name, seen.figures.round) if entered is not None and tried else None,
            )
        )
    return waits


@dataclass(frozen=True, slots=True)
class _Lost:
    config: SchedulerConfig
    round: int
    eviction_of: EvictionOf | None

    def of(self, attempt: Attempt, scheduler: Scheduler) -> list[LostPage]:
        """The pages that ended the attempt's hit, as far as the journal names them."""
        if attempt.hit is None:
            return []
        indices = {group.group_id: at for at, group in enumerate(self.config.cache_groups)}
        pages = []
        for step in attempt.hit.steps:
            if step.missing_key is None:
                continue
            known = None
            if self.eviction_of is not None:
                known = self.eviction_of(self.round, indices[step.group_id], bytes.fromhex(step.missing_key))
            pages.append(
                LostPage(
                    step.tier,
                    step.group_id,
                    step.extent_slots,
                    step.missing_key,
                    known[0] if known else None,
                    known[1] if known else None,
                )
            )
        return pages
