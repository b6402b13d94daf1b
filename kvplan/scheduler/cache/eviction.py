"""The order in which cached pages that nobody holds are given up (engine.md §7.4, §11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from kvplan.scheduler.cache.blocks import BlockPool

Rank = tuple[int, ...]  # smallest goes first; its last two numbers are the group and the page


class EvictionQueue:
    """Evictable pages by rank. Ranks change and pages get held, so what is queued is checked when drawn."""

    __slots__ = ("_heaps", "_pool", "_queued", "_rank")

    def __init__(self, pool: BlockPool, rank: Callable[[int, int], Rank]) -> None:
        self._pool = pool
        self._rank = rank
        self._heaps: list[list[Rank]] = [[] for _ in pool.refs]
        self._queued: list[list[Rank | None]] = [[None] * len(refs) for refs in pool.refs]

    def add_pages(self, extra: Sequence[int]) -> None:
        """Make room for ``extra`` more pages of each group."""
        for queued, count in zip(self._queued, extra, strict=True):
            queued += [None] * count

    def offer(self, group: int, page: int) -> None:
        """Enter a page that has become evictable, or whose rank has changed while it was."""
        rank = self._rank(group, page)
        queued = self._queued[group]
        if queued[page] != rank:
            queued[page] = rank
            heap = self._heaps[group]
            heappush(heap, rank)
            if len(heap) > 64 + 4 * len(queued):
                heap[:] = [entry for entry in queued if entry is not None]
                heapify(heap)

    def draw(self, group: int | None = None) -> Iterator[Rank]:
        """Evictable pages (of one group), smallest rank first, each taken out of the queue.

        ``restore`` those that are not evicted.
        """
        groups = range(len(self._heaps)) if group is None else (group,)
        while True:
            best: Rank | None = None
            for index in groups:
                top = self._top(index)
                if top is not None and (best is None or top < best):
                    best = top
            if best is None:
                return
            heappop(self._heaps[best[-2]])
            self._queued[best[-2]][best[-1]] = None
            yield best

    def restore(self, ranks: list[Rank]) -> None:
        """Put back what was drawn and not evicted."""
        for rank in ranks:
            self._queued[rank[-2]][rank[-1]] = rank
            heappush(self._heaps[rank[-2]], rank)

    def _top(self, group: int) -> Rank | None:
        heap, queued = self._heaps[group], self._queued[group]
        refs, cached = self._pool.refs[group], self._pool.cached[group]
        while heap:
            rank = heap[0]
            page = rank[-1]
            if queued[page] is rank:
                if cached[page] and not refs[page] and self._rank(group, page) == rank:
                    return rank
                queued[page] = None
            heappop(heap)
        return None
