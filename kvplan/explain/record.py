"""A run that was kept: its summary and tables, and the session as it was before any round."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

import kvplan
from kvplan.explain import states
from kvplan.explain.observer import Observer
from kvplan.explain.recorder import STATES, part_path, state_path
from kvplan.explain.start import Start, code_stamp, config_of, read_start
from kvplan.explain.tables import notes
from kvplan.explain.trace_file import read_kept_trace
from kvplan.replay.play import Ending
from kvplan.replay.run import RunSummary
from kvplan.replay.session import Session
from kvplan.replay.store import SUMMARY, RunError, read_summary, read_table
from kvplan.scheduler import SchedulerConfig
from kvplan.scheduler.reading import StateError
from kvplan.traces import Trace


@dataclass(slots=True)
class Record:
    """A run on disk. ``unfinished``: it was cut short (or still goes on); it reaches up to its last state."""

    directory: Path
    start: Start
    trace: Trace
    unfinished: bool
    states: list[int]
    _recovered: Recovered | None = field(default=None, repr=False)

    @property
    def config(self) -> SchedulerConfig:
        """The scheduler's configuration."""
        return config_of(self.start.config)

    @property
    def summary(self) -> RunSummary:
        """The run's figures."""
        return self._recover().summary if self.unfinished else read_summary(self.directory)

    def table(self, name: str) -> pl.DataFrame:
        """A table: requests, rounds, events, admissions, evictions or plans."""
        return self._recover().tables[name] if self.unfinished else read_table(self.directory, name)

    @property
    def request_ids(self) -> Sequence[str]:
        """The trace's requests, by row."""
        return self.trace.table["request_id"].to_list()

    def session_at(self, round_index: int) -> Session:
        """The session with ``round_index`` as the round that is played next.

        Later than that where the round was skipped as a repetition; earlier where the run ends before.
        """
        at = bisect_right(self.states, round_index)
        if not at:
            raise RunError(f"{self.directory} holds no state before round {round_index:,}; replay it again")
        session = self._load(self.states[at - 1])
        if session.round < round_index:
            session.play(round_index)
        return session

    def _load(self, round_index: int) -> Session:
        path = state_path(self.directory, round_index)
        if self.start.kvplan != kvplan.__version__:
            raise RunError(
                f"{self.directory} was made by kvplan {self.start.kvplan}, this is {kvplan.__version__}; "
                "replay the trace again with --output"
            )
        if self.start.code != code_stamp():
            raise RunError(
                f"{self.directory} was made by another build of kvplan {kvplan.__version__}, whose states this one "
                "does not read; replay the trace again with --output"
            )
        try:
            data = path.read_bytes()
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror}") from None
        start = self.start
        try:
            return states.load(data, self.trace, self.config, start.deployment, start.assumptions)
        except StateError as error:
            raise RunError(f"{path}: {error}; replay the trace again with --output") from None

    def _add(self, path: Path, session: Session, observer: Observer) -> None:
        try:
            states.add_part(path.read_bytes(), session, observer)
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror}") from None
        except StateError as error:
            raise RunError(f"{path}: {error}; replay the trace again with --output") from None

    def _recover(self) -> Recovered:
        """What an unfinished run had come to at its last state."""
        if self._recovered is None:
            session = self._load(self.states[-1])
            names = session.engine.workload.request_ids
            observer = Observer(session.engine, {name: row for row, name in enumerate(names)})
            for round_index in self.states[1:]:
                self._add(part_path(self.directory, round_index), session, observer)
            run = session.run(Ending.INTERRUPTED)
            tables = {
                "requests": run.requests,
                "rounds": run.rounds,
                "events": run.events,
                **notes(observer, run.rounds),
            }
            self._recovered = Recovered(run.summary, tables)
        return self._recovered


@dataclass(frozen=True, slots=True)
class Recovered:
    """What there is of an unfinished run."""

    summary: RunSummary
    tables: dict[str, pl.DataFrame]


def open_record(directory: Path) -> Record:
    """The run in ``directory``. Raises ``RunError``, one sentence, when there is none that can be read."""
    start = read_start(directory)
    trace = read_kept_trace(directory, start.trace)
    unfinished = not (directory / SUMMARY).is_file()
    paths = sorted((directory / STATES).glob("*.state"))
    known = [int(path.stem) for path in paths if path.stem.isdigit()]
    if unfinished:  # a state counts once what was logged up to it is there too
        known = [at for at in known if at == 0 or part_path(directory, at).is_file()]
    if not known:
        raise RunError(f"{directory / STATES} holds no state; replay the trace again with --output")
    return Record(directory, start, trace, unfinished, known)


def summary_of(directory: Path) -> tuple[RunSummary, bool]:
    """A run's figures, and whether it is unfinished. Raises ``RunError`` when there is no run."""
    if (directory / SUMMARY).is_file():
        return read_summary(directory), False
    return open_record(directory).summary, True
