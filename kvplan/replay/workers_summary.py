"""The figures of a replay through prefill and decode workers, computed from its record.

Seconds, tokens, LCM blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvplan.replay.accept import AcceptLengths
from kvplan.replay.disaggregated import Disaggregated, Stuck
from kvplan.replay.hand_off import HandOff
from kvplan.replay.statistics import Spread, spread
from kvplan.replay.step_time import NS, StepTime
from kvplan.replay.summary import (
    NeverFit,
    PoolUse,
    Queue,
    RoundCounts,
    blocks_of,
    pool_use,
    queue_of,
    round_counts,
    tokens_for_all,
)
from kvplan.replay.workers import DecodeWorker, Worker
from kvplan.scheduler.config import Role, SchedulerConfig
from kvplan.traces import Trace


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """One worker. Blocks are LCM blocks; the pool and the queue over time end when the last worker's last round
    does, so that all workers' have one axis."""

    name: str
    role: str
    requests: int
    rounds: int
    busy_s: float
    prefill_tokens: int
    tokens_from_cache: int
    tokens_computed_again: int
    tokens_landed: int
    retractions: int
    blocks: int
    peak_held_blocks: int
    max_waiting: int
    pages_written: int
    pages_loaded: int
    tokens_loaded: int
    pool: PoolUse
    queue: Queue
    rounds_by_kind: RoundCounts


@dataclass(frozen=True, slots=True)
class HandOffFigures:
    """The hand-offs. Seconds: *landing wait* is how long finished prompts waited for the decode worker to
    have room, *queue* how long transfers waited for the link, *transfer* how long they took. *Pinned* are the
    prefill workers' pages from the plan that hands them out to the transfer's end."""

    count: int
    landing_wait_s: Spread | None
    queue_s: Spread | None
    transfer_s: Spread | None
    pages: int
    bytes: float
    peak_pinned_pages: int


@dataclass(frozen=True, slots=True)
class WorkersSummary:
    """Everything that the report says. Latencies are a client's: the first token comes with the landing."""

    ending: str
    trace: str
    deployment: str
    prefill_deployment: str | None
    requests: int
    finished: int
    never_fit: int
    unfinished: int
    generated_tokens: int
    duration_s: float
    first_token_s: Spread | None
    per_output_token_s: Spread | None
    end_to_end_s: Spread | None
    workers: Sequence[WorkerFigures]
    hand_off: HandOffFigures
    never_fit_requests: Sequence[NeverFit]
    limit_tokens: int
    prompt_tokens_from_cache: int | None
    prompt_tokens_computed: int
    blocks_for_all: int | None
    undeclared_requests: int
    accept_length: float
    accept_basis: str
    decode_width: int
    warnings: Sequence[str]
    relanded: int
    stuck: Sequence[Stuck]
    period_rounds: int
    routing: str
    step_time: StepTime
    step_time_given: bool
    tokens_for_all: int | None = None


