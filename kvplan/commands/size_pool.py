"""`kvplan size-pool`: the pool that a wanted concurrency needs, and what a given pool makes of it.

Imports nothing heavy before the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvplan.commands.errors import FINDING
from kvplan.commands.options import Format, OutputFormat, deployment_options
from kvplan.commands.printing import print_json, print_text


@deployment_options
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
    format: Format = OutputFormat.text,
    *,
    deployment: Path | None,
    overrides: dict[str, object],
) -> int:
    """Size the pool for --max-batch-size requests of --max-context-len tokens at once.

    Says what each cache group needs, and, where a pool is given (--pool-blocks, --pool-gib, --pool-tokens),
    whether that fits, how many such requests fit at once, what binds and what to try. Exit status 0: it fits,
    or there is no pool to compare with; 1: it does not fit; 2: wrong input.
    """
    from kvplan import sizing
    from kvplan.deployment import load_deployment
    from kvplan.reports.sizing import json_report, size_pool_text

    result = sizing.size_pool(load_deployment(deployment, overrides), max_context_len, max_total_tokens)
    if format is OutputFormat.json:
        print_json(json_report(result))
    else:
        print_text(lambda width: size_pool_text(result, width))
    return 0 if result.verdict in (sizing.Verdict.FITS, sizing.Verdict.NO_POOL) else FINDING
