"""The state of a session as bytes: the scheduler, the engine around it, and the requests still to come.

Prompts, outputs and the logs of what was played are left out: the trace has the former, the run's tables the
latter. A state is a pickle, of which ``scheduler.reading`` takes nothing but what states are made of.
"""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from kvplan.explain.observer import Observer
from kvplan.replay.rounds import EventLog, RoundLog
from kvplan.replay.run import Assumptions
from kvplan.replay.session import Session, workload_again
from kvplan.scheduler import SchedulerConfig
from kvplan.scheduler.reading import Reader, StateError
from kvplan.scheduler.snapshot import load as load_scheduler
from kvplan.scheduler.snapshot import save as save_scheduler
from kvplan.traces import Trace

LEVEL = 3


class _Writer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, session: Session) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        workload = session.engine.workload
        self._names: dict[int, tuple[str, int]] = {
            id(session.engine.scheduler): ("scheduler", 0),
            id(workload): ("workload", 0),
            id(workload.delays_ns): ("delays", 0),
        }
        for flight in session.engine.live.values():
            if flight.ids:
                self._names[id(flight.ids)] = ("output", flight.row)

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        return self._names.get(id(obj))


class _Reader(Reader):
    def __init__(self, data: bytes, named: dict[str, Any]) -> None:
        super().__init__(data)
        self._named = named

    def persistent_load(self, pid: tuple[str, int]) -> Any:
        name, row = pid
        return self._named["workload"].output(row) if name == "output" else self._named[name]


def save(session: Session) -> bytes:
    """The session's state, compressed; the session stays as it is.

    What the watch for dead ends knows is no part of it: take a state after a round in which a token landed.
    """
    engine: Any = copy.copy(session.engine)
    engine.rounds = engine.events = None
    engine.finished, engine.refused, engine.ended_now = [], [], []
    file = io.BytesIO()
    _Writer(file, session).dump((engine, session.arrivals))
    return compressed((save_scheduler(engine.scheduler), file.getvalue()))


def load(
    data: bytes, trace: Trace, config: SchedulerConfig, deployment: str, assumptions: Assumptions
) -> Session:
    """The session that ``save`` kept; what it plays from then on is what that one would have played.

    Raises ``StateError`` if ``data`` is damaged or something else.
    """
    workload = workload_again(trace, assumptions)
    scheduler_state, engine_state = _parts(expanded(data), 2)
    rows = {name: row for row, name in enumerate(workload.request_ids)}

    def prompt_of(request_id: str) -> NDArray[np.int32]:
        return trace.prompt(rows[request_id])

    named = {
        "scheduler": load_scheduler(scheduler_state, prompt_of),
        "workload": workload,
        "delays": workload.delays_ns,
    }
    engine, arrivals = _parts(_Reader(engine_state, named).read(), 2)
    engine.rounds, engine.events = RoundLog(), EventLog()
    return Session(trace, config, deployment, assumptions, engine, arrivals)


def save_part(
    session: Session, since: tuple[int, int, int, int], observer: Observer, noted: tuple[int, int, int]
) -> bytes:
    """What was logged and noted since ``counts`` was ``since`` and the observer had ``noted`` so much."""
    engine, (rounds, events, finished, refused) = session.engine, since
    file = io.BytesIO()
    _Writer(file, session).dump(
        (
            [column[rounds:] for column in engine.rounds.columns],
            [column[events:] for column in _columns(engine.events)],
            engine.finished[finished:],
            engine.refused[refused:],
            [column[noted[0] :] for column in observer.evictions.columns],
            observer.admissions[noted[1] :],
            observer.plans[noted[2] :],
        )
    )
    return compressed(file.getvalue())


def add_part(part: bytes, session: Session, observer: Observer) -> None:
    """Add what ``save_part`` kept to a session's logs and an observer's notes, which it follows."""
    engine = session.engine
    kept = _Reader(expanded(part), {"workload": engine.workload}).read()
    rounds, events, finished, refused, evictions, admissions, plans = _parts(kept, 7)
    for column, more in zip(engine.rounds.columns, rounds, strict=True):
        column.extend(more)
    for log, entries in zip(_columns(engine.events), events, strict=True):
        log.extend(entries)
    engine.finished += finished
    engine.refused += refused
    for column, more in zip(observer.evictions.columns, evictions, strict=True):
        column.extend(more)
    observer.admissions += admissions
    observer.plans.extend(plans)


def _columns(log: EventLog) -> list[list[Any]]:
    return [log.rounds, log.times_ns, log.kinds, log.request_ids, log.tokens, log.states, log.others]


def _parts(value: Any, count: int) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or len(value) != count:
        raise StateError(f"a state cannot be read: {count} parts are expected, this is something else")
    return value


def counts(session: Session) -> tuple[int, int, int, int]:
    """How much the session has logged."""
    engine = session.engine
    return len(engine.rounds), len(engine.events), len(engine.finished), len(engine.refused)


def compressed(value: Any) -> bytes:
    """Plain bytes and tuples of bytes, packed."""
    packer = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    return packer.compress(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


def expanded(data: bytes) -> Any:
    """What was ``compressed``. Raises ``StateError`` if it is something else."""
    try:
        plain = zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise StateError(f"a state cannot be read: {error}") from None
    return _Reader(plain, {}).read()
