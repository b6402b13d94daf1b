"""A run that was kept: its summary and tables, and the session as it was before any round."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

import kvplan
from kvplan.explain import states
from kvplan.explain.inputs import begun_again
from kvplan.explain.live import Live
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
    _live: Live | None = field(default=None, repr=False)

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

    @property
    def foreign(self) -> bool:
        """Whether another build kept it, whose states are of no use to this one."""
        return self.start.kvplan != kvplan.__version__ or self.start.code != code_stamp()

    def session_at(self, round_index: int) -> Session:
        """The session with ``round_index`` as the round that is played next.

        Later than that where the round was skipped as a repetition; earlier where the run ends before. Without a
        state that can be used (another build's, or none) the run is played from its first round on. Raises
        ``RunError`` where that comes out differently up to the round, which is checked plan by plan.
        """
        at = 0 if self.foreign else bisect_right(self.states, round_index)
        if not at:
            return self._again(round_index)
        session = self._load(self.states[at - 1])
        if session.round < round_index:
            session.play(round_index)
        return session

    def check_again(self) -> None:
        """Play a run whose states are of no use again; raise ``RunError`` if its plans do not come out the same."""
        if self.foreign:
            self._again(int(self.table("plans")["round"].max() or 0))  # type: ignore[arg-type]

    def begun(self) -> Session:
        """The session before its first round. Raises ``RunError`` if it cannot be begun again."""
        if not self.foreign and self.states[:1] == [0]:
            return self._load(0)
        start = self.start
        if start.inputs is None:
            raise RunError(
                f"{self.directory} was made by {_maker(start.kvplan)}, whose states this one does not read, and holds "
                "nothing that it could be played again with; replay the trace again with --output"
            )
        return begun_again(self.trace, self.config, start.deployment, start.assumptions, start.inputs)

    def _again(self, round_index: int) -> Session:
        """The same by playing from the first round on."""
        kept = self.table("plans")
        if self._live is None:
            self._live = Live(self.begun())
        live = self._live
        if live.session.round <= round_index:
            live.play(lambda session: session.engine.round_index > round_index)
        made = live.table("plans")
        made, kept = (table.filter(pl.col("round") <= round_index) for table in (made, kept))
        parted = first_parting(kept, made)
        if parted is not None:
            raise RunError(
                f"{self.directory} was made by {_maker(self.start.kvplan)}, and this one plans differently from "
                f"round {parted:,} on; replay the trace again with --output"
            )
        return live.session_at(round_index)

    def _load(self, round_index: int) -> Session:
        path = state_path(self.directory, round_index)
        if self.foreign:
            raise RunError(
                f"{self.directory} is unfinished and was made by {_maker(self.start.kvplan)}, whose states this one "
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


def first_parting(first: pl.DataFrame, second: pl.DataFrame) -> int | None:
    """The first round in which two tables of plans differ, as far as both go; None: they do not."""
    both = min(len(first), len(second))
    left, right = first.head(both), second.head(both)
    parted = ((left["plan"] != right["plan"]) | (left["round"] != right["round"])).arg_true()
    if not len(parted):
        return None
    at = int(parted[0])
    return int(min(left["round"][at], right["round"][at]))


def _maker(version: str) -> str:
    """A build of the program, in words."""
    return f"another build of kvplan {version}" if version == kvplan.__version__ else f"kvplan {version}"


def open_record(directory: Path) -> Record:
    """The run in ``directory``. Raises ``RunError``, one sentence, when there is none that can be read."""
    start = read_start(directory)
    trace = read_kept_trace(directory, start.trace)
    unfinished = not (directory / SUMMARY).is_file()
    paths = sorted((directory / STATES).glob("*.state"))
    known = [int(path.stem) for path in paths if path.stem.isdigit()]
    if unfinished:  # a state counts once what was logged up to it is there too
        known = [at for at in known if at == 0 or part_path(directory, at).is_file()]
    if unfinished and not known:
        raise RunError(f"{directory / STATES} holds no state; replay the trace again with --output")
    return Record(directory, start, trace, unfinished, known)


def summary_of(directory: Path) -> tuple[RunSummary, bool]:
    """A run's figures, and whether it is unfinished. Raises ``RunError`` when there is no run."""
    if (directory / SUMMARY).is_file():
        return read_summary(directory), False
    return open_record(directory).summary, True
