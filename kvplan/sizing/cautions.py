"""Settings that fit, and with which requests may wait for each other for ever."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.deployment import Deployment
from kvplan.scheduler import SchedulerConfig
from kvplan.scheduler.chunks import ChunkRules
from kvplan.scheduler.config import GroupKind
from kvplan.sizing.alternatives import flag_of


@dataclass(frozen=True, slots=True)
class Caution:
    """Mixed rounds without budget for a decode step beside a prefill that waits (engine.md §8, §10).

    A round keeps ``prefill_tokens`` of ``max_scheduled_tokens`` for the prefill, and a step takes
    ``decode_input_tokens``. So no request generates while another's prefill waits, and if that one waits for
    pages that only a finished request gives back, none ever does. ``flags`` leave room for a step of every
    request.
    """

    prefill_tokens: int
    decode_input_tokens: int
    max_scheduled_tokens: int
    flags: dict[str, int | float]


def cautions(deployment: Deployment) -> tuple[Caution, ...]:
    """Return what to be careful of in a deployment; nothing where all is well."""
    config = deployment.config
    kept = prefill_reserve(config)
    step = config.decode_input_tokens
    fused = config.role == SchedulerConfig.Role.Fused
    if not (fused and config.enable_mixed_prefill_decode and kept) or config.max_batch_size < 2:
        return ()
    if config.max_scheduled_tokens >= kept + step:
        return ()
    flags: dict[str, int | float] = {
        flag_of(deployment, "max_scheduled_tokens"): kept + config.max_batch_size * step
    }
    return (Caution(kept, step, config.max_scheduled_tokens, flags),)


def prefill_reserve(config: SchedulerConfig) -> int:
    """Return the tokens that a mixed round keeps for a prefill that waits (engine.md §8)."""
    has_state = any(group.kind == GroupKind.STATE for group in config.cache_groups)
    return ChunkRules(config.prefix_granularity, config.replay_window, has_state).prefill_reserve
