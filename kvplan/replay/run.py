"""A replay as plain data: what was played, under which assumptions, and what came of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

import polars as pl

import kvplan
from kvplan.replay.dead_end import DeadEnd
from kvplan.replay.engine import Engine
from kvplan.replay.play import Ending
from kvplan.replay.step_time import NS, StepTime
from kvplan.replay.storage import Storage
from kvplan.replay.summary import Summary, summarize
from kvplan.replay.transfers import TransferTimes
from kvplan.scheduler import SchedulerConfig
from kvplan.traces import Trace


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """The trace that was played. `span_s` is from the first arrival to the last, before `--speed`."""

    sources: Sequence[str]
    format: str
    requests: int
    span_s: float
    has_prefixes: bool
    hash_tokens: int | None
    fingerprint: str
    warnings: Sequence[str]


@dataclass(frozen=True, slots=True)
class TierAssumptions:
    """What the replay takes for granted of the host and storage tiers: seconds, bytes a second (None: a transfer
    takes its latency alone), shares from 0 to 1.

    Storage holds `storage_share` of the prompts at the start, or those of `storage_requests` named requests.
    """

    write_back_latency_s: float
    write_back_bytes_per_s: float | None
    load_back_latency_s: float
    load_back_bytes_per_s: float | None
    storage_share: float
    storage_requests: int | None
    storage_failure_rate: float


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What the replay takes for granted: the step time, accepted lengths, arrivals, declared budgets, tiers.

    `accept_length` is the mean of accepted tokens a decode step, `accept_basis` where it comes from.
    `max_new_tokens` says what requests declare: "trace", "output", "none" or a number. `tiers` is None without
    a host pool. `force_retract_every` is in rounds, None where nothing is retracted on purpose.
    """

    step_time: StepTime
    step_time_given: bool
    accept_length: float
    accept_basis: str
    speed: float
    concurrency: int | None
    max_new_tokens: str
    undeclared_requests: int
    seed: int
    tiers: TierAssumptions | None = None
    force_retract_every: int | None = None


def tier_assumptions(times: TransferTimes, storage: Storage | None) -> TierAssumptions:
    """Return what is assumed of tiers with these links and this storage."""
    named = None if storage is None or storage.request_ids is None else len(storage.request_ids)
    return TierAssumptions(
        write_back_latency_s=times.write_back.latency_ns / NS,
        write_back_bytes_per_s=_finite(times.write_back.bytes_per_s),
        load_back_latency_s=times.load_back.latency_ns / NS,
        load_back_bytes_per_s=_finite(times.load_back.bytes_per_s),
        storage_share=0.0 if storage is None else storage.share,
        storage_requests=named,
        storage_failure_rate=0.0 if storage is None else storage.failure_rate,
    )


def _finite(bandwidth: float) -> float | None:
    return None if math.isinf(bandwidth) else bandwidth


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Everything a report of a replay needs; the same for a replay that was just made and a stored one."""

    kvplan: str
    ending: Ending
    trace: TraceFacts
    deployment: str
    config: Mapping[str, object]
    assumptions: Assumptions
    figures: Summary
    dead_end: DeadEnd | None


@dataclass(frozen=True, slots=True)
class Run:
    """A replay's summary and its tables."""

    summary: RunSummary
    requests: pl.DataFrame
    rounds: pl.DataFrame
    events: pl.DataFrame


def run_of(
    engine: Engine,
    ending: Ending,
    dead_end: DeadEnd | None,
    trace: Trace,
    config: SchedulerConfig,
    deployment: str,
    assumptions: Assumptions,
) -> Run:
    """Return the record of what `engine` has played."""
    summary = RunSummary(
        kvplan=kvplan.__version__,
        ending=ending,
        trace=trace_facts(trace),
        deployment=deployment,
        config=config_facts(config),
        assumptions=assumptions,
        figures=summarize(engine, config, trace.has_prefixes),
        dead_end=dead_end,
    )
    return Run(
        summary=summary,
        requests=requests_table(engine, trace),
        rounds=in_seconds(engine.rounds.table()),
        events=in_seconds(engine.events.table()),
    )


def trace_facts(trace: Trace) -> TraceFacts:
    """Return what is told of the trace."""
    return TraceFacts(
        sources=trace.sources,
        format=trace.format,
        requests=len(trace),
        span_s=float(trace.table["arrival_s"][-1]),
        has_prefixes=trace.has_prefixes,
        hash_tokens=trace.hash_tokens,
        fingerprint=trace.fingerprint,
        warnings=trace.warnings,
    )


def config_facts(config: SchedulerConfig) -> dict[str, object]:
    """Return the scheduler's configuration as plain values, names of choices instead of numbers."""
    facts: dict[str, object] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name == "cache_groups":
            facts[field.name] = [
                {part.name: _plain(getattr(group, part.name)) for part in fields(group)} for group in value
            ]
        else:
            facts[field.name] = _plain(value)
    return facts


def _plain(value: object) -> object:
    return value.name if isinstance(value, IntEnum) else value


def in_seconds(table: pl.DataFrame) -> pl.DataFrame:
    """Return the table with each column of nanoseconds (`*_ns`) as seconds (`*_s`)."""
    return pl.DataFrame([_in_seconds(column) for column in table])


def _in_seconds(column: pl.Series) -> pl.Series:
    if not column.name.endswith("_ns"):
        return column
    # NumPy divides; Polars multiplies by the reciprocal, which is off in the last digit.
    return pl.Series(column.name.removesuffix("_ns") + "_s", column.to_numpy() / NS)


def requests_table(engine: Engine, trace: Trace) -> pl.DataFrame:
    """Return a row for each request of the trace, in its order.

    `status`: finished, never fits, unfinished (it came and has not ended), not arrived. Times are null where
    they have not come; token columns as in `TokenCounts`.
    """
    flights = {flight.row: flight for flight in (*engine.finished, *engine.live.values())}
    refused = {flight.row: flight for flight in engine.refused}
    rows: list[dict[str, object]] = []
    workload = engine.workload
    for row in range(len(workload)):
        flight = flights.get(row) or refused.get(row)
        status = "not arrived"
        if flight is not None:
            ended = "unfinished" if flight.finished_ns < 0 else "finished"
            status = "never fits" if row in refused else ended
        rows.append(
            {
                "request_id": workload.request_ids[row],
                "status": status,
                "arrived_s": seconds(flight.arrived_ns) if flight else None,
                "admitted_s": seconds(flight.admitted_ns) if flight else None,
                "first_token_s": seconds(flight.first_token_ns) if flight else None,
                "finished_s": seconds(flight.finished_ns) if flight else None,
                "prompt_tokens": workload.prompt_tokens[row],
                "output_tokens": workload.output_tokens[row],
                "max_new_tokens": workload.budgets[row] or None,
                "generated_tokens": flight.generated if flight else 0,
                "prompt_computed": flight.computed_prompt if flight else 0,
                "prompt_from_cache": flight.from_cache if flight else 0,
                "refed_output": flight.computed_output if flight else 0,
                "computed_again": flight.computed_again if flight else 0,
                "from_cache_again": flight.cache_again if flight else 0,
                "retractions": flight.retractions if flight else 0,
            }
        )
    times = dict.fromkeys(("arrived_s", "admitted_s", "first_token_s", "finished_s"), pl.Float64)
    table = pl.DataFrame(rows, schema_overrides={**times, "max_new_tokens": pl.Int64}, infer_schema_length=1)
    return table.with_columns(session_id=trace.table["session_id"], line=trace.table["line"])


def seconds(ns: int) -> float | None:
    return None if ns < 0 else ns / NS
