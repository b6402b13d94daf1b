"""The scheduler's configuration, made of what a deployment gives."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from kvplan.deployment.fields import HOST, POOL
from kvplan.deployment.given import Given
from kvplan.deployment.groups import GroupValues
from kvplan.deployment.sizes import blocks_in
from kvplan.scheduler import (
    CacheGroupConfig,
    CacheGroupFamily,
    CacheRetention,
    CacheTransferPolicy,
    CapacityModel,
    SchedulerConfig,
)

_ENUMS: dict[str, type[IntEnum]] = {
    "role": SchedulerConfig.Role,
    "retention": CacheRetention,
    "family": CacheGroupFamily,
    "transfer_policy": CacheTransferPolicy,
}


def sizing_config(values: Mapping[str, Given], groups: tuple[GroupValues, ...]) -> SchedulerConfig:
    """Return the configuration without a pool. Raises ``ValueError`` naming an invalid field (§2)."""
    config = SchedulerConfig()
    for place, given in values.items():
        if place not in (POOL, HOST):
            setattr(config, given.field.name, _typed(given))
    config.cache_groups = [_group(group, config.role == SchedulerConfig.Role.Fused) for group in groups]
    config.validate_capacity_inputs()
    return config


def set_pools(config: SchedulerConfig, usable: int | None, host: int) -> None:
    """Give ``config`` its pools, in usable LCM blocks, and check the whole (§2).

    Without a device pool (None) nothing is checked further. A group that declares no ``total_pages`` gets all
    that the pool can hold of it. Raises ``ValueError`` naming the field that is invalid.
    """
    config.num_host_pages = host + 1 if host else 0
    if usable is None:
        return
    config.num_device_pages = usable + 1
    for group in config.cache_groups:
        group.total_pages = group.total_pages or usable * group.cache_blocks_per_lcm_block + 1
    config.validate()


def usable_blocks(size: Given, config: SchedulerConfig, block: int | None, unknown: list[str]) -> int:
    """Return the usable LCM blocks that ``size`` stands for, one way or another.

    ``pool_tokens`` is the smallest pool that admits one request of that many tokens by itself, windows and
    states included (§3), so a pool given that way answers ``max_single_request_tokens`` with that length or a
    little more. For the others see ``blocks_in``; ``block`` and ``unknown`` are as there.
    """
    if size.field.name == "pool_tokens":
        model = CapacityModel(config)
        return model.lcm_blocks_needed_for(model.single_request_group_pages(int(size.value)))
    if size.field.name.endswith("_gib"):
        return blocks_in(size, block, unknown)
    if size.field.name.startswith("num_"):
        return max(int(size.value) - 1, 0)
    return int(size.value)


def _group(values: GroupValues, fused: bool) -> CacheGroupConfig:
    group = CacheGroupConfig()
    for name, given in values.items():
        if name != "bytes_per_page":
            setattr(group, name, _typed(given))
    if not fused and "transfer_policy" not in values:
        # Roles P and D allow one policy per kind (§2), so leaving it out leaves nothing open.
        snapshot = group.family == CacheGroupFamily.State
        group.transfer_policy = (
            CacheTransferPolicy.LatestSnapshot if snapshot else CacheTransferPolicy.FullSuffix
        )
    return group


def _typed(given: Given) -> object:
    enum = _ENUMS.get(given.field.name)
    return enum[str(given.value)] if enum else given.value
