"""Keeps a run in a directory while it is made, so that one that is cut short can still be asked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import polars as pl

import kvplan
from kvplan.explain import states
from kvplan.explain.inputs import inputs_of
from kvplan.explain.observer import Observer
from kvplan.explain.start import START, Start, code_stamp, write_start
from kvplan.explain.tables import notes
from kvplan.explain.trace_file import TABLE, TOKENS, head_of, write_trace
from kvplan.replay.play import Progress
from kvplan.replay.run import Run, config_facts
from kvplan.replay.session import Session
from kvplan.replay.store import SUMMARY, TABLES, RunError, check_output

EVERY = 4_000
"""Rounds between two states: about a second of replay, or many where requests crowd."""

FIRST = 250
"""The first state is taken after so many rounds, and the next ones at twice as many until they are ``EVERY`` apart:
a run that is cut short early has something to tell."""

STATES = "states"


def check_record(directory: Path, *, force: bool = False) -> None:
    """Raise ``RunError`` if a run cannot be kept in ``directory``; ``force`` replaces a run, finished or not.

    One that holds anything else is left alone: that would be lost with it.
    """
    begun = (directory / START).is_file() or (
        directory / STATES
    ).is_dir()  # killed in its first moments: the latter
    if force and not directory.is_symlink() and begun:
        foreign = sorted(path.name for path in directory.iterdir() if not _ours(path.name))
        if foreign:
            raise RunError(
                f"output {directory} holds {foreign[0]}, which is no part of a run; --force replaces only a run"
            )
        return
    check_output(directory, force=force)


def record(
    session: Session,
    directory: Path,
    *,
    force: bool = False,
    every: int = EVERY,
    max_rounds: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Run:
    """Play ``session`` from its first round on and keep everything in ``directory``.

    The tables and ``run.json`` are written at the end; until then there are states and what was logged
    between them. Raises ``RunError`` when something is there already (``check_record``) or cannot be written.
    """
    check_record(directory, force=force)
    try:
        recorder = Recorder(session, directory, every)
        recorder.begin()

        def after_round() -> bool:
            recorder.after_round()
            return stop is not None and stop()

        try:
            ending, dead_end = session.play(max_rounds, progress=progress, stop=after_round)
        finally:
            recorder.observer.detach()
        run = session.run(ending, dead_end)
        recorder.end(run)
    except OSError as error:
        raise RunError(f"output {directory} cannot be written: {error.strerror or error}") from None
    return run


class Recorder:
    """Writes one session's run as it is played."""

    def __init__(self, session: Session, directory: Path, every: int) -> None:
        self.session = session
        self.directory = directory
        self.every = every
        names = session.engine.workload.request_ids
        self.observer = Observer(session.engine, {name: row for row, name in enumerate(names)})
        self._next = min(every, FIRST)
        self._kept = states.counts(session)
        self._noted = (0, 0, 0)

    def begin(self) -> None:
        """Make the directory, with what the run begins with."""
        directory, session = self.directory, self.session
        if directory.exists():
            shutil.rmtree(directory)
        (directory / STATES).mkdir(parents=True)
        write_trace(session.trace, directory)
        self._write(state_path(directory, session.round), states.save(session))
        start = Start(
            kvplan.__version__,
            head_of(session.trace),
            session.deployment,
            config_facts(session.config),
            session.assumptions,
            code_stamp(),
            inputs_of(session),
        )
        write_start(start, directory)
        self.observer.attach()

    def after_round(self) -> None:
        """Keep a state if it is time for one; only after a round that got somewhere (see ``states.save``)."""
        session = self.session
        engine = session.engine
        if engine.round_index >= self._next and (engine.gained_now or engine.ended_now):
            self._next = engine.round_index + min(self.every, max(engine.round_index, FIRST))
            self.observer.detach()
            self._write(state_path(self.directory, session.round), states.save(session))
            observer = self.observer
            noted = self._noted
            part = states.save_part(session, self._kept, observer, noted)
            self._write(part_path(self.directory, session.round), part)
            self._kept = states.counts(session)
            self._noted = (len(observer.evictions), len(observer.admissions), len(observer.plans))
            observer.attach()

    def end(self, run: Run) -> None:
        """Write the tables and, last of all, the summary, by which a run is known to be whole."""
        directory = self.directory
        for name in TABLES:
            table: pl.DataFrame = getattr(run, name)
            table.write_parquet(directory / f"{name}.parquet")
        for name, noted in notes(self.observer, run.rounds).items():
            noted.write_parquet(directory / f"{name}.parquet")
        encoded = msgspec.json.format(msgspec.json.encode(run.summary), indent=2)
        self._write(directory / SUMMARY, encoded + b"\n")
        for part in (directory / STATES).glob("*.part"):
            part.unlink()

    def _write(self, path: Path, data: bytes) -> None:
        fresh = path.with_name(f".{path.name}")
        try:
            fresh.write_bytes(data)
            os.replace(fresh, path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise


def _ours(name: str) -> bool:
    """Whether a run's directory may hold something of this name; what begins with a dot was being written."""
    tables = (*TABLES, "admissions", "evictions", "plans")
    known = {START, SUMMARY, STATES, TABLE, TOKENS, *(f"{table}.parquet" for table in tables)}
    return name in known or name.removeprefix(".") in known


def state_path(directory: Path, round_index: int) -> Path:
    """Where the state before a round is kept."""
    return directory / STATES / f"{round_index:09}.state"


def part_path(directory: Path, round_index: int) -> Path:
    """Where what was logged up to a round is kept until the run is whole."""
    return directory / STATES / f"{round_index:09}.part"
