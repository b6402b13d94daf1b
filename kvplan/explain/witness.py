"""One round seen from close by: the scheduler as it was before its plan, and what its journal tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from kvplan.replay.rounds import ROUND_COLUMNS, Round
from kvplan.replay.session import Session
from kvplan.scheduler import ExecutionPlan, Scheduler
from kvplan.scheduler.journal import Journal, RoundJournal
from kvplan.scheduler.snapshot import copy_of


@dataclass(frozen=True, slots=True)
class Witnessed:
    """A round: the scheduler just before the plan, everything submitted; the journal; the round's figures."""

    before: Scheduler
    journal: RoundJournal
    figures: Round
    plan: ExecutionPlan


class _Witness:
    """Stands in for a scheduler and keeps what its next plan is made of; all else is passed through."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.before: Scheduler | None = None
        self.journal_round: RoundJournal | None = None
        self.plan: ExecutionPlan | None = None

    def next_execution_plan(self) -> ExecutionPlan:
        scheduler = self.scheduler
        self.before = copy_of(scheduler)
        journal, scheduler.journal = scheduler.journal, Journal()
        try:
            self.plan = scheduler.next_execution_plan()
            self.journal_round = scheduler.journal.round
        finally:
            scheduler.journal = journal
        return self.plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scheduler, name)


def witness(session: Session) -> Witnessed:
    """Play the session's next round and tell of it."""
    engine = session.engine
    scheduler = engine.scheduler
    seen = _Witness(scheduler)
    engine.scheduler = cast(Scheduler, seen)
    try:
        session.play(session.round + 1)
    finally:
        engine.scheduler = scheduler
    assert seen.before is not None
    assert seen.journal_round is not None
    assert seen.plan is not None
    figures = Round(*(engine.rounds.column(name)[-1] for name in ROUND_COLUMNS))
    return Witnessed(seen.before, seen.journal_round, figures, seen.plan)
