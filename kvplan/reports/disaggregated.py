"""The report of a replay through prefill and decode workers: both sides and the hand-off between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from rich.text import Text

from kvplan.replay.disaggregated import Stuck
from kvplan.replay.statistics import Spread
from kvplan.replay.workers_summary import WorkersSummary
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

LABEL = 12
NAMED = 2
WITHOUT_PAGES = ("Bootstrapping", "Submitted", "Retracted")


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
        longest = summary.tokens_for_all
        if longest is None:  # kept by a build that did not tell
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
