"""Which waiting prompts need not be tried again, because nothing that decides their admission has changed.

This is bookkeeping, not a rule: an attempt that is skipped here is one that would have failed for capacity.
Two things are known of failed attempts. An attempt fails again while no page was let go of and no entry came
to or left an index, with the same budget. And where all groups are full ones, a request with a declared
generation needs ``ceil((prompt + headroom) / g)`` pages whatever its chunk; only hits on pages that running
requests hold spare it some, and those make up a leading run, which grows only when the page right behind it
becomes held: that page's key is watched.
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
    """The pages that a waiting request needs at the least beyond those that running requests hold for it."""

    __slots__ = ("keys", "needs")

    def __init__(self, needs: list[int], keys: list[bytes | None]) -> None:
        super().__init__()
        self.needs = needs
        self.keys = keys  # watched, by group


class Backlog:
    """What is known of the waiting prompts' last attempts."""

    def __init__(self, cache: Coordinator, roster: Roster, role: Role) -> None:
        self._cache = cache
        self._roster = roster
        self._floors = role != Role.P and all(group.closed for group in cache.groups)
        self._single = len(cache.groups) == 1 and cache.groups[0].packing == 1
        self._failed: tuple[int, ...] | None = None  # the state in which all attempts failed
        self._failed_first: Request | None = None
        self._lowest: list[int] | None = None  # per group, the least that any waiting request needs
        self._lowest_at: tuple[int, int] = (-1, -1)

    def hopeless(self, budget: int) -> tuple[bool, Request | None]:
        """Whether no waiting prompt can be admitted, and the first of them to fail for capacity."""
        if self._lowest is not None and self._lowest_at == self._queue_state() and self.short(self._lowest):
            return True, self._roster.new_prompts.items[0]
        if self._failed is not None and self._failed == self._state(budget):
            return True, self._failed_first
        return False, None

    def short(self, needs: Sequence[int]) -> bool:
        """Whether ``needs`` pages a group cannot be had even if all cache that nobody holds were evicted."""
        pool = self._cache.pool
        if self._single:
            return needs[0] > pool.idle + self._pins()
        return blocks_short(needs, pool.reach, pool.packing) > pool.idle + self._pins()

    def cannot(self, request: Request) -> bool:
        """Whether an attempt would fail for capacity for certain."""
        floor = request.floor
        if floor is None:
            return False
        if floor.told:
            self.note(request)
            floor = request.floor
            if floor is None:
                return False
        return self.short(floor.needs)

    def note(self, request: Request) -> None:
        """Work out the floor of a request whose attempt failed for capacity."""
        if not self._floors or request.headroom <= 0:
            return
        self.forget(request)
        tokens = request.prefill_size + request.headroom
        cache, needs, watched = self._cache, [], []
        digests = request.keys.digests
        floor = Floor([], [])
        for group in cache.groups:
            pages, refs = cache.index.pages[group.index], cache.pool.refs[group.index]
            keys = request.keys.of(group.pages_per_prefix)
            at, end = 0, len(digests) * group.pages_per_prefix
            while at < end and refs[pages.get(keys[at], 0)]:
                at += 1
            needs.append(ceil_div(tokens, group.granularity) - at)
            key = keys[at] if at < end else None
            watched.append(key)
            if key is not None:
                cache.index.watch[group.index].setdefault(key, []).append(floor)
        floor.needs, floor.keys = needs, watched
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
        waiting = self._roster.new_prompts.items
        self._lowest = None
        lowest = [0] * len(self._cache.groups)
        for at, request in enumerate(waiting):
            floor = request.floor
            if floor is None or floor.told:
                return
            if not at:
                lowest = list(floor.needs)
            else:
                for group, need in enumerate(floor.needs):
                    if need < lowest[group]:
                        lowest[group] = need
        self._lowest, self._lowest_at = lowest, self._queue_state()

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
