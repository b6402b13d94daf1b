"""`kvplan check-plan`: are the scheduler's plans safe? They are carried out, and every read is proved.

Imports nothing heavy before the command runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.commands.errors import FINDING
from kvplan.commands.model_options import ModelFlags, model_options
from kvplan.commands.options import Format, OutputFormat, deployment_options
from kvplan.commands.printing import print_json, print_text

if TYPE_CHECKING:
    from kvplan.backends.check import CheckResult
    from kvplan.deployment import Deployment
    from kvplan.recipes import MemoryPlan

GIB = 2**30


@deployment_options
@model_options
def check_plan(
    trace: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TRACE...]", help="The trace's files, in order; - is standard input.", show_default=False
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Where to carry plans out: cpu or cuda:0.")] = "cpu",
    scale_down: Annotated[
        int | None,
        typer.Option(
            "--scale-down",
            min=1,
            help="Make the cache so many times smaller; absent: not on a GPU, on a CPU until 1 GiB is enough.",
        ),
    ] = None,
    copy_delay: Annotated[
        int | None,
        typer.Option(
            "--copy-delay",
            min=0,
            help="Rounds that a CPU's copies to the host take, and their acks wait; absent: until the ack.",
        ),
    ] = None,
    trace_format: Annotated[
        str | None, typer.Option("--trace-format", help="The trace's format; found by content when absent.")
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(
            "--scenario",
            metavar="FILE",
            help="Play a recorded scenario (JSON, gzip or not), which brings its own configuration, instead.",
            show_default=False,
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            metavar="SHARE|FILE",
            help="What storage holds at the start: a share of the prompts, or those of a file of request ids.",
        ),
    ] = None,
    storage_failure_rate: Annotated[
        float, typer.Option("--storage-failure-rate", help="Share of storage's loads that fail.")
    ] = 0.0,
    random_requests: Annotated[
        int | None,
        typer.Option(
            "--random",
            metavar="N",
            min=1,
            help="Play so many random requests that share prefixes, instead of a trace.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of --random and of --accept-length.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", help="Play this many requests at most.")] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", help="Closed loop: so many requests at a time.")
    ] = None,
    max_new_tokens: Annotated[
        str,
        typer.Option("--max-new-tokens", metavar="trace|output|none|N", help="The budget requests declare."),
    ] = "trace",
    accept_length: Annotated[
        str | None,
        typer.Option(
            "--accept-length", metavar="MEAN|N:SHARE,...", help="Tokens that a decode step accepts."
        ),
    ] = None,
    max_rounds: Annotated[int | None, typer.Option("--max-rounds", min=1, help="Stop after so many.")] = None,
    max_blocks: Annotated[
        bool,
        typer.Option(
            "--find-max-blocks",
            help="Find by allocation how many LCM blocks fit, instead of playing a trace.",
        ),
    ] = False,
    format: Format = OutputFormat.text,
    *,
    model: ModelFlags,
    deployment: Path | None,
    overrides: dict[str, object],
) -> int:
    """Carry out every plan that a trace, random requests or a recorded scenario make on real memory, and prove
    each of them safe.

    Needs the extra torch. Every row that a forward reads is compared with what its request's own history
    says; the first that differs ends the run with round, request, group, page and who wrote it last. With
    --model the memory is laid out as the model's: its fields, layer by layer.

    On a GPU a transfer is acknowledged when the device has copied, so that the timing is the device's; on a CPU after
    --copy-delay rounds, or without it at once (a scenario's: after the rounds that it says).

    --find-max-blocks allocates beside --reserve-gib, or, with --model and a GPU's memory, beside all that
    size-pool leaves the cache out of.

    Exit status 0: safe; 1: a violation, or with --find-max-blocks fewer blocks than deployed; 2: wrong input.
    """
    from kvplan.backends.torch_module import device_named

    on_gpu = device_named(device).type == "cuda"
    given = {
        "TRACE": bool(trace),
        "--random": random_requests is not None,
        "--scenario": scenario is not None,
    }
    given["--find-max-blocks"] = max_blocks
    chosen = [name for name, there in given.items() if there]
    if len(chosen) != 1:
        what = " and ".join(chosen) + " are" if chosen else "no TRACE is"
        raise ValueError(
            f"{what} given; one of a trace's file, --random N, --scenario FILE and --find-max-blocks is expected"
        )
    of_workload: dict[str, object] = {
        "--limit": limit,
        "--concurrency": concurrency,
        "--max-new-tokens": None if max_new_tokens == "trace" else max_new_tokens,
        "--accept-length": accept_length,
        "--storage": storage,
        "--storage-failure-rate": storage_failure_rate or None,
        "--seed": seed or None,
    }
    playing: dict[str, object] = {
        "--scale-down": scale_down,
        "--copy-delay": copy_delay,
        "--max-rounds": max_rounds,
    }
    reading: dict[str, object] = {"--trace-format": trace_format}
    if on_gpu:
        _unused(f"--device {device}", {"--copy-delay": copy_delay})
    if max_blocks:
        _unused(chosen[0], reading | of_workload | playing)
    elif scenario is not None:
        _unused(chosen[0], reading | of_workload)
    elif not trace:
        _unused(chosen[0], reading | {name: of_workload[name] for name in ("--limit", "--max-new-tokens")})
    if scenario is not None:
        if deployment is not None or overrides or model.given:
            raise ValueError(
                "--scenario brings its own configuration; no deployment, flag of one or model is expected"
            )
        result = _scenario(scenario, device, scale_down, copy_delay, max_rounds)
        return _report(result, format)
    reserve = None
    if "model" not in model.given and max_blocks:
        rest = dict(model.given)
        reserve = rest.pop("reserve_gib", None)
        model = ModelFlags(rest, model.emit)
    loaded, plan = model.load(deployment, overrides)
    if max_blocks:
        return _find_max_blocks(loaded, plan, device, reserve, format)
    if loaded.usable_blocks is None:
        raise ValueError(
            "the deployment has no pool size; pool_blocks, pool_tokens or pool_gib is expected, in the file "
            "or as a flag (--pool-blocks)"
        )
    from kvplan.backends.check import check_plan
    from kvplan.backends.foretold import Foretold
    from kvplan.backends.memory import deployed_memory
    from kvplan.backends.random_workload import random_workload
    from kvplan.commands.workers import storage_of
    from kvplan.replay.accept import parse_accept
    from kvplan.replay.workload import parse_budget, workload_of
    from kvplan.traces import read_trace

    config = loaded.config
    memory = deployed_memory(loaded, plan, scale_down, on_gpu=on_gpu)
    stored = storage_of(storage, storage_failure_rate, seed)
    if stored is not None and not config.enable_l3_storage:
        raise ValueError(
            f"--storage{'' if storage else '-failure-rate'} is given without a storage tier; --enable-l3-storage "
            "and a host pool (--host-blocks) give one"
        )
    if trace:
        requests = read_trace(trace, format=trace_format, limit=limit)
        workload = workload_of(requests, parse_budget(max_new_tokens))
    else:
        workload = random_workload(config, random_requests or 0, seed)
    result = check_plan(
        workload,
        config,
        parse_accept(accept_length, config.decode_input_tokens, seed),
        memory=memory,
        device=device,
        copy_delay=copy_delay,
        concurrency=concurrency,
        max_rounds=max_rounds,
        storage=None if stored is None else Foretold.of(stored),
    )
    return _report(result, format)


def _unused(mode: str, given: Mapping[str, object]) -> None:
    """Raise ValueError for an option that was given and has no part in what is done."""
    for flag, value in given.items():
        if value is not None:
            raise ValueError(f"{flag} {value} is given; with {mode} it has nothing to say")


def _scenario(
    path: Path,
    device: str,
    scale_down: int | None,
    copy_delay: int | None,
    max_rounds: int | None,
) -> CheckResult:
    """Play a recorded scenario, whose pages have no bytes: rows are as small as a signature."""
    from kvplan.backends.check import check_scenario
    from kvplan.backends.recorded import read_scenario

    if scale_down is not None:
        raise ValueError(
            f"--scale-down {scale_down} is given; a recorded scenario says nothing of bytes, its rows take 8 each"
        )
    return check_scenario(read_scenario(path), device=device, copy_delay=copy_delay, max_rounds=max_rounds)


def _report(result: CheckResult, format: OutputFormat) -> int:
    from kvplan.backends.report import check_json, check_text

    if format is OutputFormat.json:
        print_json(check_json(result))
    else:
        print_text(lambda width: check_text(result, width))
    return 0 if result.safe else FINDING


def _find_max_blocks(
    loaded: Deployment, plan: MemoryPlan | None, device: str, reserve_gib: float | None, format: OutputFormat
) -> int:
    from kvplan.backends.fit import blocks_fit, left_out
    from kvplan.backends.report import fit_json, fit_text

    if loaded.block_bytes is None:
        raise ValueError("the bytes of an LCM block are not known; give bytes_per_page of every cache group")
    if reserve_gib is not None and not 0 <= reserve_gib < 2**40:
        raise ValueError(f"--reserve-gib {reserve_gib} is given; a number of GiB from 0 is expected")
    reserve = round((reserve_gib or 0) * GIB) if plan is None else left_out(plan)
    result = blocks_fit(device, loaded.block_bytes, loaded.usable_blocks, reserve)
    if format is OutputFormat.json:
        print_json(fit_json(result))
    else:
        print_text(lambda width: fit_text(result, width))
    return 0 if result.fits else FINDING
