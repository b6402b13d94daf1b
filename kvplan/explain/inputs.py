"""What a session was begun with, as plain data, so that any build can play it again from its first round."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kvplan.replay.accept import AcceptLengths
from kvplan.replay.run import Assumptions
from kvplan.replay.session import Session, begin
from kvplan.replay.storage import Storage
from kvplan.replay.transfers import Link, TransferTimes
from kvplan.replay.workload import parse_budget
from kvplan.scheduler import SchedulerConfig
from kvplan.traces import Trace

TABLE = "<u4"


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """A link of the host tier; ``bytes_per_s`` None: a transfer takes its latency alone. Pages by group index."""

    latency_ns: int
    bytes_per_s: float | None
    page_bytes: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """The storage tier at the start."""

    share: float
    failure_rate: float
    seed: int
    request_ids: Sequence[str] | None


@dataclass(frozen=True, slots=True)
class Inputs:
    """What ``Assumptions`` tells in short: accepted lengths, links and storage, whole.

    ``accept_table`` are 32-bit numbers, little-endian, packed by zlib: a table can have 65,536 entries.
    """

    accept_table: bytes
    accept_stride: int
    accept_basis: str
    write_back: LinkFacts
    load_back: LinkFacts
    storage: StorageFacts | None


def inputs_of(session: Session) -> Inputs:
    """The inputs of a session that has not played a round yet."""
    engine = session.engine
    storage = engine.storage
    return Inputs(
        accept_table=zlib.compress(np.array(engine.accept.table, TABLE).tobytes(), 9),
        accept_stride=engine.accept.stride,
        accept_basis=engine.accept.basis,
        write_back=_facts(engine.transfer_times.write_back),
        load_back=_facts(engine.transfer_times.load_back),
        storage=None
        if storage is None
        else StorageFacts(
            storage.share,
            storage.failure_rate,
            storage.seed,
            None if storage.request_ids is None else sorted(storage.request_ids),
        ),
    )


def begun_again(
    trace: Trace, config: SchedulerConfig, deployment: str, given: Assumptions, inputs: Inputs
) -> Session:
    """The session before its first round, as it was begun then."""
    table: list[int] = np.frombuffer(zlib.decompress(inputs.accept_table), TABLE).tolist()
    kept = inputs.storage
    session = begin(
        trace,
        config,
        deployment=deployment,
        step_time=given.step_time,
        accept=AcceptLengths(table, inputs.accept_stride, inputs.accept_basis),
        max_new_tokens=parse_budget(given.max_new_tokens),
        speed=given.speed,
        concurrency=given.concurrency,
        seed=given.seed,
        transfer_times=TransferTimes(_link(inputs.write_back), _link(inputs.load_back)),
        storage=None
        if kept is None
        else Storage(
            kept.share,
            kept.failure_rate,
            kept.seed,
            None if kept.request_ids is None else frozenset(kept.request_ids),
        ),
        force_retract_every=given.force_retract_every,
    )
    session.assumptions = given
    return session


def _facts(link: Link) -> LinkFacts:
    speed = None if math.isinf(link.bytes_per_s) else link.bytes_per_s
    return LinkFacts(link.latency_ns, speed, dict(link.page_bytes))


def _link(facts: LinkFacts) -> Link:
    return Link(
        facts.latency_ns,
        math.inf if facts.bytes_per_s is None else facts.bytes_per_s,
        dict(facts.page_bytes),
    )
