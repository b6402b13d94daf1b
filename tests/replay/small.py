"""Small deployments and traces."""

import json
import tempfile
from pathlib import Path
from typing import Any

from kvplan.scheduler import CacheGroupConfig, SchedulerConfig
from kvplan.traces import Trace, read_trace


def config(
    blocks: int = 64,
    *,
    page: int = 16,
    chunk: int = 64,
    batch: int = 8,
    mixed: bool = True,
    width: int = 1,
    overlap: int = 0,
    groups: list[CacheGroupConfig] | None = None,
) -> SchedulerConfig:
    """One full group of `blocks` usable blocks, a page each."""
    made = SchedulerConfig()
    made.prefix_granularity = page
    made.max_scheduled_tokens = chunk
    made.max_batch_size = batch
    made.decode_input_tokens = width
    made.overlap_schedule_depth = overlap
    made.num_device_pages = blocks + 1
    made.enable_mixed_prefill_decode = mixed
    made.cache_groups = groups or [CacheGroupConfig("full", page, blocks + 1)]
    return made


def row(arrival: float, prompt: int, output: int, **more: Any) -> dict[str, Any]:
    """A request of a trace."""
    return {"arrival_s": arrival, "prompt_tokens": prompt, "output_tokens": output, **more}


def trace(*rows: dict[str, Any]) -> Trace:
    """A trace of these rows, called r0, r1, … unless they say otherwise."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in rows))
        return read_trace(path)
