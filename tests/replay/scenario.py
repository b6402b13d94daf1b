"""Scenarios of the engine's recordings, played by the replay's own loop instead of the recorder's.

A scenario is a JSON object as /work/shared/conformance/drive.py reads it: a configuration, requests with the
round in which each comes, how many tokens each decode accepts, and how many rounds answers take.
"""

import gzip
import json
from pathlib import Path
from typing import Any

from kvplan.replay.accept import AcceptLengths
from kvplan.replay.arrivals import Arrivals
from kvplan.replay.engine import Engine
from kvplan.replay.step_time import NS, unit_rounds
from kvplan.replay.transfers import Link, TransferTimes
from kvplan.replay.workload import UNBOUNDED, Workload
from kvplan.scheduler import (
    CacheGroupConfig,
    CacheGroupFamily,
    CacheRetention,
    CacheTransferPolicy,
    Scheduler,
    SchedulerConfig,
)

VOCABULARY = 50_000
ENUMS = {"retention": CacheRetention, "family": CacheGroupFamily, "transfer_policy": CacheTransferPolicy}


def config_of(fields: dict[str, Any]) -> SchedulerConfig:
    config = SchedulerConfig()
    for name, value in fields.items():
        if name == "role":
            value = getattr(SchedulerConfig.Role, value)
        elif name == "cache_groups":
            value = [
                CacheGroupConfig(**{k: getattr(ENUMS[k], v) if k in ENUMS else v for k, v in group.items()})
                for group in value
            ]
        setattr(config, name, value)
    return config


def prompt_of(segments: list[list[int]]) -> list[int]:
    return [
        (seed * 1_000_003 + position * 7_919) % VOCABULARY + 1
        for seed, start, length in segments
        for position in range(start, start + length)
    ]


def workload_of(scenario: dict[str, Any]) -> Workload:
    requests = scenario["requests"]
    prompts = [prompt_of(request["prompt"]) for request in requests]
    outputs = [request["output"] for request in requests]
    return Workload(
        request_ids=[request["id"] for request in requests],
        prompt_tokens=[len(prompt) for prompt in prompts],
        output_tokens=outputs,
        budgets=[request.get("max_new_tokens", 0) for request in requests],
        arrivals_ns=[request.get("submit", 0) * NS for request in requests],
        delays_ns=[None] * len(requests),
        after=[None] * len(requests),
        prompt=lambda row: prompts[row],
        output=lambda row: [(row * 1_009 + i * 31 + 17) % VOCABULARY + 1 for i in range(outputs[row])],
        prefix_bounds=[request.get("max_cached_prefix_tokens", UNBOUNDED) for request in requests],
    )


def engine_of(scenario: dict[str, Any], *, check: bool = True) -> tuple[Engine, Arrivals]:
    """The scenario's engine in lockstep, one round a second, and its arrivals."""
    config = config_of(scenario["config"])
    workload = workload_of(scenario)
    timing = {"result": 0, "write_back": 2, "load_back": 1, **scenario.get("timing", {})}
    engine = Engine(
        scheduler=Scheduler(config, check=check),
        workload=workload,
        step_time=unit_rounds(),
        accept=AcceptLengths(scenario.get("accept", [1]), 1, "recorded"),
        decode_width=config.decode_input_tokens,
        overlap=timing["result"],
        update_reserve=bool(scenario.get("update_reserve")),
        transfer_times=TransferTimes(
            Link(latency_ns=timing["write_back"] * NS), Link(latency_ns=timing["load_back"] * NS)
        ),
    )
    return engine, Arrivals(workload)


def load(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt") as file:
        recording: dict[str, Any] = json.load(file)
        return recording
