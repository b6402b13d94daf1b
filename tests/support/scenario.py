"""A scenario as plain data: what a scheduler is configured with, which requests come when, what answers take.

The format is that of the engine's recordings (``tests/recordings``): a JSON object with ``config``,
``requests`` (id, round of submission, prompt segments, declared and real output), ``timing`` in rounds, and
optionally ``accept``, ``update_reserve``, ``aborts``, ``storage``, ``failing_loads``, ``clears``, ``extras``,
``digest`` and ``max_rounds``.
"""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvplan.scheduler import (
    CacheGroupConfig,
    CacheGroupFamily,
    CacheRetention,
    CacheTransferPolicy,
    SchedulerConfig,
)

Scenario = dict[str, Any]

RECORDINGS = Path(__file__).parents[1] / "recordings"
VOCABULARY = 50_000
TIMING = {
    "result": 0,
    "write_back": 2,
    "load_back": 1,
    "bootstrap": 0,
    "remote_prefill": 3,
    "remote_decode": 3,
}
ENUMS: dict[str, Any] = {
    "retention": CacheRetention,
    "family": CacheGroupFamily,
    "transfer_policy": CacheTransferPolicy,
}


def recording_names() -> list[str]:
    """The recordings that are there, by name."""
    return sorted(path.name.removesuffix(".json.gz") for path in RECORDINGS.glob("*.json.gz"))


def load_recording(name: str) -> dict[str, Any]:
    """A recording: its ``scenario`` and the engine's ``result``."""
    with gzip.open(RECORDINGS / f"{name}.json.gz", "rt") as file:
        recording: dict[str, Any] = json.load(file)
    return recording


def config_of(fields: dict[str, Any]) -> SchedulerConfig:
    """A scheduler's configuration from a scenario's ``config``."""
    config = SchedulerConfig()
    for name, value in fields.items():
        if name == "role":
            config.role = SchedulerConfig.Role[value]
        elif name == "cache_groups":
            config.cache_groups = [group_of(group) for group in value]
        else:
            setattr(config, name, value)
    return config


def group_of(fields: dict[str, Any]) -> CacheGroupConfig:
    """A cache group from one entry of a scenario's ``cache_groups``."""
    return CacheGroupConfig(
        **{name: ENUMS[name][value] if name in ENUMS else value for name, value in fields.items()}
    )


def prompt_tokens(segments: Sequence[Sequence[int]]) -> list[int]:
    """A prompt's tokens: ``[seed, start, length]`` segments one behind the other."""
    return [
        (seed * 1_000_003 + position * 7_919) % VOCABULARY + 1
        for seed, start, length in segments
        for position in range(start, start + length)
    ]


def sampled_token(request_index: int, output_index: int) -> int:
    """The token that the scenario's request of that index samples as its output of that index."""
    return (request_index * 1_009 + output_index * 31 + 17) % VOCABULARY + 1
