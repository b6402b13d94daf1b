"""`kvplan replay-trace`: a trace through the engine's scheduler, against a clock.

Imports nothing heavy before the command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.errors import FINDING, INTERRUPTED
from kvplan.commands.model_options import ModelFlags, model_options
from kvplan.commands.options import Format, OutputFormat, deployment_options
from kvplan.commands.printing import print_json, print_text
from kvplan.commands.watching import ctrl_c, progress_bar

if TYPE_CHECKING:
    from kvplan.deployment import Deployment
    from kvplan.recipes import MemoryPlan
    from kvplan.replay.run import Run
    from kvplan.replay.step_time import StepTime

MAX_BLOCKS = 20_000_000  # about 4 GB of accounts
TRACE = "The trace"
ARRIVALS = "Arrivals and outputs"
TIERS = "Host and storage tiers"
BACKEND = "Carrying plans out"
WORKERS = "Prefill and decode workers"
TIME = "Step time (assumptions, in seconds, or with a unit: 10ms, 35us)"


def _option(*names: str, help: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar)


@deployment_options
@model_options
def replay_trace(
    trace: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE...", help="The trace's files, in order; - is standard input.", show_default=False
        ),
    ],
    trace_format: Annotated[
        str | None,
        _option("--trace-format", help="Its format; found by content when absent.", panel=TRACE),
    ] = None,
    time_unit: Annotated[
        str | None,
        _option(
            "--time-unit", help="The unit of its times; else its format's.", panel=TRACE, metavar="s|ms|us|ns"
        ),
    ] = None,
    hash_tokens: Annotated[
        int | None, _option("--hash-tokens", help="Prompt tokens to a hash; else its format's.", panel=TRACE)
    ] = None,
    sort: Annotated[
        bool, _option("--sort", help="Sort rows that are not in arrival order.", panel=TRACE)
    ] = False,
    skip_bad_rows: Annotated[
        bool,
        _option("--skip-bad-rows", help="Leave out rows that cannot be read, and count them.", panel=TRACE),
    ] = False,
    zero_output: Annotated[
        str,
        _option(
            "--zero-output",
            help="What to do with rows of 0 output tokens.",
            panel=TRACE,
            metavar="skip|refuse",
        ),
    ] = "skip",
    limit: Annotated[
        int | None, _option("--limit", help="Replay this many requests at most.", panel=TRACE)
    ] = None,
    start: Annotated[
        str | None,
        _option("--start", help="Begin there: rows (100) or a time (90s, 20min, 1.5h).", panel=TRACE),
    ] = None,
    speed: Annotated[
        float, _option("--speed", help="Divide all intervals between arrivals by this.", panel=ARRIVALS)
    ] = 1.0,
    concurrency: Annotated[
        int | None,
        _option(
            "--concurrency",
            help="Closed loop: so many requests at a time, the next when one ends.",
            panel=ARRIVALS,
        ),
    ] = None,
    max_new_tokens: Annotated[
        str,
        _option(
            "--max-new-tokens",
            help="The budget that requests declare: what the trace says, their output's length, none, or N "
            "(never less than the output).",
            panel=ARRIVALS,
            metavar="trace|output|none|N",
        ),
    ] = "trace",
    accept_length: Annotated[
        str | None,
        _option(
            "--accept-length",
            help="Tokens that a speculative decode step accepts: a mean (2.5), or lengths with their shares "
            "(1:0.2,2:0.5,4:0.3); absent: all of its width.",
            panel=ARRIVALS,
            metavar="MEAN|N:SHARE,...",
        ),
    ] = None,
    seed: Annotated[
        int, _option("--seed", help="Seed of the order of accepted lengths.", panel=ARRIVALS)
    ] = 0,
    rounds: Annotated[
        bool,
        _option("--rounds", help="Every round takes one unit of time; arrivals are in rounds.", panel=TIME),
    ] = False,
    step_fixed: Annotated[
        str | None, _option("--step-fixed", help="Of every forward. [10ms]", panel=TIME, metavar="TIME")
    ] = None,
    step_prefill_token: Annotated[
        str | None,
        _option("--step-prefill-token", help="More per token of prefill. [35us]", panel=TIME, metavar="TIME"),
    ] = None,
    step_decode: Annotated[
        str | None,
        _option("--step-decode", help="More per request that decodes. [20us]", panel=TIME, metavar="TIME"),
    ] = None,
    step_context_token: Annotated[
        str | None,
        _option(
            "--step-context-token",
            help="More per token whose KV the forward reads. [0]",
            panel=TIME,
            metavar="TIME",
        ),
    ] = None,
    write_back_gbps: Annotated[
        float | None,
        _option("--write-back-gbps", help="Bandwidth to the host, in GB/s; else unlimited.", panel=TIERS),
    ] = None,
    load_back_gbps: Annotated[
        float | None,
        _option("--load-back-gbps", help="Bandwidth from the host, in GB/s; else unlimited.", panel=TIERS),
    ] = None,
    write_back_latency: Annotated[
        str | None,
        _option("--write-back-latency", help="Time of a store besides. [0]", panel=TIERS, metavar="TIME"),
    ] = None,
    load_back_latency: Annotated[
        str | None,
        _option("--load-back-latency", help="Time of a load-back besides. [0]", panel=TIERS, metavar="TIME"),
    ] = None,
    storage: Annotated[
        str | None,
        _option(
            "--storage",
            help="What storage holds at the start: a share of the prompts, or those of a file of request ids.",
            panel=TIERS,
            metavar="SHARE|FILE",
        ),
    ] = None,
    storage_failure_rate: Annotated[
        float, _option("--storage-failure-rate", help="Share of storage's loads that fail.", panel=TIERS)
    ] = 0.0,
    force_retract_every: Annotated[
        int | None,
        _option("--force-retract-every", help="Retract a running request every N rounds.", panel=TIERS),
    ] = None,
    prefill_workers: Annotated[
        int | None,
        _option(
            "--prefill-workers",
            help="Replay through N prefill workers; 0: prompts come ready.",
            panel=WORKERS,
        ),
    ] = None,
    decode_workers: Annotated[
        int | None,
        _option(
            "--decode-workers", help="and N decode workers; 0: there is always room for pages.", panel=WORKERS
        ),
    ] = None,
    prefill_deployment: Annotated[
        Path | None,
        _option(
            "--prefill-deployment",
            help="The prefill workers' own deployment, with the same cache groups; else --deployment is "
            "that of all.",
            panel=WORKERS,
            metavar="FILE",
        ),
    ] = None,
    routing: Annotated[
        str | None,
        _option(
            "--routing",
            help="Who gets a request. [round-robin]",
            panel=WORKERS,
            metavar="round-robin|least-loaded",
        ),
    ] = None,
    transfer_gbps: Annotated[
        float | None,
        _option("--transfer-gbps", help="Bandwidth into each decode worker, in GB/s.", panel=WORKERS),
    ] = None,
    transfer_latency: Annotated[
        str | None,
        _option("--transfer-latency", help="Time of a hand-off besides. [0]", panel=WORKERS, metavar="TIME"),
    ] = None,
    backend: Annotated[
        str,
        _option(
            "--backend",
            help="Who carries plans out: nobody, or torch (an extra).",
            panel=BACKEND,
            metavar="none|torch",
        ),
    ] = "none",
    device: Annotated[
        str | None, _option("--device", help="Where torch does it: cpu or cuda:0. [cpu]", panel=BACKEND)
    ] = None,
    scale_down: Annotated[
        int | None,
        typer.Option(
            "--scale-down",
            min=1,
            help="Make the cache so many times smaller; absent: not on a GPU, on a CPU until 1 GiB is enough.",
            rich_help_panel=BACKEND,
        ),
    ] = None,
    device_costs: Annotated[
        Path | None,
        _option(
            "--device-costs",
            help="Transfer times of the host tier from a file of measure-device.",
            panel=TIERS,
            metavar="FILE",
        ),
    ] = None,
    max_rounds: Annotated[
        int | None, typer.Option("--max-rounds", help="Stop after this many rounds, with exit status 1.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Verify the scheduler's invariants in every round (slow).")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Keep the run there, while it is made: tables, run.json, and states to explain rounds from.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a run that is there.")] = False,
    format: Format = OutputFormat.text,
    *,
    model: ModelFlags,
    deployment: Path | None,
    overrides: dict[str, object],
) -> int:
    """Replay a trace through the engine's own scheduler and report what users and the pool would see.

    Exit status 0: every request that fits has finished; 1: a stall, a livelock or the limit of rounds; 2:
    wrong input.
    """
    from kvplan.commands.workers import (
        TierFlags,
        WorkerFlags,
        carrier,
        disaggregated,
        inputs_of,
        storage_of,
        violations,
    )
    from kvplan.explain.recorder import check_record, record
    from kvplan.replay.accept import parse_accept
    from kvplan.replay.session import begin
    from kvplan.replay.store import write_run
    from kvplan.replay.workload import parse_budget
    from kvplan.traces import read_trace

    if output is not None:
        check_record(output, force=force)
    elif force and model.emit is None:
        raise ValueError("--force is given without --output, which names the run to replace")
    times = {
        "--step-fixed": step_fixed,
        "--step-prefill-token": step_prefill_token,
        "--step-decode": step_decode,
        "--step-context-token": step_context_token,
    }
    step_time = step_time_of(rounds, times)
    budget = parse_budget(max_new_tokens)
    loaded, plan = _planned(deployment, overrides, model)
    config = loaded.config
    tiers = TierFlags(write_back_gbps, load_back_gbps, write_back_latency, load_back_latency, device_costs)
    transfer_times = tiers.transfer_times(loaded)
    peers = WorkerFlags(
        prefill_workers, decode_workers, routing, transfer_gbps, transfer_latency, prefill_deployment
    )
    counts = peers.workers(config.role)
    accept = parse_accept(accept_length, config.decode_input_tokens, seed)
    requests = read_trace(
        trace,
        format=trace_format,
        time_unit=time_unit,
        hash_tokens=hash_tokens,
        sort=sort,
        skip_bad_rows=skip_bad_rows,
        zero_output=zero_output,
        limit=limit,
        start=start,
    )
    stored = storage_of(storage, storage_failure_rate, seed)
    carrying, stored = carrier(backend, device, scale_down, loaded, plan, stored, check=check)
    if counts is not None:
        inputs = inputs_of(
            requests,
            loaded,
            counts,
            peers,
            budget=budget,
            step_time=step_time,
            accept=accept,
            transfer_times=transfer_times,
            speed=speed,
            concurrency=concurrency,
            max_rounds=max_rounds,
            force_retract_every=force_retract_every,
            storage=stored,
        )
        with progress_bar(len(requests)) as progress, ctrl_c() as stop:
            return disaggregated(
                inputs,
                peers,
                source="" if deployment is None else str(deployment),
                check=check,
                scheduler_of=carrying,
                progress=progress,
                stop=stop,
                output=output,
                force=force,
                format=format,
            )
    with violations(), progress_bar(len(requests)) as progress, ctrl_c() as stop:
        session = begin(
            requests,
            config,
            deployment="" if deployment is None else str(deployment),
            step_time=step_time,
            accept=accept,
            max_new_tokens=budget,
            speed=speed,
            concurrency=concurrency,
            seed=seed,
            transfer_times=transfer_times,
            storage=stored,
            force_retract_every=force_retract_every,
            check=check,
            scheduler_of=carrying,
        )
        if output is not None and carrying is None:
            run = record(session, output, force=force, max_rounds=max_rounds, progress=progress, stop=stop)
        else:
            run = session.run(*session.play(max_rounds, progress=progress, stop=stop))
    if output is not None and carrying is not None:
        write_run(run, output, force=force)
    _print(run, format)
    if output is not None:
        print(f"kvplan: the run is in {output}", file=sys.stderr)
    return _status(run)


def _deployment(deployment: Path | None, overrides: dict[str, object], model: ModelFlags) -> Deployment:
    return _planned(deployment, overrides, model)[0]


def _planned(
    deployment: Path | None, overrides: dict[str, object], model: ModelFlags
) -> tuple[Deployment, MemoryPlan | None]:
    loaded, plan = model.load(deployment, overrides)
    if loaded.usable_blocks is None:
        raise ValueError(
            "the deployment has no pool size; pool_blocks, pool_tokens or pool_gib is expected, in the file "
            "or as a flag (--pool-blocks)"
        )
    if loaded.usable_blocks > MAX_BLOCKS:
        raise ValueError(
            f"the pool has {loaded.usable_blocks} LCM blocks; a replay, which keeps account of each, takes at most "
            f"{MAX_BLOCKS}"
        )
    model.write(loaded)
    return loaded, plan


def step_time_of(rounds: bool, times: Mapping[str, str | None]) -> StepTime | None:
    """Return the step time that ``--rounds`` or the flags of ``times`` give; None without any of them.

    Raises ValueError for both, or for a text that is no time.
    """
    from kvplan.replay.step_time import StepTime, parse_seconds, unit_rounds

    given = {flag: text for flag, text in times.items() if text is not None}
    if rounds and given:
        raise ValueError(f"--rounds and {next(iter(given))} are given; one of them is expected")
    if rounds:
        return unit_rounds()
    if not given:
        return None
    assumed = StepTime()

    def seconds(flag: str, otherwise: float) -> float:
        return parse_seconds(given[flag], flag) if flag in given else otherwise

    return StepTime(
        fixed_s=seconds("--step-fixed", assumed.fixed_s),
        per_prefill_token_s=seconds("--step-prefill-token", assumed.per_prefill_token_s),
        per_decode_request_s=seconds("--step-decode", assumed.per_decode_request_s),
        per_context_token_s=seconds("--step-context-token", assumed.per_context_token_s),
    )


def _print(run: Run, format: OutputFormat) -> None:
    from kvplan.reports.replay import replay_json, replay_text

    if format is OutputFormat.json:
        print_json(replay_json(run.summary))
        return
    print_text(lambda width: replay_text(run.summary, width))


def _status(run: Run) -> int:
    from kvplan.replay.play import Ending

    if run.summary.ending is Ending.INTERRUPTED:
        return INTERRUPTED
    return 0 if run.summary.ending is Ending.COMPLETE else FINDING
