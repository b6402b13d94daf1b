"""What a run began with: enough to play it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from kvplan.explain.inputs import Inputs
from kvplan.explain.trace_file import TraceHead
from kvplan.replay.run import Assumptions
from kvplan.replay.store import SUMMARY, RunError
from kvplan.scheduler import CacheGroupConfig, SchedulerConfig

START = "start.json"
WORKERS = "workers.json"
"""What a run through workers begins with instead."""

MADE_OF = ("scheduler", "replay", "explain/states.py", "explain/observer.py", "explain/misses.py")
"""What states, and notes between them, are made of and what plays on from them."""


@dataclass(frozen=True, slots=True)
class Start:
    """The program's version, the trace, the deployment's configuration as ``run.config_facts`` has it."""

    kvplan: str
    trace: TraceHead
    deployment: str
    config: Mapping[str, object]
    assumptions: Assumptions
    code: str = ""
    """``code_stamp`` of the program that kept it: its states are of that program's classes."""
    inputs: Inputs | None = None
    """What another build plays the run again with; None: the run was kept by one that did not note it."""


@cache
def code_stamp() -> str:
    """A digest of the modules that states are made of."""
    package = Path(__file__).parents[1]
    digest = sha256()
    for part in MADE_OF:
        for path in sorted((package / part).rglob("*.py")) or [package / part]:
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def write_start(start: Start, directory: Path) -> None:
    """Write ``start.json``."""
    encoded = msgspec.json.format(msgspec.json.encode(start), indent=2)
    (directory / START).write_bytes(encoded + b"\n")


def read_start(directory: Path) -> Start:
    """Read ``start.json``. Raises ``RunError`` when there is none, or it is something else."""
    try:
        return _start((directory / START).read_bytes())
    except FileNotFoundError:
        if not directory.is_dir():
            raise RunError(
                f"{directory} is no directory; a run (replay-trace --output) is expected"
            ) from None
        if (directory / WORKERS).is_file():
            raise RunError(
                f"{directory} is a run through prefill and decode workers, of which report and explain-round "
                "--worker tell; a run of one engine is expected"
            ) from None
        if (directory / SUMMARY).is_file():
            raise RunError(
                f"{directory} holds no {START}: its rounds cannot be played again, only reported; a run of one "
                "engine without a backend is expected"
            ) from None
        raise RunError(
            f"{directory} holds no {START}; a run that replay-trace --output has kept is expected"
        ) from None
    except OSError as error:
        raise RunError(f"{directory / START} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise RunError(f"{directory / START} is not what a run begins with: {error}") from None


def _start(data: bytes) -> Start:
    """A start; one whose ``inputs`` another build has noted in another way is told without them."""
    try:
        return msgspec.json.decode(data, type=Start)
    except msgspec.ValidationError:
        facts = msgspec.json.decode(data)
        if not isinstance(facts, dict) or facts.pop("inputs", None) is None:
            raise
        return msgspec.convert(facts, Start)


def config_of(facts: Mapping[str, Any]) -> SchedulerConfig:
    """The configuration of which ``run.config_facts`` made ``facts``."""
    config = SchedulerConfig()
    _set(config, {name: value for name, value in facts.items() if name != "cache_groups"})
    config.cache_groups = []
    for group_facts in facts["cache_groups"]:
        group = CacheGroupConfig()
        _set(group, group_facts)
        config.cache_groups.append(group)
    return config


def _set(target: Any, facts: Mapping[str, Any]) -> None:
    known = {field.name for field in fields(target)}
    for name, value in facts.items():
        if name in known:
            kind = _ENUMS.get(name)
            setattr(target, name, kind[value] if kind is not None and isinstance(value, str) else value)


def _enums() -> dict[str, type[IntEnum]]:
    from kvplan.scheduler import CacheGroupFamily, CacheRetention, CacheTransferPolicy

    return {
        "role": SchedulerConfig.Role,
        "retention": CacheRetention,
        "family": CacheGroupFamily,
        "transfer_policy": CacheTransferPolicy,
    }


_ENUMS = _enums()
