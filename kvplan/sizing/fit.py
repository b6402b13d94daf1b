"""Whether requests fit a pool, and how far one may go until they do not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.scheduler import CapacityModel, SchedulerConfig
from kvplan.scheduler.capacity import MAX_TOKENS
from kvplan.sizing.need import batch_need, single_need
from kvplan.sizing.search import largest
from kvplan.sizing.sure import sure_blocks
from kvplan.sizing.wish import Wish


@dataclass(frozen=True, slots=True)
class Pool:
    """A configuration and the LCM blocks it has to use (the null one left out)."""

    config: SchedulerConfig
    usable_blocks: int

    def least_blocks(self, wish: Wish) -> int:
        """The smallest pool, in usable LCM blocks, that holds the requests of ``wish`` at once.

        That is the engine's demand for a batch, which leaves each request an open page of slack; one request
        by itself is admitted with what it needs at its worst moment (engine.md §2, §3). In a pool of the
        demand of a batch all its requests finish and none is retracted, if each declares its
        ``max_new_tokens``; some may wait some rounds for a page of a window. See ``sure_blocks`` for the pool
        in which none does.
        """
        if wish.is_one_request:
            return single_need(self.config, wish.max_context_len).total_blocks
        return batch_need(self.config, wish).total_blocks

    def holds(self, wish: Wish) -> bool:
        """Whether the requests of ``wish`` fit at once."""
        return self.least_blocks(wish) <= self.usable_blocks

    def longest_alone(self) -> int:
        """The longest request that the engine admits, in tokens; 0 if none."""
        return CapacityModel(self.config).max_single_request_tokens(self.usable_blocks)

    def largest_batch(self, wish: Wish) -> int:
        """The most requests as those of ``wish`` that fit at once; 0 if none does."""
        return largest(lambda n: self.holds(wish.with_batch(n)), 1, MAX_TOKENS) or 0

    def largest_batch_without_wait(self, wish: Wish) -> int:
        """The most requests as those of ``wish`` of which none ever waits for a page; 0 if even one may."""
        config, usable = self.config, self.usable_blocks
        return largest(lambda n: sure_blocks(config, wish.with_batch(n)) <= usable, 1, MAX_TOKENS) or 0

    def longest_context(self, wish: Wish) -> int:
        """The longest context with which as many requests as ``wish`` has fit at once; 0 if none does."""
        most = MAX_TOKENS if wish.max_total_tokens is None else min(wish.max_total_tokens, MAX_TOKENS)
        return largest(lambda c: self.holds(wish.with_context(c)), 1, most) or 0

    def largest_total(self, wish: Wish) -> int:
        """The most tokens in all with which the requests of ``wish`` fit at once; 0 if none does.

        At least one request must be able to reach ``max_context_len``, and none of ``wish`` is asked to hold
        more than it wants.
        """
        return (
            largest(
                lambda t: self.holds(replace(wish, max_total_tokens=t)),
                wish.max_context_len,
                wish.total_tokens,
            )
            or 0
        )
