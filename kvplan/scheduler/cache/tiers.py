"""The host tier and the keys known to storage (engine.md §11): where pages go, what is in flight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvplan.scheduler.cache.blocks import BlockPool
from kvplan.scheduler.cache.groups import Group
from kvplan.scheduler.cache.prefix import NO_SLOT, BoundaryKind, PrefixIndex

PageKey = tuple[int, bytes]  # group index, key


@dataclass(slots=True)
class StorePair:
    """One page on its way from the device to the host."""

    group: int
    key: bytes
    source: int
    destination: int


@dataclass(slots=True)
class StoreOp:
    """A store in flight; ``pinned`` ones hold their device pages until the ack."""

    op_id: int
    pairs: list[StorePair]
    pinned: bool


@dataclass(slots=True)
class LoadPair:
    """One page on its way from the host (``from_storage``: from storage into the host page first)."""

    group: int
    key: bytes
    source: int
    destination: int
    from_storage: bool


@dataclass(slots=True)
class LoadOp:
    """A load-back in flight; it holds both pages of every pair until it is done."""

    op_id: int
    pairs: list[LoadPair]


@dataclass(slots=True)
class HostHits:
    """What an admission got of the host part of its hit: pages pinned or taken, by group and slot."""

    boundary: int  # prefix pages
    begins: list[int]  # per group, the first slot that has a page
    pages: list[list[int]] = field(default_factory=list)
    fresh: list[list[bool]] = field(default_factory=list)  # whether storage has to fill the page


def host_rank(index: PrefixIndex, group: int, page: int) -> tuple[int, ...]:
    """How little a host entry is worth: (was acquired, epoch, group, page), least valuable first (§11)."""
    return (index.acquired[group][page], index.epoch[group][page], group, page)


class KnownKeys:
    """The keys known to be stored, in order of first arrival, at most ``bound`` of them (§11)."""

    __slots__ = ("_keys", "bound", "version")

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.version = 0  # grows with every change
        self._keys: dict[PageKey, None] = {}

    def __contains__(self, key: PageKey) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: PageKey) -> None:
        """Remember a key; the oldest one goes if there are too many. A known key keeps its place."""
        if key in self._keys:
            return
        self.version += 1
        self._keys[key] = None
        if len(self._keys) > self.bound:
            del self._keys[next(iter(self._keys))]

    def register(self, keys: Iterable[PageKey]) -> None:
        """Take keys in their order of worth; those beyond the bound are forgotten (``api.md``)."""
        self.version += 1
        ordered = list(dict.fromkeys(keys))
        kept = dict.fromkeys(ordered[: self.bound])
        for key in ordered[self.bound :]:
            self._keys.pop(key, None)
        victims = iter([key for key in self._keys if key not in kept])
        for key in kept:
            if key in self._keys:
                continue
            if len(self._keys) >= self.bound:
                del self._keys[next(victims)]
            self._keys[key] = None

    def forget(self, keys: Iterable[PageKey]) -> None:
        """Forget keys; unknown ones are ignored."""
        self.version += 1
        for key in keys:
            self._keys.pop(key, None)

    def keys(self) -> list[PageKey]:
        """The keys known, oldest first."""
        return list(self._keys)

    def clear(self) -> None:
        """Forget all."""
        self.version += 1
        self._keys.clear()


class HostPresence:
    """Whether the host probe counts a key of one group: on the host, or known to be stored (§11)."""

    __slots__ = ("_group", "_known", "_pages")

    def __init__(self, group: int, pages: dict[bytes, int], known: KnownKeys) -> None:
        self._group = group
        self._pages = pages
        self._known = known

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and (key in self._pages or (self._group, key) in self._known)


class HostTier:
    """The host pool with its index, what is queued for it and what is in flight to and from it."""

    def __init__(self, groups: Sequence[Group], parents: int, storage: bool) -> None:
        self.groups = groups
        # The host pool never shards (§11).
        self.pool = BlockPool(parents, [group.packing for group in groups])
        self.index = PrefixIndex(self.pool, host_rank)
        bound = sum(parents * group.packing for group in groups)
        self.known: KnownKeys | None = KnownKeys(bound) if storage else None
        self.queue: dict[PageKey, None] = {}
        self.storing: dict[PageKey, None] = {}  # in the order they came: a saved state is always the same
        self.stores: dict[int, StoreOp] = {}
        self.loads: dict[int, LoadOp] = {}
        self.next_op_id = 0

    @property
    def presence(self) -> list[dict[bytes, int] | HostPresence]:
        """Per group, what the host probe finds."""
        if self.known is None:
            return list(self.index.pages)
        known = self.known
        return [HostPresence(index, pages, known) for index, pages in enumerate(self.index.pages)]

    @property
    def pinned_stores(self) -> bool:
        """Whether a store that holds device pages is in flight."""
        return any(op.pinned for op in self.stores.values())

    @property
    def pinned_pages(self) -> int:
        """Device pages that transfers in flight hold."""
        stored = sum(len(op.pairs) for op in self.stores.values() if op.pinned)
        return stored + sum(len(op.pairs) for op in self.loads.values())

    def new_op_id(self) -> int:
        """The next id of the counter that stores and loads share."""
        op_id = self.next_op_id
        self.next_op_id += 1
        return op_id

    def enqueue(self, group: int, key: bytes) -> None:
        """Queue a key for the next store."""
        self.queue.setdefault((group, key))

    def start_store(self, device: PrefixIndex, pinned: bool) -> StoreOp | None:
        """Turn the whole queue into one store; ``None`` if nothing of it can or need be stored (§11)."""
        if not self.queue:
            return None
        wanted: list[tuple[int, bytes, int]] = []
        for group, key in self.queue:
            if key in self.index.pages[group] or (group, key) in self.storing:
                continue
            page = device.pages[group].get(key)
            if page is not None:
                wanted.append((group, key, page))
        self.queue.clear()
        places = self.place([group for group, _, _ in wanted])
        pairs = [
            StorePair(group, key, page, place)
            for (group, key, page), place in zip(wanted, places, strict=True)
            if place
        ]
        if not pairs:
            return None
        op = StoreOp(self.new_op_id(), pairs, pinned)
        self.stores[op.op_id] = op
        for pair in pairs:
            self.storing[pair.group, pair.key] = None
            if pinned:
                device.pool.ref(pair.group, pair.source)
        return op

    def finish_store(self, op_id: int, device: BlockPool, epochs: Iterable[int]) -> None:
        """A store's ack: publish its host entries, each under its own epoch, and let go of the pages."""
        op = self.stores.pop(op_id)
        for pair, epoch in zip(op.pairs, epochs, strict=False):
            self.publish(pair.group, pair.key, pair.destination, epoch)
            self.storing.pop((pair.group, pair.key), None)
            self.pool.unref(pair.group, pair.destination)
            if op.pinned:
                device.unref(pair.group, pair.source)

    def publish(self, group: int, key: bytes, page: int, epoch: int) -> None:
        """Enter a host page into the host index, and its key among those known to storage."""
        self.index.register(group, key, page, NO_SLOT, BoundaryKind.CHUNK, epoch)
        if self.known is not None:
            self.known.add((group, key))

    def drop(self, pair: LoadPair, device: BlockPool) -> None:
        """Let go of both pages of a load, the source first."""
        self.pool.unref(pair.group, pair.source)
        device.unref(pair.group, pair.destination)

    def place(self, wanted: Sequence[int]) -> list[int]:
        """A held host page for each group index in ``wanted``, 0 where none can be had (§11).

        Free places first, then the group's own least valuable entries, then whole parents of cache.
        """
        places = [0] * len(wanted)
        lacking: dict[int, list[int]] = {}
        for at, group in enumerate(wanted):
            if self.pool.holes[group] or self.pool.empties:
                places[at] = self.pool.take(group, 1)[0]
            else:
                lacking.setdefault(group, []).append(at)
        for group, positions in lacking.items():
            self._evict_entries(group, len(positions))
            self._fill(group, positions, places)
        for group, positions in lacking.items():
            while positions and self._evict_parent():
                self._fill(group, positions, places)
        return places

    def _fill(self, group: int, positions: list[int], places: list[int]) -> None:
        while positions and (self.pool.holes[group] or self.pool.empties):
            places[positions.pop(0)] = self.pool.take(group, 1)[0]

    def _evict_entries(self, group: int, count: int) -> None:
        draws = self.index.queue.draw(group)
        for _ in range(count):
            rank = next(draws, None)
            if rank is None:
                return
            self.index.remove(group, rank[-1])

    def _evict_parent(self) -> bool:
        """Empty the parent of nothing but unpinned entries whose best page is worth least."""
        pool = self.pool
        best: tuple[tuple[int, ...], int] | None = None
        for parent in range(1, pool.num_parents + 1):
            if pool.occupied[parent] and not pool.held[parent]:
                pages = self._pages_of(parent)
                worth = max(host_rank(self.index, *page) for page in pages)
                if best is None or worth < best[0]:
                    best = (worth, parent)
        if best is None:
            return False
        for group, page in self._pages_of(best[1]):
            self.index.remove(group, page)
        return True

    def _pages_of(self, parent: int) -> list[tuple[int, int]]:
        group = self.pool.group_of[parent]
        k = self.pool.packing[group]
        first = 1 + (parent - 1) * k
        return [(group, page) for page in range(first, first + k) if self.pool.cached[group][page]]
