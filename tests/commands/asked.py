"""Runs to ask, made by the command that keeps them."""

from __future__ import annotations

import json
from pathlib import Path

from kvplan import cli
from kvplan.commands import errors

DEPLOYMENT = """
prefix_granularity = 16
max_scheduled_tokens = 64
max_batch_size = 8
enable_mixed_prefill_decode = true
pool_blocks = 16
[[cache_groups]]
group_id = "full"
block_granularity = 16
"""
ROWS: list[dict[str, object]] = [
    {"arrival_s": 0.02 * i, "prompt_tokens": 50 + 17 * (i % 4), "output_tokens": 40 + 5 * (i % 6)}
    for i in range(16)
]
LIVELOCK: list[dict[str, object]] = [
    {"arrival_s": 0.01, "prompt_tokens": 9, "output_tokens": 40},
    {"arrival_s": 0.34, "prompt_tokens": 22, "output_tokens": 26},
]
LIVELOCK_DEPLOYMENT = """
prefix_granularity = 4
max_scheduled_tokens = 8
max_batch_size = 8
pool_blocks = 13
[[cache_groups]]
group_id = "full"
block_granularity = 4
"""


def kvplan(*arguments: str) -> int:
    """The exit status of the program called with these arguments."""
    return errors.run(lambda given: cli.app(given, standalone_mode=False), arguments)


def files(folder: Path, rows: list[dict[str, object]] = ROWS, deployed: str = DEPLOYMENT) -> tuple[str, str]:
    """A trace and a deployment in ``folder``."""
    trace, deployment = folder / "trace.jsonl", folder / "deployment.toml"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    deployment.write_text(deployed)
    return str(trace), str(deployment)


def kept(
    folder: Path,
    name: str,
    *flags: str,
    rows: list[dict[str, object]] = ROWS,
    deployed: str = DEPLOYMENT,
) -> str:
    """A run that ``replay-trace`` has kept in ``folder``."""
    trace, deployment = files(folder, rows, deployed)
    directory = str(folder / name)
    assert kvplan("replay-trace", trace, "-d", deployment, "-o", directory, *flags) in (0, 1)
    return directory
