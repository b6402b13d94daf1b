"""`kvplan size-pool`: the pool that a wanted concurrency needs, and what a given pool makes of it.

Imports nothing heavy before the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.commands.errors import FINDING
from kvplan.commands.model_options import ModelFlags, batch_flag, model_options
from kvplan.commands.options import Format, OutputFormat, deployment_options
from kvplan.commands.printing import print_json, print_text
from kvplan.commands.remedies import bound_by_gpu, largest_batch, more_gpus, narrow_cache, replanned

if TYPE_CHECKING:
    from kvplan.deployment import Deployment
    from kvplan.replay.proof import Proof
    from kvplan.sizing import PoolSize


@deployment_options
@model_options
def size_pool(
    max_context_len: Annotated[
        int,
        typer.Option(
            "--max-context-len", "--max-model-len", help="Tokens of the longest request, prompt + generation."
        ),
    ],
    max_total_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-total-tokens",
            help="Tokens that all requests hold together; batch × context when absent.",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            metavar="FLAG=V1,V2",
            help="Several values of a flag side by side: kv-dtype=bf16,fp8; of two flags, all combinations.",
            show_default=False,
        ),
    ] = None,
    prove: Annotated[
        bool,
        typer.Option("--prove", help="Play these requests in the pool, or in the smallest that is enough."),
    ] = False,
    output_tokens: Annotated[
        int | None,
        typer.Option(
            "--output-tokens",
            help="Of the context what each generates, for --prove; else 256, or half of a shorter context.",
            show_default=False,
        ),
    ] = None,
    format: Format = OutputFormat.text,
    *,
    model: ModelFlags,
    deployment: Path | None,
    overrides: dict[str, object],
) -> int:
    """Size the pool for --max-batch-size requests of --max-context-len tokens at once.

    Says what each cache group needs, and, where a pool is given (--pool-blocks, --pool-gib, --pool-tokens),
    whether that fits, how many such requests fit at once, what binds and what to try. With --model the groups
    and the pool are those of a model on its GPUs, and so is the account of their memory. Exit status 0: it fits,
    or there is no pool to compare with; 1: it does not fit, or --prove sees a request retracted or without an end;
    2: wrong input.
    """
    import msgspec

    from kvplan import sizing
    from kvplan.reports.memory import (
        held_lines,
        layers_of,
        layout_lines,
        memory_json,
        memory_text,
        more_gpus_try,
        most_text,
        narrow_try,
        of_all_replicas,
    )
    from kvplan.reports.sizing import json_report, size_pool_text

    if output_tokens is not None and not prove:
        raise ValueError(
            "--output-tokens is given without --prove, which plays requests that generate as many"
        )
    for name, given in (("--compare", compare), ("--max-total-tokens", max_total_tokens)):
        if prove and given:
            raise ValueError(
                f"--prove and {name} are given; it plays a batch of requests of --max-context-len"
            )
    if compare:
        return _compare(compare, model, deployment, overrides, max_context_len, max_total_tokens, format)
    loaded, plan = model.load(deployment, overrides, max_context_len, batch_needed=True)
    replicas = 1 if plan is None else plan.ranks.dp
    total = None if max_total_tokens is None else -(-max_total_tokens // replicas)
    result = sizing.size_pool(loaded, max_context_len, total)
    if plan is not None and replicas > 1:
        result = of_all_replicas(result, plan, batch_flag(overrides))
    short = result.verdict in (sizing.Verdict.NOT_AT_ONCE, sizing.Verdict.NEVER_FITS)
    if plan is not None and short:
        result = replanned(model, overrides, plan, result)
    most = None
    if plan is not None and result.verdict is sizing.Verdict.FITS:
        most = largest_batch(model, overrides, plan, result)
    narrow = None
    if plan is not None and short and "kv_dtype" not in model.given:
        narrow = narrow_cache(model, overrides, max_context_len, total, result)
    gpus = None
    if plan is not None and short and bound_by_gpu(model, overrides):

        def fitting(wider: Deployment) -> tuple[int, int] | None:
            found = sizing.size_pool(wider, max_context_len, total)
            fits = found.verdict is sizing.Verdict.FITS and found.pool is not None
            return (found.needed_blocks, found.pool.usable_blocks) if fits and found.pool else None

        gpus = more_gpus(model, overrides, plan.ranks.tp, fitting, max_context_len)
    played = _played(loaded, result, output_tokens) if prove else None
    model.write(loaded)
    more = {} if played is None else {"proof": {**msgspec.to_builtins(played), "holds": played.holds}}
    if format is OutputFormat.json:
        print_json(
            json_report(result, **more)
            if plan is None
            else memory_json(plan, result, narrow, gpus, most, **more)
        )
    elif plan is None:
        print_text(lambda width: size_pool_text(result, width))
    else:
        print_text(
            lambda width: (
                memory_text(plan, width, layout=False)
                + size_pool_text(
                    result, width, layers_of(plan), [*layout_lines(plan, width), *held_lines(plan, width)]
                )
                + most_text(most, result, replicas, width)
                + more_gpus_try(gpus, width)
                + narrow_try(narrow, width)
            )
        )
    if played is not None and format is OutputFormat.text:
        from kvplan.reports.proof import proof_text

        print_text(lambda width: proof_text(played, width))
    fits = result.verdict in (sizing.Verdict.FITS, sizing.Verdict.NO_POOL)
    return 0 if fits and (played is None or played.holds) else FINDING


def _played(loaded: Deployment, result: PoolSize, output_tokens: int | None) -> Proof:
    """What became of the wanted requests in the pool, or where none is given in the one they need."""
    from kvplan.commands.watching import progress_bar
    from kvplan.replay.proof import prove

    pooled = loaded if result.pool is not None else loaded.with_pool_blocks(result.needed_blocks)
    with progress_bar(result.max_batch_size) as progress:
        return prove(pooled.config, result.max_context_len, output_tokens, progress)


def _compare(
    compare: list[str],
    model: ModelFlags,
    deployment: Path | None,
    overrides: dict[str, object],
    max_context_len: int,
    max_total_tokens: int | None,
    format: OutputFormat,
) -> int:
    from kvplan.commands.side_by_side import side_by_side
    from kvplan.reports.side_by_side import side_by_side_text
    from kvplan.reports.sizing import json_report
    from kvplan.sizing import Verdict

    if model.emit is not None:
        raise ValueError("--emit and --compare are given; a deployment has one value of a flag")
    compared = side_by_side(compare, model, deployment, overrides, max_context_len, max_total_tokens)
    if format is OutputFormat.json:
        print_json(json_report(compared))
    else:
        print_text(lambda width: side_by_side_text(compared, width))
    good = (Verdict.FITS, Verdict.NO_POOL)
    return 0 if any(row.result and row.result.verdict in good for row in compared.rows) else FINDING
