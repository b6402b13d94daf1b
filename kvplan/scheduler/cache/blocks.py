"""The pool of LCM blocks and the block tables cut from it (engine.md §4, §5).

A page is an integer, what is known of it lies in flat lists keyed by it; no token is known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush


def _ignore(group: int, page: int) -> None:
    """What a pool without an index does with a cached page that nobody holds: nothing."""


class BlockPool:
    """LCM blocks 1..N (*parents*), each bound to the group of its first page until it is empty again (§4).

    A page of group ``g`` is held while ``refs[g][page]`` is above 0, and cached while an index has it
    (``cached[g][page]``). It is free when it is neither.
    """

    __slots__ = (
        "_hole_heaps",
        "_open_slots",
        "cached",
        "empties",
        "gains",
        "group_of",
        "held",
        "holes",
        "idle",
        "num_parents",
        "occupied",
        "on_idle",
        "packing",
        "reach",
        "refs",
        "shards",
    )

    def __init__(self, parents: int, packing: Sequence[int], shards: Sequence[int] | None = None) -> None:
        self.num_parents = parents
        self.packing = list(packing)
        self.shards = list(shards) if shards is not None else [1] * len(self.packing)
        self.empties = deque(range(1, parents + 1))
        self.group_of = [-1] * (parents + 1)
        self.occupied = [0] * (parents + 1)
        self.held = [0] * (parents + 1)  # pages of the parent that something refers to
        self._open_slots = [0] * (parents + 1)  # bit set of a bound parent's free slots
        self.refs = [[0] * (parents * k + 1) for k in self.packing]
        self.cached = [bytearray(parents * k + 1) for k in self.packing]
        self.holes = [0] * len(self.packing)  # free slots in parents bound to the group
        # Slots that would be free in the group's held parents if everything only cached were evicted.
        self.reach = [0] * len(self.packing)
        self.gains = 0  # grows whenever a page is let go of: what did not fit before may fit then
        self.idle = parents  # parents that hold nothing but cache, the empty ones included
        self._hole_heaps: list[list[list[tuple[int, int]]]] = [[[] for _ in range(s)] for s in self.shards]
        self.on_idle: Callable[[int, int], None] = _ignore

    def add_parents(self, extra: int) -> None:
        """Add empty parents at the end of the order in which they are opened."""
        first = self.num_parents + 1
        self.num_parents += extra
        self.empties.extend(range(first, first + extra))
        self.group_of += [-1] * extra
        self.occupied += [0] * extra
        self.held += [0] * extra
        self._open_slots += [0] * extra
        for group, k in enumerate(self.packing):
            self.refs[group] += [0] * (extra * k)
            self.cached[group] += bytes(extra * k)
        self.idle += extra
        self.gains += 1

    def free_pages(self, group: int) -> int:
        """Pages of ``group`` that could be taken now: holes, and every slot of the empty parents."""
        return len(self.empties) * self.packing[group] + self.holes[group]

    def ref(self, group: int, page: int) -> None:
        """Hold a page once more."""
        refs = self.refs[group]
        count = refs[page]
        refs[page] = count + 1
        if not count:
            k = self.packing[group]
            parent = (page - 1) // k + 1
            held = self.held[parent]
            self.held[parent] = held + 1
            if held:
                self.reach[group] -= 1
            else:
                self.idle -= 1
                self.reach[group] += k - 1

    def unref(self, group: int, page: int) -> None:
        """Let go of a page; one that nothing refers to any more is free, or evictable if cached."""
        refs = self.refs[group]
        count = refs[page] - 1
        assert count >= 0, f"page {page} of group {group} is let go of once too often"
        refs[page] = count
        if count:
            return
        self.gains += 1
        k = self.packing[group]
        parent = (page - 1) // k + 1
        held = self.held[parent] - 1
        self.held[parent] = held
        if held:
            self.reach[group] += 1
        else:
            self.idle += 1
            self.reach[group] -= k - 1
        if self.cached[group][page]:
            self.on_idle(group, page)
        else:
            self._free(group, page, parent, k)

    def cache(self, group: int, page: int) -> None:
        """Mark a page as one that the index has."""
        self.cached[group][page] = 1

    def uncache(self, group: int, page: int) -> None:
        """The index drops a page; it is free if nothing holds it."""
        self.cached[group][page] = 0
        if not self.refs[group][page]:
            k = self.packing[group]
            self._free(group, page, (page - 1) // k + 1, k)

    def take(self, group: int, count: int, loads: list[int] | None = None) -> list[int]:
        """``count`` fresh pages, each held once, in the order of §4. The caller has checked that they fit.

        ``loads``: with shards, the request's pages already in each bucket; it grows as pages are taken.
        """
        k = self.packing[group]
        if k == 1:
            return self._take_whole(group, count)
        refs = self.refs[group]
        pages = []
        for _ in range(count):
            parent, slot = self._choose(group, k, loads)
            page = 1 + (parent - 1) * k + slot
            occupied = self.occupied[parent]
            if occupied:
                self.holes[group] -= 1
            else:
                self.group_of[parent] = group
                self._open_slots[parent] = (1 << k) - 1
                self.holes[group] += k - 1
            self.occupied[parent] = occupied + 1
            self._open_slots[parent] &= ~(1 << slot)
            self._offer_holes(group, parent)
            refs[page] = 1
            held = self.held[parent]
            self.held[parent] = held + 1
            if held:
                self.reach[group] -= 1
            else:
                self.idle -= 1
                self.reach[group] += k - 1
            if loads is not None:
                loads[slot % len(loads)] += 1
            pages.append(page)
        return pages

    def _take_whole(self, group: int, count: int) -> list[int]:
        popleft, group_of, occupied = self.empties.popleft, self.group_of, self.occupied
        held, refs = self.held, self.refs[group]
        pages = [popleft() for _ in range(count)]
        for page in pages:
            group_of[page] = group
            occupied[page] = 1
            held[page] = 1
            refs[page] = 1
        self.idle -= count
        return pages

    def _free(self, group: int, page: int, parent: int, k: int) -> None:
        occupied = self.occupied[parent] - 1
        self.occupied[parent] = occupied
        if occupied:
            self.holes[group] += 1
            self._open_slots[parent] |= 1 << (page - 1) % k
            self._offer_holes(group, parent)
        else:
            self.group_of[parent] = -1
            self.empties.append(parent)
            self.holes[group] -= k - 1

    def _offer_holes(self, group: int, parent: int) -> None:
        """Enter a parent whose occupancy changed among those with a hole, in each bucket that has one."""
        open_slots = self._open_slots[parent]
        if not open_slots:
            return
        item = (-self.occupied[parent], parent)
        heaps = self._hole_heaps[group]
        if len(heaps) == 1:
            heappush(heaps[0], item)
            return
        shards = len(heaps)
        for bucket, heap in enumerate(heaps):
            if _bucket_slots(open_slots, bucket, shards):
                heappush(heap, item)

    def _choose(self, group: int, k: int, loads: list[int] | None) -> tuple[int, int]:
        shards = self.shards[group]
        order: Sequence[int] = (0,)
        if shards > 1:
            assert loads is not None
            bucket_loads = loads
            order = sorted(range(shards), key=lambda bucket: (bucket_loads[bucket], bucket))
        if self.holes[group]:
            for bucket in order:
                parent = self._best_hole(group, bucket, shards)
                if parent:
                    slots = _bucket_slots(self._open_slots[parent], bucket, shards)
                    return parent, (slots & -slots).bit_length() - 1
        return self.empties.popleft(), order[0]

    def _best_hole(self, group: int, bucket: int, shards: int) -> int:
        heap = self._hole_heaps[group][bucket]
        while heap:
            negative, parent = heap[0]
            # Items are not taken out when a parent changes: what no longer holds is dropped here.
            if (
                self.group_of[parent] == group
                and self.occupied[parent] == -negative
                and _bucket_slots(self._open_slots[parent], bucket, shards)
            ):
                return parent
            heappop(heap)
        return 0


def _bucket_slots(open_slots: int, bucket: int, shards: int) -> int:
    """The free slots that fall in a bucket, as a bit set."""
    if shards == 1:
        return open_slots
    slots, mask = open_slots >> bucket, 0
    shift = bucket
    while slots:
        if slots & 1:
            mask |= 1 << shift
        slots >>= shards
        shift += shards
    return mask


class Table:
    """One request's block table in one group (§5). Slot ``i`` holds a page, or 0 for null.

    The first ``len`` entries of ``pages`` are never changed in place, only replaced by a changed copy: a
    plan keeps the list it was made with and its length, and so shows the table as it then was.
    """

    __slots__ = ("available", "pages", "reclaimed")

    def __init__(self) -> None:
        self.pages: list[int] = []
        self.available = 0  # unconsumed tokens at the tail
        self.reclaimed = 0  # slots below hold no page any more
