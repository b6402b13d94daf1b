"""A run through prefill and decode workers as it is kept: with its trace and inputs, to be played again."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

import kvplan
from kvplan.explain.inputs import (
    AcceptFacts,
    LinkFacts,
    StorageFacts,
    accept_facts,
    accept_of,
    bandwidth_of,
    link_facts,
    link_of,
    storage_facts,
    storage_of,
)
from kvplan.explain.start import WORKERS, config_of
from kvplan.explain.trace_file import TraceHead, head_of, read_kept_trace, write_trace
from kvplan.replay.hand_off import TransferLink
from kvplan.replay.run import config_facts
from kvplan.replay.step_time import StepTime
from kvplan.replay.store import RunError, read_table
from kvplan.replay.transfers import Link, TransferTimes
from kvplan.replay.worker_inputs import WorkerInputs
from kvplan.replay.workload import parse_budget
from kvplan.traces import Trace


@dataclass(frozen=True, slots=True)
class InputFacts:
    """``WorkerInputs`` as plain values; configurations as ``run.config_facts`` has them."""

    kvplan: str
    trace: TraceHead
    config: Mapping[str, Any]
    prefill_config: Mapping[str, Any] | None
    prefill_workers: int
    decode_workers: int
    accept: AcceptFacts
    routing: str
    step_time: StepTime | None
    link: LinkFacts
    page_bytes: dict[str, float]
    write_back: LinkFacts
    load_back: LinkFacts
    budget: str | int
    speed: float
    concurrency: int | None
    max_rounds: int | None
    force_retract_every: int | None
    storage: StorageFacts | None


def write_inputs(inputs: WorkerInputs, directory: Path) -> None:
    """Write the inputs and the trace into ``directory``."""
    own, link = inputs.prefill_config, inputs.link
    facts = InputFacts(
        kvplan=kvplan.__version__,
        trace=head_of(inputs.trace),
        config=config_facts(inputs.config),
        prefill_config=None if own is None else config_facts(own),
        prefill_workers=inputs.prefill_workers,
        decode_workers=inputs.decode_workers,
        accept=accept_facts(inputs.accept),
        routing=inputs.routing,
        step_time=inputs.step_time,
        link=link_facts(Link(link.latency_ns, link.bytes_per_s)),
        page_bytes=dict(inputs.page_bytes),
        write_back=link_facts(inputs.transfer_times.write_back),
        load_back=link_facts(inputs.transfer_times.load_back),
        budget=inputs.budget,
        speed=inputs.speed,
        concurrency=inputs.concurrency,
        max_rounds=inputs.max_rounds,
        force_retract_every=inputs.force_retract_every,
        storage=storage_facts(inputs.storage),
    )
    write_trace(inputs.trace, directory)
    encoded = msgspec.json.format(msgspec.json.encode(facts), indent=2)
    (directory / WORKERS).write_bytes(encoded + b"\n")


def read_inputs(directory: Path) -> WorkerInputs | None:
    """The inputs of the run in ``directory``; None if it is none through workers.

    Raises ``RunError`` for files that are damaged.
    """
    path = directory / WORKERS
    try:
        facts = msgspec.json.decode(path.read_bytes(), type=InputFacts)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise RunError(f"{path} is not what a run through workers begins with: {error}") from None
    try:
        return _inputs(facts, read_kept_trace(directory, facts.trace))
    except RunError:
        raise
    except (ValueError, KeyError, zlib.error) as error:
        raise RunError(f"{path} is not what a run through workers begins with: {error}") from None


def check_same(directory: Path, worker: str, rounds: pl.DataFrame) -> None:
    """Check that a worker's rounds, played again, are those that were kept, as far as there are both.

    Raises ``RunError``, one sentence, naming the first that is not.
    """
    kept = read_table(directory, "rounds").filter(pl.col("worker") == worker).drop("worker")
    both = min(len(kept), len(rounds))
    if kept.head(both).equals(rounds.head(both)):
        return
    pairs = zip(kept.head(both).rows(), rounds.head(both).rows(), strict=True)
    at = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), 0)
    raise RunError(
        f"{directory} was kept by a kvplan that plans otherwise: round {at} of {worker} is not the same now; "
        "replay the trace again"
    )


def _inputs(facts: InputFacts, trace: Trace) -> WorkerInputs:
    return WorkerInputs(
        trace=trace,
        config=config_of(facts.config),
        prefill_workers=facts.prefill_workers,
        decode_workers=facts.decode_workers,
        accept=accept_of(facts.accept),
        prefill_config=None if facts.prefill_config is None else config_of(facts.prefill_config),
        routing=facts.routing,
        step_time=facts.step_time,
        link=TransferLink(facts.link.latency_ns, bandwidth_of(facts.link)),
        page_bytes=facts.page_bytes,
        transfer_times=TransferTimes(link_of(facts.write_back), link_of(facts.load_back)),
        budget=parse_budget(str(facts.budget)),
        speed=facts.speed,
        concurrency=facts.concurrency,
        max_rounds=facts.max_rounds,
        force_retract_every=facts.force_retract_every,
        storage=storage_of(facts.storage),
    )
