"""`kvplan check-plan`: are the scheduler's plans safe? They are carried out, and every read is proved.

Imports nothing heavy before the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.commands.errors import FINDING
from kvplan.commands.options import Format, OutputFormat, deployment_options
from kvplan.commands.printing import print_json, print_text

if TYPE_CHECKING:
    from kvplan.deployment import Deployment

GIB = 2**30
CPU_BYTES = GIB  # what the arenas may take on a CPU unless told otherwise


@deployment_options
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
            help="Make rows so many times smaller; absent: not on a GPU, on a CPU until 1 GiB is enough.",
        ),
    ] = None,
    copy_delay: Annotated[
        int | None,
        typer.Option(
            "--copy-delay", min=0, help="Rounds that a CPU's copies to the host take; absent: until the ack."
        ),
    ] = None,
    trace_format: Annotated[
        str | None, typer.Option("--trace-format", help="The trace's format; found by content when absent.")
    ] = None,
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
    reserve_gib: Annotated[
        float, typer.Option("--reserve-gib", min=0, help="With --find-max-blocks: memory to leave free.")
    ] = 0.0,
    format: Format = OutputFormat.text,
    *,
    deployment: Path | None,
    overrides: dict[str, object],
) -> int:
    """Carry out every plan that a trace, or random requests, make on real memory, and prove each of them safe.

    Needs the extra torch. Every row that a forward reads is compared with what its request's own history
    says; the first that differs ends the run with round, request, group, page and who wrote it last. Exit
    status 0: safe; 1: a violation, or with --find-max-blocks fewer blocks than deployed; 2: wrong input.
    """
    from kvplan.backends.torch_module import device_named
    from kvplan.deployment import load_deployment

    loaded = load_deployment(deployment, overrides)
    on_gpu = device_named(device).type == "cuda"
    if max_blocks:
        return _find_max_blocks(loaded, device, round(reserve_gib * GIB), format)
    if loaded.usable_blocks is None:
        raise ValueError(
            "the deployment has no pool size; pool_blocks, pool_tokens or pool_gib is expected, in the file "
            "or as a flag (--pool-blocks)"
        )
    if bool(trace) == (random_requests is not None):
        given = "both TRACE and --random are" if trace else "no TRACE is"
        raise ValueError(f"{given} given; a trace's file, --random N or --find-max-blocks is expected")
    from kvplan.backends.backend import Memory, fitting_scale
    from kvplan.backends.check import check_plan
    from kvplan.backends.random_workload import random_workload
    from kvplan.backends.report import check_json, check_text
    from kvplan.replay.accept import parse_accept
    from kvplan.replay.workload import parse_budget, workload_of
    from kvplan.traces import read_trace

    config = loaded.config
    if scale_down is None:
        scale_down = 1 if on_gpu else fitting_scale(config, loaded.group_bytes, CPU_BYTES)
    block_bytes = loaded.block_bytes if scale_down == 1 else None
    memory = Memory(Memory.of(config, loaded.group_bytes, scale_down).groups, block_bytes)
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
        scale_down=scale_down,
        device=device,
        copy_delay=copy_delay,
        concurrency=concurrency,
        max_rounds=max_rounds,
    )
    if format is OutputFormat.json:
        print_json(check_json(result))
    else:
        print_text(lambda width: check_text(result, width))
    return 0 if result.safe else FINDING


def _find_max_blocks(loaded: Deployment, device: str, reserve_bytes: int, format: OutputFormat) -> int:
    from kvplan.backends.fit import blocks_fit
    from kvplan.backends.report import fit_json, fit_text

    if loaded.block_bytes is None:
        raise ValueError("the bytes of an LCM block are not known; give bytes_per_page of every cache group")
    result = blocks_fit(device, loaded.block_bytes, loaded.usable_blocks, reserve_bytes)
    if format is OutputFormat.json:
        print_json(fit_json(result))
    else:
        print_text(lambda width: fit_text(result, width))
    return 0 if result.fits else FINDING
