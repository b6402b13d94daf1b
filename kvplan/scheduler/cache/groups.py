"""What the cache knows of a group, worked out once from its configuration (engine.md §1)."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.scheduler.config import GroupKind, SchedulerConfig


@dataclass(frozen=True, slots=True)
class Group:
    """One cache group. ``granularity`` and ``window`` are in tokens, ``lookback`` in pages."""

    index: int
    id: str
    kind: GroupKind
    granularity: int
    packing: int
    shards: int
    window: int
    lookback: int
    pages_per_prefix: int
    replayable: bool
    total_pages: int

    @property
    def closed(self) -> bool:
        """Whether a page of it is of use only with all pages before it."""
        return self.kind == GroupKind.FULL


def cache_groups(config: SchedulerConfig) -> tuple[Group, ...]:
    """The groups of a valid configuration, in its order."""
    return tuple(
        Group(
            index=index,
            id=group.group_id,
            kind=group.kind,
            granularity=group.block_granularity,
            packing=group.cache_blocks_per_lcm_block,
            shards=group.shard_count,
            window=group.window,
            lookback=group.lookback_pages,
            pages_per_prefix=config.prefix_granularity // group.block_granularity,
            replayable=group.replayable,
            total_pages=group.total_pages,
        )
        for index, group in enumerate(config.cache_groups)
    )
