"""`kvplan max-request`: the longest request a pool admits, and whether a given one is.

Imports nothing heavy before the command runs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.commands.errors import FINDING
from kvplan.commands.model_options import ModelFlags, model_options
from kvplan.commands.options import Format, OutputFormat, deployment_options
from kvplan.commands.printing import print_json, print_text
from kvplan.commands.remedies import bound_by_gpu, held_by_gpu, more_gpus

if TYPE_CHECKING:
    from kvplan.deployment import Deployment


@deployment_options
@model_options
def max_request(
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", help="A request to check, prompt + generation.", show_default=False),
    ] = None,
    max_new_tokens: Annotated[
        int,
        typer.Option(
            "--max-new-tokens", help="What requests declare to generate; a decode step counts at least."
        ),
    ] = 0,
    format: Format = OutputFormat.text,
    *,
    model: ModelFlags,
    deployment: Path | None,
    overrides: dict[str, object],
) -> int:
    """Say how long a request the pool admits, why not one token more, and with --tokens if that one fits.

    A longer request never fits, however empty the pool. Exit status 0: it fits (without --tokens: some
    request does); 1: it never fits; 2: wrong input.
    """
    from kvplan import sizing
    from kvplan.reports.longest_request import max_request_text
    from kvplan.reports.memory import memory_json, memory_text, more_gpus_try
    from kvplan.reports.sizing import json_report

    loaded, plan = model.load(deployment, overrides)
    result = sizing.max_request(loaded, tokens, max_new_tokens)
    gpus = None
    if plan is not None:
        held = (
            a
            for a in result.alternatives
            if a.changes != "pool" or held_by_gpu(model, overrides, plan, a.needed_blocks)
        )
        result = replace(result, alternatives=tuple(held))
    if plan is not None and not result.fits and bound_by_gpu(model, overrides):

        def fitting(wider: Deployment) -> tuple[int, int] | None:
            found = sizing.max_request(wider, tokens, max_new_tokens)
            one = found.asked or found.longest
            return (one.needed_blocks, found.usable_blocks) if found.fits else None

        gpus = more_gpus(model, overrides, plan.ranks.tp, fitting)
    model.write(loaded)
    if format is OutputFormat.json:
        print_json(json_report(result) if plan is None else memory_json(plan, result, gpus=gpus))
    elif plan is not None:
        print_text(
            lambda width: (
                memory_text(plan, width) + max_request_text(result, width) + more_gpus_try(gpus, width)
            )
        )
    else:
        print_text(lambda width: max_request_text(result, width))
    return 0 if result.fits else FINDING
