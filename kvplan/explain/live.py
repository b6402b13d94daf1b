"""A run that is played only as far as a question needs, and kept in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import polars as pl

from kvplan.explain import states
from kvplan.explain.observer import Observer
from kvplan.explain.recorder import EVERY
from kvplan.explain.tables import notes
from kvplan.replay.dead_end import DeadEnd
from kvplan.replay.play import Ending, Progress
from kvplan.replay.run import in_seconds, requests_table
from kvplan.replay.session import Session


class Live:
    """A session that is played, with states on the way to go back to."""

    def __init__(self, session: Session, every: int = EVERY) -> None:
        self.session = session
        self.every = every
        names = session.engine.workload.request_ids
        self.observer = Observer(session.engine, {name: row for row, name in enumerate(names)})
        self._states = {session.round: states.save(session)}
        self.ending = Ending.INTERRUPTED
        self.dead_end: DeadEnd | None = None

    @property
    def request_ids(self) -> Sequence[str]:
        """The trace's requests, by row."""
        return self.session.engine.workload.request_ids

    def play(
        self,
        enough: Callable[[Session], bool],
        *,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Ending:
        """Play until ``enough`` says so after a round, or the end; how it ended."""
        session, observer = self.session, self.observer
        after = session.round + self.every

        def stops() -> bool:
            nonlocal after
            engine = session.engine
            if engine.round_index >= after and (engine.gained_now or engine.ended_now):
                after = engine.round_index + self.every
                observer.detach()
                self._states[session.round] = states.save(session)
                observer.attach()
            return enough(session) or (stop is not None and stop())

        observer.attach()
        try:
            self.ending, self.dead_end = session.play(progress=progress, stop=stops)
        finally:
            observer.detach()
        return self.ending

    def table(self, name: str) -> pl.DataFrame:
        """rounds, events, requests, admissions, evictions or plans so far."""
        session, engine = self.session, self.session.engine
        if name in ("rounds", "events"):
            return in_seconds(engine.events.table() if name == "events" else engine.rounds.table())
        if name == "requests":
            return requests_table(engine, session.trace)
        return notes(self.observer, engine.rounds.table())[name]

    def session_at(self, round_index: int) -> Session:
        """The session before a round, played again from the last state before it."""
        known = sorted(self._states)
        at = known[bisect_right(known, round_index) - 1]
        kept = self.session
        session = states.load(self._states[at], kept.trace, kept.config, kept.deployment, kept.assumptions)
        if session.round < round_index:
            session.play(round_index)
        return session
