"""A recorded scenario: a configuration, requests by round and what answers take, as one file of JSON.

This is the form of the engine's own recordings, with or without what the engine did (``result``), packed with
gzip or not; so a run that went wrong can be handed on and checked.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from kvplan.scheduler import (
    CacheGroupConfig,
    CacheGroupFamily,
    CacheRetention,
    CacheTransferPolicy,
    SchedulerConfig,
)

VOCABULARY = 50_000
MAX_TOKENS = 2**24  # of all prompts and outputs together, which are made before the first round; of pages too

_ENUMS: dict[str, Any] = {
    "retention": CacheRetention,
    "family": CacheGroupFamily,
    "transfer_policy": CacheTransferPolicy,
}

_COUNTED = ("max_batch_size", "num_device_pages", "num_host_pages")  # of which each takes memory

Segments = list[tuple[int, int, int]]


class Request(msgspec.Struct, frozen=True):
    """A request: its prompt in (seed, start, length) segments, its real ``output`` in tokens, and when it comes."""

    id: str
    prompt: Segments
    output: int
    submit: int = 0
    max_new_tokens: int = 0
    max_cached_prefix_tokens: int | None = None


class Timing(msgspec.Struct, frozen=True):
    """After how many rounds each answer comes."""

    result: int = 0
    write_back: int = 2
    load_back: int = 1
    bootstrap: int = 0
    remote_prefill: int = 3
    remote_decode: int = 3


class Abort(msgspec.Struct, frozen=True):
    """A request that is given up at the end of a round."""

    round: int
    id: str


class Clear(msgspec.Struct, frozen=True):
    """A cache that is cleared before a round's plan: ``clear_l1_cache`` or ``clear_cache``."""

    round: int
    what: str


class Scenario(msgspec.Struct, frozen=True):
    """What is played. ``accept`` are lengths of decode steps, in turn; ``failing_loads`` ops that storage does not
    fill; ``storage`` the prompts it holds at the start."""

    config: dict[str, Any]
    requests: list[Request]
    timing: Timing = msgspec.field(default_factory=Timing)
    accept: list[int] = msgspec.field(default_factory=lambda: [1])
    update_reserve: bool = False
    aborts: list[Abort] = msgspec.field(default_factory=list)
    clears: list[Clear] = msgspec.field(default_factory=list)
    storage: list[Segments] = msgspec.field(default_factory=list)
    failing_loads: list[int] = msgspec.field(default_factory=list)
    max_rounds: int = 4000

    def scheduler_config(self) -> SchedulerConfig:
        """The scheduler's configuration. Raises ``ValueError`` for a field or a value that it does not have."""
        config = SchedulerConfig()
        known = {field.name for field in fields(SchedulerConfig)}
        for name, value in self.config.items():
            if name not in known:
                raise ValueError(f"config.{name} is given; a scheduler has no such field")
            most = MAX_TOKENS if name in _COUNTED else 2**31 - 1
            if isinstance(value, int) and value > most:
                raise ValueError(f"config.{name} is {value}; at most {most:,} is played")
            if name == "role":
                config.role = _named(SchedulerConfig.Role, value, "config.role")
            elif name == "cache_groups":
                if not isinstance(value, list):
                    raise ValueError(f"config.cache_groups is {value!r}; a list is needed")
                config.cache_groups = [_group(group, at) for at, group in enumerate(value)]
            else:
                setattr(config, name, value)
        config.validate()
        return config


class _Recording(msgspec.Struct, frozen=True):
    scenario: Scenario


