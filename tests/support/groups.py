"""Builders for configurations and requests of a few pages, so that tests can count them by hand."""

from typing import Any

from kvplan.scheduler import (
    CacheGroupConfig,
    CacheGroupFamily,
    CacheRetention,
    CacheTransferPolicy,
    SchedulerConfig,
)
from kvplan.scheduler.cache.groups import Group, cache_groups

Groups = list[CacheGroupConfig]


def full(granularity: int = 4, packing: int = 1, **fields: Any) -> CacheGroupConfig:
    """A full-history group, called ``full`` unless named."""
    settings: dict[str, Any] = {"group_id": "full", "total_pages": 1} | fields
    return CacheGroupConfig(
        block_granularity=granularity,
        cache_blocks_per_lcm_block=packing,
        transfer_policy=CacheTransferPolicy.FullSuffix,
        **settings,
    )


def sliding(window: int, granularity: int = 4, packing: int = 1, **fields: Any) -> CacheGroupConfig:
    """A sliding group."""
    settings: dict[str, Any] = {"group_id": "sliding"} | fields
    return full(
        granularity,
        packing,
        **settings,
        retention=CacheRetention.SlidingWindow,
        sliding_window_tokens=window,
    )


def replay(window: int, granularity: int = 4, **fields: Any) -> CacheGroupConfig:
    """A replayable group."""
    settings: dict[str, Any] = {"group_id": "replay", "replayable": True} | fields
    return sliding(window, granularity, **settings)


def state(granularity: int = 4, packing: int = 1, **fields: Any) -> CacheGroupConfig:
    """A state group."""
    group = full(granularity, packing, **{"group_id": "state"} | fields, family=CacheGroupFamily.State)
    group.transfer_policy = CacheTransferPolicy.LatestSnapshot
    return group


def config(*groups: CacheGroupConfig, pages: int = 16, chunk: int = 64, **fields: Any) -> SchedulerConfig:
    """A configuration: ``pages`` usable device blocks, prefix pages of 4 tokens, mixed, unless told otherwise.

    ``host`` is in usable blocks.
    """
    host = fields.pop("host", 0)
    settings: dict[str, Any] = {
        "prefix_granularity": 4,
        "num_device_pages": pages + 1,
        "num_host_pages": host + 1 if host else 0,
        "max_scheduled_tokens": chunk,
        "max_batch_size": 8,
        "enable_mixed_prefill_decode": True,
        "cache_groups": list(groups) or [full()],
    }
    settings |= fields
    if isinstance(settings.get("role"), str):
        settings["role"] = SchedulerConfig.Role[settings["role"]]
    return SchedulerConfig(**settings)


def cache_group(group: CacheGroupConfig, prefix: int = 4) -> Group:
    """A group as the cache sees it."""
    return cache_groups(SchedulerConfig(prefix_granularity=prefix, cache_groups=[group]))[0]
