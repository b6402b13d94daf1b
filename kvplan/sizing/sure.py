"""What requests hold at their worst, wherever their pages lie: the pool in which none ever waits for a page.

The engine's demand for a batch (engine.md §3) counts one chunk in flight, and packs the pages of a group as
close as they go. Both are averages that the engine's own rounds may miss for a while, and then a request
waits:

* a request keeps the pages of its last chunk until its next admission, and while prefills go first several
  requests do so together;
* a parent stays bound to its group until it is empty, and fresh pages open empty parents before anything that
  is cached gives way (§4, §7). So one live page of a window or a snapshot may hold a whole LCM block, next to
  pages that nobody needs any more.
"""

from __future__ import annotations

from kvplan.scheduler import CacheGroupConfig, SchedulerConfig
from kvplan.scheduler.cache.geometry import ceil_div
from kvplan.scheduler.config import GroupKind
from kvplan.sizing.need import batch_need, single_need
from kvplan.sizing.wish import Wish


def sure_blocks(config: SchedulerConfig, wish: Wish) -> int:
    """Return usable LCM blocks in which no request of ``wish`` ever waits for a page, declared budget or not.

    Every request counts at its own worst moment, and every page of a window or a state with an LCM block of
    its own, as long as there is another group that could lack that block. For requests that come to an empty
    pool without a host pool; more than the engine asks for, never less.
    """
    batch, one = batch_need(config, wish), single_need(config, wish.max_context_len)
    requests, alone = wish.max_batch_size, len(config.cache_groups) == 1
    ahead = max(config.decode_input_tokens - 1, 0)  # a step takes room for tokens that may not be accepted
    total = 0
    for index, group in enumerate(config.cache_groups):
        if group.kind == GroupKind.FULL:
            pages = batch.pages[index] + requests * ceil_div(ahead, group.block_granularity)
        else:
            pages = max(batch.pages[index], requests * (one.pages[index] + _cut_short(config, group)))
        packed = group.kind == GroupKind.FULL or alone
        total += ceil_div(pages, group.cache_blocks_per_lcm_block) if packed else pages
    return total


def _cut_short(config: SchedulerConfig, group: CacheGroupConfig) -> int:
    """Pages that a request needs more when its first chunk gets what others left of a round's budget.

    The next chunk starts from a snapshot, which the single-request formula counts with the prefix cache alone
    where a whole prompt fits a round (§3, local peak of a state).
    """
    return int(group.kind == GroupKind.STATE and config.disable_prefix_cache)