def read_scenario(path: Path) -> Scenario:
    """Return the scenario of a file. Raises ``ValueError``, one sentence, for a file that is not one."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a whole gzip file"
        raise ValueError(f"--scenario {path}: {reason}; a recorded scenario (JSON) is expected") from None
    try:
        scenario = msgspec.json.decode(data, type=_Recording).scenario
    except msgspec.DecodeError as error:
        raise ValueError(
            f"--scenario {path}: {_lowered(str(error))}; a recorded scenario is expected"
        ) from None
    wrong = _wrong(scenario)
    if wrong is not None:
        raise ValueError(f"--scenario {path}: {wrong}")
    try:
        wrong = _does_not_go_with(scenario, scenario.scheduler_config())
    except (ValueError, TypeError) as error:
        raise ValueError(f"--scenario {path}: {error}") from None
    if wrong is not None:
        raise ValueError(f"--scenario {path}: {wrong}")
    return scenario


def prompt_of(segments: Segments) -> list[int]:
    """The tokens of (seed, start, length) segments, one behind the other."""
    return [
        (seed * 1_000_003 + position * 7_919) % VOCABULARY + 1
        for seed, start, length in segments
        for position in range(start, start + length)
    ]


def sampled(request: int, at: int) -> int:
    """The token that the request of that index generates as its output of index ``at``."""
    return (request * 1_009 + at * 31 + 17) % VOCABULARY + 1


def _wrong(scenario: Scenario) -> str | None:
    """What no decoder sees, in words; ``None`` if nothing is wrong."""
    names = [request.id for request in scenario.requests]
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        return f"request {twice!r} is there twice; every id may be there once"
    total = 0
    for request in scenario.requests:
        if request.output < 1:
            return f"request {request.id!r} has an output of {request.output} tokens; 1 at least is needed"
        if request.submit < 0:
            return f"request {request.id!r} comes in round {request.submit}; 0 or later is needed"
        total += request.output + sum(length for _, _, length in request.prompt)
    total += sum(length for prompt in scenario.storage for _, _, length in prompt)
    segments = [one for request in scenario.requests for one in request.prompt]
    segments += [one for prompt in scenario.storage for one in prompt]
    for segment in segments:
        if min(segment) < 0:
            return f"a prompt has the segment {list(segment)}; seed, start and length of 0 or more are needed"
    if total > MAX_TOKENS:
        return f"its requests and storage have {total:,} tokens; at most {MAX_TOKENS:,} are played"
    if not scenario.accept or min(scenario.accept) < 1:
        return f"accept is {scenario.accept}; lengths of 1 or more are needed"
    if scenario.max_rounds < 1:
        return f"max_rounds is {scenario.max_rounds}; 1 or more is needed"
    stranger = next((abort.id for abort in scenario.aborts if abort.id not in names), None)
    if stranger is not None:
        return f"aborts names the request {stranger!r}, which is not there"
    for name in Timing.__struct_fields__:
        if getattr(scenario.timing, name) < 0:
            return f"timing.{name} is {getattr(scenario.timing, name)}; 0 rounds or more are needed"
    for clear in scenario.clears:
        if clear.what not in ("clear_l1_cache", "clear_cache"):
            return f"clears names {clear.what!r}; clear_l1_cache or clear_cache is needed"
    return None


def _does_not_go_with(scenario: Scenario, config: SchedulerConfig) -> str | None:
    """What of a scenario its configuration rules out, in words; ``None`` if nothing."""
    width, depth = config.decode_input_tokens, config.overlap_schedule_depth
    if width < 1:
        return f"config.decode_input_tokens is {width}; a step of 1 token or more is needed"
    if max(scenario.accept) > width:
        return f"accept is {scenario.accept}; config.decode_input_tokens allows lengths of up to {width}"
    if scenario.timing.result > depth:
        return (
            f"timing.result is {scenario.timing.result}; config.overlap_schedule_depth allows {depth} at most"
        )
    return None


def _group(given: object, at: int) -> CacheGroupConfig:
    where = f"config.cache_groups[{at}]"
    if not isinstance(given, dict):
        raise ValueError(f"{where} is {given!r}; an object is needed")
    known = {field.name for field in fields(CacheGroupConfig)}
    for name in given:
        if name not in known:
            raise ValueError(f"{where}.{name} is given; a cache group has no such field")
    return CacheGroupConfig(
        **{
            name: _named(_ENUMS[name], value, f"{where}.{name}") if name in _ENUMS else value
            for name, value in given.items()
        }
    )


def _named(kind: Any, name: object, where: str) -> Any:
    for member in kind:
        if member.name == name:
            return member
    raise ValueError(f"{where} is {name!r}; one of {', '.join(member.name for member in kind)} is needed")


def _lowered(text: str) -> str:
    kept = text[:2].isupper()  # JSON
    return (text if kept else text[:1].lower() + text[1:]).rstrip(".")
