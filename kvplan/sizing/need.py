"""What requests need of the pool, in pages and LCM blocks: the capacity model's answers, kept together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.scheduler import CapacityModel, SchedulerConfig
from kvplan.scheduler.cache.geometry import ceil_div
from kvplan.sizing.wish import Wish


@dataclass(frozen=True, slots=True)
class Need:
    """Pages and LCM blocks of each group, in the order of ``cache_groups``."""

    pages: tuple[int, ...]
    blocks: tuple[int, ...]

    @property
    def total_blocks(self) -> int:
        """LCM blocks of all groups together."""
        return sum(self.blocks)


def batch_need(config: SchedulerConfig, wish: Wish) -> Need:
    """Return what the requests of ``wish`` need at once, however they behave (engine.md §3, concurrent).

    Raises ``ValueError`` naming the field if a sizing input is invalid.
    """
    model = CapacityModel(replace(config, max_batch_size=wish.max_batch_size))
    return _need(config, model.concurrent_group_pages(wish.total_tokens, wish.max_context_len))


def single_need(config: SchedulerConfig, tokens: int) -> Need:
    """Return what one request of ``tokens`` tokens needs at its worst moment (engine.md §3, single)."""
    return _need(config, CapacityModel(config).single_request_group_pages(tokens))


def _need(config: SchedulerConfig, pages: list[int]) -> Need:
    packing = [group.cache_blocks_per_lcm_block for group in config.cache_groups]
    return Need(tuple(pages), tuple(ceil_div(count, k) for count, k in zip(pages, packing, strict=True)))
