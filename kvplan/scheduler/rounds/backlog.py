"""Which waiting prompts need not be tried again, because nothing that decides their admission has changed.

This is bookkeeping, not a rule: an attempt that is skipped here is one that would have failed for capacity.
Two things are known of failed attempts. An attempt fails again while no page was let go of and no entry came
to or left an index, with the same budget. And a first chunk takes at least so many pages of the full groups:

* with a declared generation ``ceil((prompt + headroom) / g)``, whatever its chunk;
* with none, where all groups are full, ``ceil((prompt + decode width) / g)`` if the chunk completes the prompt,
  else ``ceil(budget / g)``.

Only hits on pages that running requests hold spare it some: other hits take away as much of what could be
evicted. Those hits are a leading run, which grows only when the page right behind it becomes held; that page's
key is watched.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.scheduler.cache.admission import blocks_short
from kvplan.scheduler.cache.coordinator import Coordinator
from kvplan.scheduler.cache.geometry import ceil_div
from kvplan.scheduler.cache.prefix import Watcher
from kvplan.scheduler.config import Role
from kvplan.scheduler.request import Request
from kvplan.scheduler.roster import Roster


class Floor(Watcher):
    """The pages that a waiting request needs at the least beyond those that running requests hold for it.

    ``capped``: a chunk of the whole budget may need fewer.
    """

    __slots__ = ("capped", "keys", "needs")

    def __init__(self, capped: bool) -> None:
        super().__init__()
        self.capped = capped
        self.needs: list[int] = []
        self.keys: list[bytes | None] = []  # watched, by group


class Backlog:
    """What is known of the waiting prompts' last attempts. ``least_budget`` always makes a chunk."""

    def __init__(self, cache: Coordinator, roster: Roster, role: Role, width: int, least_budget: int) -> None:
        self._cache = cache
        self._roster = roster
        self._grows = role != Role.P
        self._width = width
        self._least_budget = max(least_budget, 1)
        self._all_full = all(group.closed for group in cache.groups)
        self._single = len(cache.groups) == 1 and cache.groups[0].packing == 1
        self._failed: tuple[int, ...] | None = None  # the state in which all attempts failed
        self._failed_first: Request | None = None
        # The least that any waiting request needs, by group: of those with a capped floor, and of the others.
        self._lowest: tuple[list[int] | None, list[int] | None] = (None, None)
        self._lowest_at: tuple[int, int] = (-1, -1)

    def hopeless(self, budget: int) -> tuple[bool, Request | None]:
        """Whether no waiting prompt can be admitted, and the first of them to fail for capacity."""
        if budget >= self._least_budget and self._lowest_at == self._queue_state():
            free, capped = self._lowest
            if (free is None or self._short(free)) and (
                capped is None or self._short(self._cap(capped, budget))
            ):
                return True, self._roster.new_prompts.items[0]
        if self._failed is not None and self._failed == self._state(budget):
            return True, self._failed_first
        return False, None

    def cannot(self, request: Request, budget: int) -> bool:
        """Whether an attempt would fail for capacity for certain."""
        floor = request.floor
        if floor is None or budget < self._least_budget:
            return False
        if floor.told:
            self.note(request)
            floor = request.floor
            if floor is None:
                return False
        return self._short(self._cap(floor.needs, budget) if floor.capped else floor.needs)

    def note(self, request: Request) -> None:
        """Work out the floor of a request whose attempt failed for capacity."""
        headroom = request.headroom if self._grows else 0
        if headroom <= 0 and not self._all_full:
            return
        self.forget(request)
        tokens = request.prefill_size + (headroom if headroom > 0 else self._width)
        cache = self._cache
        floor = Floor(capped=headroom <= 0)
        digests = len(request.keys.digests)
        for group in cache.groups:
            if not group.closed:
                floor.needs.append(0)
                floor.keys.append(None)
                continue
            pages, refs = cache.index.pages[group.index], cache.pool.refs[group.index]
            keys = request.keys.of(group.pages_per_prefix)
            at, end = 0, digests * group.pages_per_prefix
            while at < end and refs[pages.get(keys[at], 0)]:
                at += 1
            floor.needs.append(ceil_div(tokens, group.granularity) - at)
            key = keys[at] if at < end else None
            floor.keys.append(key)
            if key is not None:
                cache.index.watch[group.index].setdefault(key, []).append(floor)
        request.floor = floor

    def forget(self, request: Request) -> None:
        """Stop watching for a request."""
        floor = request.floor
        if floor is None:
            return
        request.floor = None
        for group, key in enumerate(floor.keys):
            if key is not None:
                watchers = self._cache.index.watch[group].get(key)
                if watchers is not None and floor in watchers:
                    watchers.remove(floor)
                    if not watchers:
                        del self._cache.index.watch[group][key]

    def tried(self, budget: int, first: Request | None, admitted: bool) -> None:
        """Note that every waiting prompt was tried or known to fail, ``first`` for capacity first.

        ``admitted``: some were admitted on the way, so that the others did not all see the same state.
        """
        self._failed, self._failed_first = None if admitted else self._state(budget), first
        self._lowest, self._lowest_at = (None, None), (-1, -1)
        lowest: list[list[int] | None] = [None, None]
        for request in self._roster.new_prompts.items:
            floor = request.floor
            if floor is None or floor.told:
                return
            least = lowest[floor.capped]
            if least is None:
                lowest[floor.capped] = list(floor.needs)
            else:
                for group, need in enumerate(floor.needs):
                    if need < least[group]:
                        least[group] = need
        self._lowest, self._lowest_at = (lowest[False], lowest[True]), self._queue_state()

    def _cap(self, needs: Sequence[int], budget: int) -> list[int]:
        groups = self._cache.groups
        return [
            min(need, ceil_div(budget, group.granularity)) for need, group in zip(needs, groups, strict=True)
        ]

    def _short(self, needs: Sequence[int]) -> bool:
        """Whether ``needs`` pages a group cannot be had even if all cache that nobody holds were evicted."""
        pool = self._cache.pool
        if self._single:
            return needs[0] > pool.idle + self._pins()
        return blocks_short(needs, pool.reach, pool.packing) > pool.idle + self._pins()

    def _queue_state(self) -> tuple[int, int]:
        return self._roster.new_prompts.version, self._cache.index.tellings

    def _state(self, budget: int) -> tuple[int, ...]:
        cache = self._cache
        state = (budget, self._roster.new_prompts.version, cache.pool.gains, cache.index.version)
        if cache.host is not None:
            return (*state, cache.host.index.version, cache.host.known.version if cache.host.known else 0)
        return state

    def _pins(self) -> int:
        """Pages that transfers hold: they may lie anywhere behind a request's leading run."""
        return self._cache.host.pinned_pages if self._cache.host is not None else 0
