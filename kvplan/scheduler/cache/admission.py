"""Whether an admission fits, and which pages have to be given up for it (engine.md §7.2–7.4)."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.scheduler.cache.blocks import BlockPool
from kvplan.scheduler.cache.eviction import EvictionQueue, Rank

PageRef = tuple[int, int]  # group index, page


def blocks_short(needs: Sequence[int], holes: Sequence[int], packing: Sequence[int]) -> int:
    """Empty parents that ``needs`` pages a group take beyond the free slots of bound parents (§7.2)."""
    short = 0
    for need, free, k in zip(needs, holes, packing, strict=True):
        if need > free:
            short -= (free - need) // k
    return short


class FitState:
    """The pool as it would be after some of its pages are given up; the pool itself is left alone."""

    __slots__ = ("_empties", "_holes", "_needs", "_pool", "_removed")

    def __init__(self, pool: BlockPool, needs: Sequence[int]) -> None:
        self._pool = pool
        self._needs = needs
        self._holes = list(pool.holes)
        self._empties = len(pool.empties)
        self._removed: dict[int, int] = {}  # pages given up, by parent

    def fits(self) -> bool:
        """Whether the needs fit now."""
        return blocks_short(self._needs, self._holes, self._pool.packing) <= self._empties

    def give_up(self, group: int, page: int) -> None:
        """Count a page as free."""
        k = self._pool.packing[group]
        parent = (page - 1) // k + 1
        removed = self._removed.get(parent, 0) + 1
        self._removed[parent] = removed
        if removed == self._pool.occupied[parent]:
            self._empties += 1
            self._holes[group] -= k - 1
        else:
            self._holes[group] += 1

    def keep(self, group: int, page: int) -> None:
        """Count a page that was given up as taken again."""
        k = self._pool.packing[group]
        parent = (page - 1) // k + 1
        removed = self._removed[parent]
        self._removed[parent] = removed - 1
        if removed == self._pool.occupied[parent]:
            self._empties -= 1
            self._holes[group] += k - 1
        else:
            self._holes[group] -= 1


def could_fit(pool: BlockPool, needs: Sequence[int], hits: Sequence[PageRef], own: Sequence[PageRef]) -> bool:
    """Whether the needs would fit if every candidate were given up: all cache that nobody holds except
    ``hits``, and the request's ``own`` expired pages. Exact: giving up one page more never makes a fit worse.
    """
    packing = pool.packing
    if len(packing) == 1 and packing[0] == 1 and not own:
        refs = pool.refs[0]
        loose = sum(1 for _, page in hits if not refs[page])
        return needs[0] <= pool.idle - loose
    reach, idle = all_given_up(pool, hits, own)
    return blocks_short(needs, reach, packing) <= idle


def all_given_up(pool: BlockPool, hits: Sequence[PageRef], own: Sequence[PageRef]) -> tuple[list[int], int]:
    """The pool if every candidate were given up: free slots by group in parents in use, and empty parents."""
    packing = pool.packing
    reach, idle = list(pool.reach), pool.idle
    held: dict[int, int] = {}
    for group, page in hits:
        if not pool.refs[group][page]:
            k = packing[group]
            parent = (page - 1) // k + 1
            count = held.get(parent, pool.held[parent])
            held[parent] = count + 1
            if count:
                reach[group] -= 1
            else:
                idle -= 1
                reach[group] += k - 1
    for group, page in own:
        k = packing[group]
        parent = (page - 1) // k + 1
        count = held.get(parent, pool.held[parent]) - 1
        held[parent] = count
        if count:
            reach[group] += 1
        else:
            idle += 1
            reach[group] -= k - 1
    return reach, idle


def plan_victims(
    pool: BlockPool,
    queue: EvictionQueue,
    needs: Sequence[int],
    hits: Sequence[PageRef],
    own: Sequence[Rank],
    considered: list[Rank] | None = None,
) -> list[PageRef] | None:
    """The pages to give up so that ``needs`` pages a group fit, in eviction order; ``None`` if none suffice.

    ``own`` are the ranks of the request's expired pages that only it and the index hold. Nothing of the pool
    changes. Victims that turn out not to be needed are spared, the last one first (§7.3). All that were chosen
    at first are added to ``considered`` if given.
    """
    if blocks_short(needs, pool.holes, pool.packing) <= len(pool.empties):
        return []
    if not could_fit(pool, needs, hits, [(rank[-2], rank[-1]) for rank in own]):
        return None
    state = FitState(pool, needs)
    hit_set = set(hits)
    mine = sorted(own)
    at = 0
    chosen: list[Rank] = []
    returned: list[Rank] = []
    draws = queue.draw()
    pending: Rank | None = None
    exhausted = False
    while not state.fits():
        while pending is None and not exhausted:
            pending = next(draws, None)
            if pending is None:
                exhausted = True
            elif hit_set and (pending[-2], pending[-1]) in hit_set:
                returned.append(pending)
                pending = None
        if at < len(mine) and (pending is None or mine[at] < pending):
            rank = mine[at]
            at += 1
        else:
            assert pending is not None, "a pool that could fit ran out of victims"
            rank, pending = pending, None
        chosen.append(rank)
        state.give_up(rank[-2], rank[-1])
    if pending is not None:
        returned.append(pending)
    if considered is not None:
        considered += chosen
    kept: list[Rank] = []
    if len(pool.packing) > 1 or pool.packing[0] > 1:
        own_set = set(mine)
        for rank in reversed(chosen):
            state.keep(rank[-2], rank[-1])
            if state.fits():
                if rank not in own_set:
                    returned.append(rank)
            else:
                state.give_up(rank[-2], rank[-1])
                kept.append(rank)
        kept.reverse()
    else:
        kept = chosen
    queue.restore(returned)
    return [(rank[-2], rank[-1]) for rank in kept]
