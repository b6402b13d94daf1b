"""Prefix identity: the hashes of prefix pages, and the index from page keys to pages (engine.md §6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from hashlib import sha256
from struct import pack

from kvplan.scheduler.cache.blocks import BlockPool
from kvplan.scheduler.cache.eviction import EvictionQueue


class BoundaryKind(IntEnum):
    """Why a page was published; an entry's kind is only ever raised."""

    CHUNK = 0
    ENDPOINT = 1
    PROMOTED = 2


NO_SLOT = -1


def extend_digests(
    digests: list[bytes], token_bytes: Callable[[int, int], bytes], page: int, count: int
) -> None:
    """Append the SHA-256 digests of prefix pages up to ``count`` pages of ``page`` tokens each (§6).

    ``token_bytes(begin, end)`` gives the tokens of a range as little-endian u32.
    """
    first = len(digests)
    if count <= first:
        return
    data = token_bytes(first * page, count * page)
    size = 4 * page
    if first:
        prior = digests[-1]
    else:
        prior = sha256(pack("<II", 0, page) + data[:size]).digest()
        digests.append(prior)
        data = data[size:]
    # [len(prior) = 32][prior][page tokens][tokens]
    head, middle = pack("<I", 32), pack("<I", page)
    append = digests.append
    for start in range(0, len(data), size):
        prior = sha256(head + prior + middle + data[start : start + size]).digest()
        append(prior)


def page_keys(digests: Sequence[bytes], pages_per_prefix: int, start: int = 0) -> list[bytes]:
    """The keys of a group's pages from prefix page ``start`` on: digest, and offset inside the prefix page."""
    if pages_per_prefix == 1:
        return list(digests[start:])
    suffixes = [offset.to_bytes(4, "little") for offset in range(pages_per_prefix)]
    return [digest + suffix for digest in digests[start:] for suffix in suffixes]


def split_key(key: bytes) -> tuple[bytes, int]:
    """A page key's prefix-page digest and the page's offset in it."""
    return key[:32], int.from_bytes(key[32:], "little")


class Watcher:
    """Somebody who waits for a key's page to be held by a request."""

    __slots__ = ("told",)

    def __init__(self) -> None:
        self.told = False


class PrefixIndex:
    """Which page holds the content of a key, per group, and what decides its worth (§6)."""

    __slots__ = (
        "acquired",
        "epoch",
        "key_of",
        "kind",
        "on_change",
        "pages",
        "pool",
        "queue",
        "rank",
        "slot",
        "tellings",
        "version",
        "watch",
    )

    def __init__(self, pool: BlockPool, rank: Callable[[PrefixIndex, int, int], tuple[int, ...]]) -> None:
        sizes = [len(refs) for refs in pool.refs]
        self.pool = pool
        self.pages: list[dict[bytes, int]] = [{} for _ in sizes]  # canonical pages, in order of arrival
        self.key_of: list[list[bytes | None]] = [[None] * size for size in sizes]
        self.epoch = [[0] * size for size in sizes]
        self.slot = [[NO_SLOT] * size for size in sizes]
        self.kind = [bytearray(size) for size in sizes]
        self.acquired = [bytearray(size) for size in sizes]
        self.rank: Callable[[int, int], tuple[int, ...]] = partial(rank, self)
        self.queue = EvictionQueue(pool, self.rank)
        self.version = 0  # grows with every entry that comes or goes
        # Keys that a waiting request would profit from if their page were held, and who is to be told.
        self.watch: list[dict[bytes, list[Watcher]]] = [{} for _ in sizes]
        self.tellings = 0  # how often somebody was told
        self.on_change: Callable[[int, bytes, bool], None] | None = None
        pool.on_idle = self.queue.offer

    def add_pages(self, extra: Sequence[int]) -> None:
        """Make room for ``extra`` more pages of each group."""
        for group, count in enumerate(extra):
            self.key_of[group] += [None] * count
            self.epoch[group] += [0] * count
            self.slot[group] += [NO_SLOT] * count
            self.kind[group] += bytes(count)
            self.acquired[group] += bytes(count)
        self.queue.add_pages(extra)

    def forget_watchers(self) -> None:
        """Drop everybody who waits to be told."""
        self.watch = [{} for _ in self.watch]

    def register(self, group: int, key: bytes, page: int, slot: int, kind: int, epoch: int) -> int:
        """Publish ``page`` under ``key``; the canonical page, which is the older one if there is one (§6)."""
        pages = self.pages[group]
        known = pages.get(key)
        if known is None:
            self.version += 1
            pages[key] = page
            self.key_of[group][page] = key
            self.slot[group][page] = slot
            self.kind[group][page] = kind
            self.acquired[group][page] = 0
            self.epoch[group][page] = epoch
            self.pool.cached[group][page] = 1
            if self.on_change:
                self.on_change(group, key, True)
            known = page
        else:
            self.epoch[group][known] = epoch
            if kind > self.kind[group][known]:
                self.kind[group][known] = kind
        if not self.pool.refs[group][known]:
            self.queue.offer(group, known)
        if key in self.watch[group]:
            self._tell(group, key)
        return known

    def claim(self, group: int, page: int, epoch: int) -> None:
        """An admission takes a hit: mark it acquired, refresh its epoch, hold it."""
        self.acquired[group][page] = 1
        self.epoch[group][page] = epoch
        self.pool.ref(group, page)
        key = self.key_of[group][page]
        if key in self.watch[group]:
            assert key is not None
            self._tell(group, key)

    def _tell(self, group: int, key: bytes) -> None:
        self.tellings += 1
        for watcher in self.watch[group].pop(key):
            watcher.told = True

    def remove(self, group: int, page: int) -> None:
        """Drop a page's entry; the page is free if nothing holds it. Nothing happens if it has none."""
        key = self.key_of[group][page]
        if key is None:
            return
        self.version += 1
        del self.pages[group][key]
        self.key_of[group][page] = None
        self.pool.uncache(group, page)
        if self.on_change:
            self.on_change(group, key, False)