def figures(
    replay: Disaggregated,
    trace: Trace,
    accept: AcceptLengths,
    step_time_given: bool = False,
    deployment: str = "",
    prefill_deployment: str | None = None,
) -> WorkersSummary:
    """Return the figures of a replay that has been played."""
    finished = replay.finished
    # Where prompts are computed; with no prefill worker here, what a decode worker found of them.
    firsts = [
        f for worker in (replay.prefill or replay.decode) for f in (*worker.finished, *worker.live.values())
    ]
    ended = [hand for hand in replay.hand_offs.values() if hand.end_ns >= 0]
    too_long = _too_long(replay)
    # One axis of time for all workers: until the last of them has played its last round.
    end_ns = max((worker.now_ns for worker in replay.workers), default=0)
    return WorkersSummary(
        ending=replay.ending,
        trace=trace.sources[0].rsplit("/", 1)[-1],
        deployment=deployment,
        prefill_deployment=prefill_deployment,
        requests=len(replay.workload),
        finished=len(finished),
        never_fit=len(replay.refused),
        unfinished=len(replay.workload) - len(finished) - len(replay.refused),
        generated_tokens=sum(flight.generated for flight in finished),
        duration_s=max((flight.finished_ns for flight in finished), default=0) / NS,
        first_token_s=spread([(f.first_token_ns - f.arrived_ns) / NS for f in finished]),
        per_output_token_s=spread(
            [
                (f.finished_ns - f.first_token_ns) / NS / (f.output_tokens - 1)
                for f in finished
                if f.output_tokens > 1 and replay.decode
            ]
        ),
        end_to_end_s=spread([(f.finished_ns - f.arrived_ns) / NS for f in finished]),
        workers=[
            *(_worker(f"prefill {at}", "P", worker, end_ns) for at, worker in enumerate(replay.prefill)),
            *(_worker(f"decode {at}", "D", worker, end_ns) for at, worker in enumerate(replay.decode)),
        ],
        hand_off=HandOffFigures(
            count=len(ended),
            landing_wait_s=spread([hand.landing_wait_ns / NS for hand in ended]),
            queue_s=spread([hand.queue_ns / NS for hand in ended]),
            transfer_s=spread([(hand.end_ns - hand.begin_ns) / NS for hand in ended]),
            pages=sum(hand.landed_pages for hand in ended),
            bytes=sum(hand.landed_bytes for hand in ended),
            peak_pinned_pages=_peak_pinned(replay.hand_offs.values()) if replay.prefill else 0,
        ),
        never_fit_requests=[
            NeverFit(flight.request_id, max(worker.needed_tokens(flight.row) for worker in replay.workers))
            for flight in replay.refused
        ],
        limit_tokens=min(worker.limit_tokens for worker in replay.workers),
        prompt_tokens_from_cache=sum(f.from_cache for f in firsts) if trace.has_prefixes else None,
        prompt_tokens_computed=sum(f.computed_prompt for f in firsts),
        blocks_for_all=max((blocks_of(*one) for one in too_long), default=None),
        tokens_for_all=max((tokens for tokens, _ in too_long), default=None),
        undeclared_requests=sum(1 for budget in replay.workload.budgets if not budget),
        accept_length=accept.mean,
        accept_basis=accept.basis,
        decode_width=replay.workers[0].decode_width,
        warnings=trace.warnings,
        relanded=sum(1 for hand in replay.hand_offs.values() if hand.landings > 1),
        stuck=replay.stuck,
        period_rounds=replay.period_rounds if replay.ending == "livelock" else 0,
        routing=replay.routing,
        step_time=replay.step_time,
        step_time_given=step_time_given,
    )


def _too_long(replay: Disaggregated) -> list[tuple[int, SchedulerConfig]]:
    """Return, for each role that has workers, the tokens of the longest refused request there and its configuration;
    nothing where none was refused."""
    workers = ((Role.P, replay.prefill), (Role.D, replay.decode))
    longest = [
        (tokens_for_all(group, replay.refused, replay.configs[role]), replay.configs[role])
        for role, group in workers
    ]
    return [(tokens, config) for tokens, config in longest if tokens is not None]


def _worker(name: str, role: str, worker: Worker, end_ns: int) -> WorkerFigures:
    flights = [*worker.finished, *worker.live.values()]
    totals, blocks = worker.totals, worker.scheduler.pool_usage().total
    pool, queue = pool_use(worker, blocks, end_ns), queue_of(worker, end_ns)
    return WorkerFigures(
        name=name,
        role=role,
        requests=len(flights),
        rounds=worker.round_index,
        busy_s=totals.busy_ns / NS,
        prefill_tokens=totals.prefill_tokens,
        tokens_from_cache=sum(flight.from_cache for flight in flights),
        tokens_computed_again=sum(flight.computed_again for flight in flights),
        tokens_landed=worker.landed_tokens if isinstance(worker, DecodeWorker) else 0,
        retractions=totals.retractions.total(),
        blocks=blocks,
        peak_held_blocks=pool.peak_held,
        max_waiting=queue.max,
        pages_written=totals.pages_written,
        pages_loaded=totals.pages_loaded,
        tokens_loaded=totals.tokens_loaded,
        pool=pool,
        queue=queue,
        rounds_by_kind=round_counts(worker),
    )


def _peak_pinned(hands: Iterable[HandOff]) -> int:
    """Return the most pages that were pinned for transfers at one time."""
    changes: list[tuple[int, int]] = []
    for hand in hands:
        if hand.ready_ns >= 0:
            changes.append((hand.ready_ns, hand.pinned_pages))
        if hand.end_ns >= 0:
            changes.append((hand.end_ns, -hand.pinned_pages))
    now = peak = 0
    for _, change in sorted(changes):
        now += change
        peak = max(peak, now)
    return peak
