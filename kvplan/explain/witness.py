"""One round seen from close by: the scheduler as it was before its plan, and what its journal tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from kvplan.replay.engine import Engine
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


class Watch:
    """Watches an engine's next round, from when it is made until ``done``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._scheduler = engine.scheduler
        self._seen = _Witness(engine.scheduler)
        engine.scheduler = cast(Scheduler, self._seen)

    def done(self) -> Witnessed | None:
        """Leave the engine as it was, and tell of its round; None if it has played none."""
        engine, seen = self._engine, self._seen
        engine.scheduler = self._scheduler
        if seen.before is None or seen.journal_round is None or seen.plan is None:
            return None
        figures = Round(*(engine.rounds.column(name)[-1] for name in ROUND_COLUMNS))
        return Witnessed(seen.before, seen.journal_round, figures, seen.plan)


def witness(session: Session) -> Witnessed:
    """Play the session's next round and tell of it."""
    watch = Watch(session.engine)
    try:
        session.play(session.round + 1)
    finally:
        seen = watch.done()
    assert seen is not None
    return seen
