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
class AcceptFacts:
    """Accepted lengths; ``table`` are 32-bit numbers, little-endian, packed by zlib: it can have 65,536 entries."""

    table: bytes
    stride: int
    basis: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """What ``Assumptions`` tells in short: accepted lengths, links and storage, whole."""

    accept: AcceptFacts
    write_back: LinkFacts
    load_back: LinkFacts
    storage: StorageFacts | None


def inputs_of(session: Session) -> Inputs:
    """The inputs of a session that has not played a round yet."""
    engine = session.engine
    return Inputs(
        accept=accept_facts(engine.accept),
        write_back=link_facts(engine.transfer_times.write_back),
        load_back=link_facts(engine.transfer_times.load_back),
        storage=storage_facts(engine.storage),
    )


def begun_again(
    trace: Trace, config: SchedulerConfig, deployment: str, given: Assumptions, inputs: Inputs
) -> Session:
    """The session before its first round, as it was begun then."""
    session = begin(
        trace,
        config,
        deployment=deployment,
        step_time=given.step_time,
        accept=accept_of(inputs.accept),
        max_new_tokens=parse_budget(given.max_new_tokens),
        speed=given.speed,
        concurrency=given.concurrency,
        seed=given.seed,
        transfer_times=TransferTimes(link_of(inputs.write_back), link_of(inputs.load_back)),
        storage=storage_of(inputs.storage),
        force_retract_every=given.force_retract_every,
    )
    session.assumptions = given
    return session


def accept_facts(accept: AcceptLengths) -> AcceptFacts:
    """Accepted lengths as plain data."""
    packed = zlib.compress(np.array(accept.table, TABLE).tobytes(), 9)
    return AcceptFacts(packed, accept.stride, accept.basis)


def accept_of(facts: AcceptFacts) -> AcceptLengths:
    """The accepted lengths that ``facts`` are of."""
    table: list[int] = np.frombuffer(zlib.decompress(facts.table), TABLE).tolist()
    return AcceptLengths(table, facts.stride, facts.basis)


def link_facts(link: Link) -> LinkFacts:
    """A link as plain data."""
    speed = None if math.isinf(link.bytes_per_s) else link.bytes_per_s
    return LinkFacts(link.latency_ns, speed, dict(link.page_bytes))


def link_of(facts: LinkFacts) -> Link:
    """The link that ``facts`` are of, with nothing in flight."""
    return Link(facts.latency_ns, bandwidth_of(facts), dict(facts.page_bytes))


def bandwidth_of(facts: LinkFacts) -> float:
    """The bytes a second of a link; infinite where there is no limit."""
    return math.inf if facts.bytes_per_s is None else facts.bytes_per_s


def storage_facts(storage: Storage | None) -> StorageFacts | None:
    """A storage tier at the start as plain data."""
    if storage is None:
        return None
    named = None if storage.request_ids is None else sorted(storage.request_ids)
    return StorageFacts(storage.share, storage.failure_rate, storage.seed, named)


def storage_of(facts: StorageFacts | None) -> Storage | None:
    """The storage tier that ``facts`` are of, before anything was drawn of it."""
    if facts is None:
        return None
    named = None if facts.request_ids is None else frozenset(facts.request_ids)
    return Storage(facts.share, facts.failure_rate, facts.seed, named)
