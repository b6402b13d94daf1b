"""The capacity model: a configuration in, pages out (engine.md §3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvplan.scheduler.cache.geometry import ceil_div
from kvplan.scheduler.config import CacheGroupConfig, GroupKind, Role, SchedulerConfig

MAX_TOKENS = 2**31 - 1


class CapacityModel:
    """What requests need of a pool, from the configuration alone.

    Raises ``ValueError`` naming the field if a sizing input is invalid (§2).
    """

    def __init__(self, config: SchedulerConfig) -> None:
        config.validate_capacity_inputs()
        self._groups = [replace(group) for group in config.cache_groups]
        self._role = config.role
        self._batch = config.max_batch_size
        self._width = config.decode_input_tokens
        self._protected = config.protected_tokens
        self._chunk = config.max_scheduled_tokens
        self._prefix = config.prefix_granularity
        self._prefix_cache = not config.disable_prefix_cache

    @property
    def num_groups(self) -> int:
        """How many cache groups there are."""
        return len(self._groups)

    def single_request_group_pages(self, token_limit: int) -> list[int]:
        """Pages that one request of ``token_limit`` tokens needs at its worst moment, by group (§3)."""
        return [self._single(group, token_limit) for group in self._groups]

    def concurrent_group_pages(self, max_total_tokens: int, max_context_len: int) -> list[int]:
        """Pages that ``max_batch_size`` live requests need, by group: ``max_total_tokens`` tokens in all, none
        longer than ``max_context_len`` (§3). Raises ``ValueError`` for a negative number."""
        for name, value in (("max_total_tokens", max_total_tokens), ("max_context_len", max_context_len)):
            if value < 0:
                raise ValueError(f"{name} is {value}; at least 0 is needed")
        return [self._concurrent(group, max_total_tokens, max_context_len) for group in self._groups]

    def lcm_blocks_needed_for(self, group_pages: Sequence[int]) -> int:
        """LCM blocks that hold ``group_pages`` pages of each group."""
        if len(group_pages) != len(self._groups):
            raise ValueError(f"group_pages has {len(group_pages)} entries; {len(self._groups)} are needed")
        return sum(
            ceil_div(pages, group.cache_blocks_per_lcm_block)
            for pages, group in zip(group_pages, self._groups, strict=True)
        )

    def max_single_request_tokens(self, usable_lcm_blocks: int) -> int:
        """The longest request, in tokens, that ``usable_lcm_blocks`` blocks serve; 0 if none (§3)."""
        fits, beyond = 0, MAX_TOKENS + 1
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            if self.lcm_blocks_needed_for(self.single_request_group_pages(middle)) <= usable_lcm_blocks:
                fits = middle
            else:
                beyond = middle
        return fits

    def _single(self, group: CacheGroupConfig, tokens: int) -> int:
        g = group.block_granularity
        if group.kind == GroupKind.FULL:
            return ceil_div(tokens + self._protected, g)
        if group.kind == GroupKind.STATE:
            peak = self._state_peak(group, tokens)
            return max(peak, 2 if tokens else 0) if self._role == Role.D else peak
        if self._role == Role.D:
            window = ceil_div(group.window - 1 + self._width + self._protected + g - 1, g)
            return min(ceil_div(tokens + self._protected, g), group.lookback_pages + window)
        return self._sliding_peak(group, tokens)

    def _state_peak(self, group: CacheGroupConfig, tokens: int) -> int:
        if not tokens:
            return 0
        g = group.block_granularity
        prompt = max(tokens - self._width, 0)
        growth = 0 if self._role == Role.P else max(g, self._width + self._protected)

        def outputs(scheduled: int) -> int:
            tail = max(0, min(self._prefix - 1, self._chunk - self._prefix, prompt - scheduled))
            return 1 + ceil_div(tail + growth, g)

        first = (group.lookback_pages if self._prefix_cache else 0) + outputs(self._prefix)
        if prompt <= self._chunk:
            return first
        return max(first, group.lookback_pages + outputs(2 * self._prefix))

    def _sliding_peak(self, group: CacheGroupConfig, tokens: int) -> int:
        g, ahead = group.block_granularity, self._width + self._protected
        prompt = max(tokens - self._width, 0)
        peak = ceil_div(min(prompt, self._chunk) + ahead, g)
        if prompt > self._chunk:
            look = group.lookback_pages
            peak = max(peak, look + ceil_div(self._chunk, g))
            peak = max(peak, look + ceil_div(min(prompt - self._chunk, self._chunk) + ahead, g))
        return peak

    def _concurrent(self, group: CacheGroupConfig, total: int, context: int) -> int:
        g, batch = group.block_granularity, self._batch
        if group.kind == GroupKind.STATE:
            return batch * self._single(group, context)
        dense = ceil_div(total, g) + batch * ceil_div(g - 1 + self._protected, g)
        if group.kind == GroupKind.FULL:
            return dense
        window = ceil_div(min(group.window - 1, context) + self._width + self._protected + g - 1, g)
        if self._role == Role.D:
            return min(dense, batch * (group.lookback_pages + window))
        return batch * window + group.lookback_pages + ceil_div(min(self._chunk, total), g)
