"""The report of a replay through prefill and decode workers: both sides and the hand-off between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
from rich.text import Text

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
    blocks_for_all,
    pool_use,
    queue_of,
    round_counts,
)
from kvplan.replay.workers import DecodeWorker, Worker
from kvplan.reports.replay_units import (
    counted,
    duration,
    folded,
    grouped,
    percent,
    rounds_time,
    sparkline,
    step_words,
    tokens,
)
from kvplan.scheduler.config import Role
from kvplan.traces import Trace

LABEL = 12
NAMED = 2
WITHOUT_PAGES = ("Bootstrapping", "Submitted", "Retracted")


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
        blocks_for_all=_blocks_for_all(replay),
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


def _blocks_for_all(replay: Disaggregated) -> int | None:
    """Return the LCM blocks of each worker with which none would refuse a request; None where none did."""
    workers = ((Role.P, replay.prefill), (Role.D, replay.decode))
    needed = [blocks_for_all(group, replay.refused, replay.configs[role]) for role, group in workers if group]
    return max((blocks for blocks in needed if blocks is not None), default=None)


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


def workers_json(summary: WorkersSummary) -> str:
    """Return the summary as JSON with a last newline; names and order are those of the dataclasses."""
    return msgspec.json.format(msgspec.json.encode(summary), indent=2).decode() + "\n"


def workers_text(summary: WorkersSummary, width: int = 80) -> Text:
    """Return the report at ``width`` columns."""
    report = Text(overflow="ignore", no_wrap=True)
    good = summary.ending == "complete"
    result = "bold green" if good else "bold red"
    for line in _lines(summary):
        style = {"RESULT": result, "try": "cyan", "warning": "yellow"}.get(line.split(" ", 1)[0], "")
        for part in folded(line, width, LABEL):
            report.append(part + "\n", style=style)
    return report


def _lines(summary: WorkersSummary) -> list[str]:
    prefill = sum(worker.role == "P" for worker in summary.workers)
    decode = len(summary.workers) - prefill
    lines = [
        f"{summary.trace}: {counted(summary.requests, 'request')} through "
        f"{counted(prefill, 'prefill worker')} and {counted(decode, 'decode worker')} ({summary.routing})",
        f"{'step':{LABEL}}{step_words(summary.step_time, summary.step_time_given)}",
        *_assumed(summary),
        *(
            [f"{'deployment':{LABEL}}{summary.deployment}; prefill workers {summary.prefill_deployment}"]
            if summary.prefill_deployment is not None
            else []
        ),
        "",
        f"{'Requests':{LABEL}}{grouped(summary.finished)} finished   {grouped(summary.never_fit)} never fit   "
        f"{grouped(summary.unfinished)} unfinished",
        *_refused(summary),
        f"{'Tokens':{LABEL}}{_cached(summary)}   {tokens(summary.generated_tokens)} generated",
    ]
    rows = [
        ("first token", summary.first_token_s),
        ("per token", summary.per_output_token_s),
        ("whole", summary.end_to_end_s),
    ]
    show = _time(summary)
    lines += _table("Latency", rows, show)
    hand = summary.hand_off
    lines += _table(
        "Hand-off",
        [
            ("landing wait", hand.landing_wait_s),
            ("link queue", hand.queue_s),
            ("transfer", hand.transfer_s),
        ],
        show,
    )
    size = f" ({hand.bytes / 2**30:.2f} GiB)" if hand.bytes else ""
    lines.append(
        f"{'':{LABEL}}{counted(hand.count, 'hand-off')} of {counted(hand.pages, 'page')}{size}; "
        f"at most {counted(hand.peak_pinned_pages, 'page')} pinned"
    )
    lines += [
        "",
        f"{'Worker':{LABEL}}{'rounds':>9}{'busy':>14}{'peak pool':>11}{'queue':>7}{'retracted':>11}",
    ]
    for worker in summary.workers:
        share = percent(worker.peak_held_blocks / worker.blocks if worker.blocks else 0.0)
        lines.append(
            f"{worker.name:{LABEL}}{grouped(worker.rounds):>9}{show(worker.busy_s):>14}{share:>11}"
            f"{grouped(worker.max_waiting):>7}{grouped(worker.retractions):>11}"
        )
        over = [f"pool {sparkline(worker.pool.held_over_time, worker.blocks)}"]
        if worker.max_waiting:
            over.append(f"queue {sparkline(worker.queue.waiting_over_time, worker.max_waiting)}")
        lines.append(f"{'':{LABEL}}{'   '.join(over)}")
        facts = []
        if worker.role == "P" or worker.tokens_computed_again:
            facts.append(f"{tokens(worker.prefill_tokens)} tokens prefilled")
        if worker.tokens_from_cache:
            facts.append(f"{tokens(worker.tokens_from_cache)} from cache")
        if worker.tokens_landed:
            facts.append(f"{tokens(worker.tokens_landed)} landed")
        if worker.tokens_computed_again:
            facts.append(f"{tokens(worker.tokens_computed_again)} computed again")
        if worker.pages_written:
            facts.append(
                f"{counted(worker.pages_written, 'page')} to the host, {grouped(worker.pages_loaded)} back"
            )
        if facts:
            lines.append(f"{'':{LABEL}}{', '.join(facts)}")
    lines += _stuck(summary.stuck)
    lines += [f"{'warning':{LABEL}}{warning}" for warning in summary.warnings]
    lines.append(f"{'RESULT':{LABEL}}{_result(summary)}")
    if summary.stuck:
        last = summary.stuck[-1].worker.replace(" ", "-")
        lines.append(f"{'':{LABEL}}explain-round --worker {last} tells why, and replays what would end it")
    lines += [f"{'try':{LABEL}}{flag}   {why}" for flag, why in _advice(summary)]
    return lines


def _stuck(stuck: Sequence[Stuck]) -> list[str]:
    """Return who cannot go on, by worker and state: those that hold pages come before those that wait for some."""
    if not stuck:
        return []
    groups: dict[tuple[str, str], list[Stuck]] = {}
    for one in stuck:
        groups.setdefault((one.worker, one.state), []).append(one)
    order = {worker: at for at, worker in enumerate(dict.fromkeys(one.worker for one in stuck))}
    lines = ["", "Who cannot go on:"]
    for (worker, state), those in sorted(
        groups.items(), key=lambda group: (order[group[0][0]], group[0][1] in WITHOUT_PAGES)
    ):
        for one in those[:NAMED]:
            why = one.why.removeprefix(f"{state}: ")
            lines.append(f"  {worker}: {one.request_id} ({state}): {why}")
        if len(those) > NAMED:
            lines.append(f"  {worker}: {grouped(len(those) - NAMED)} more {state}")
    return lines


def _advice(summary: WorkersSummary) -> list[tuple[str, str]]:
    """Return (flags, what they do) for what went wrong; none when nothing did."""
    tries: list[tuple[str, str]] = []
    if summary.blocks_for_all is not None:
        longest = max(one.needed_tokens for one in summary.never_fit_requests)
        tries.append(
            (f"--pool-blocks {summary.blocks_for_all}", f"the longest request ({longest:,} tokens) fits")
        )
    # Of a dead end nothing is said that was not replayed: explain-round does that.
    retracted = any(one.retractions for one in summary.workers)
    if summary.undeclared_requests and retracted and not summary.stuck:
        tries.append(
            (
                "--max-new-tokens output",
                "each request declares what it generates, and room is kept for it",
            )
        )
    return tries


def _assumed(summary: WorkersSummary) -> list[str]:
    lines = []
    if summary.decode_width > 1:
        lines.append(
            f"{'decode':{LABEL}}accepts {summary.accept_length:g} of {summary.decode_width} tokens a step "
            f"({summary.accept_basis})"
        )
    if summary.undeclared_requests:
        who = "no request" if summary.undeclared_requests == summary.requests else "not every request"
        lines.append(f"{'budgets':{LABEL}}{who} declares max_new_tokens (--max-new-tokens)")
    return lines


def _refused(summary: WorkersSummary) -> list[str]:
    refused = summary.never_fit_requests
    if not refused:
        return []
    named = [f"{one.request_id} needs {grouped(one.needed_tokens)}" for one in refused[:3]]
    more = f" and {grouped(len(refused) - 3)} more" if len(refused) > 3 else ""
    return [
        f"{'  never fit':{LABEL}}{', '.join(named)}{more}; the limit is {counted(summary.limit_tokens, 'token')}"
    ]


def _cached(summary: WorkersSummary) -> str:
    computed = f"{tokens(summary.prompt_tokens_computed)} prompt computed"
    if summary.prompt_tokens_from_cache is None:
        return f"{computed}   cache hits unknown (the trace has no prefixes)"
    known = summary.prompt_tokens_computed + summary.prompt_tokens_from_cache
    share = percent(summary.prompt_tokens_from_cache / known if known else 0.0)
    return f"{computed}   {tokens(summary.prompt_tokens_from_cache)} from cache ({share} of them)"


def _time(summary: WorkersSummary) -> Callable[[float], str]:
    """Return what prints a time: in lockstep it is in rounds."""
    return rounds_time if summary.step_time.lockstep else duration


def _table(title: str, rows: Sequence[tuple[str, Spread | None]], show: Callable[[float], str]) -> list[str]:
    shown = [(name, values) for name, values in rows if values is not None]
    if not shown:
        return []
    lines = [f"{title:15}{'p50':>12}{'p90':>12}{'p99':>12}"]
    for name, values in shown:
        cells = "".join(f"{show(value):>12}" for value in (values.p50, values.p90, values.p99))
        lines.append(f"  {name:13}{cells}")
    return lines


def _result(summary: WorkersSummary) -> str:
    if summary.ending == "complete":
        who = "all requests that fit" if summary.never_fit else "all requests"
        if not summary.finished:
            who = "no request"
        how = (
            f"; {counted(summary.relanded, 'request')} landed again after a retraction"
            if summary.relanded
            else ""
        )
        return f"{who} finished in {_time(summary)(summary.duration_s)}{how}"
    left = counted(summary.unfinished, "request")
    if summary.ending == "stall":
        return f"stall: {left} left, nothing can be scheduled on any worker and nothing will change that"
    if summary.ending == "livelock":
        rounds = counted(summary.period_rounds, "round")
        return f"livelock: {left} left, the same {rounds} again and again without a token"
    return f"{summary.ending}: {left} left"
