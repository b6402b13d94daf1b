"""Cache events: which prefix pages the device can serve, told as a net change (``api.md``, *Extra rules*)."""

from __future__ import annotations

from dataclasses import dataclass
from struct import pack

from kvplan.scheduler.cache.coordinator import Coordinator
from kvplan.scheduler.cache.prefix import split_key
from kvplan.scheduler.events import KVEvent
from kvplan.scheduler.request import Request

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = 2**64 - 1


def block_hash(parent: int | None, tokens: bytes) -> int:
    """The 64-bit FNV-1a hash of a block: its parent's hash and its tokens as little-endian 32-bit words."""
    head = b"\0" if parent is None else b"\1" + pack("<Q", parent)
    value = _FNV_OFFSET
    for byte in head + pack("<Q", len(tokens) // 4) + tokens:
        value = (value ^ byte) * _FNV_PRIME & _MASK
    return value


@dataclass(slots=True)
class Boundary:
    """One prefix page that the log knows."""

    depth: int
    parent: int | None
    value: int
    tokens: list[int]
    stored: bool = False


class KVEventLog:
    """Follows the device index and gives the net change of servable boundaries when drained."""

    def __init__(self, cache: Coordinator, page: int) -> None:
        self._cache = cache
        self._page = page
        self._whole = sum(group.pages_per_prefix for group in cache.groups if not group.replayable)
        self._boundaries: dict[bytes, Boundary] = {}
        self._cached: dict[bytes, int] = {}  # pages on the device, by prefix page
        self._touched: dict[bytes, None] = {}
        cache.index.on_change = self._change

    def touch(self, request: Request, first: int, total: int) -> None:
        """Note a request's prefix pages ``first..total`` in the order of their first mention."""
        request.hash_to(total, self._page)
        hashes = request.block_hashes
        for at in range(len(hashes), total):
            tokens = request.tokens.to_bytes(at * self._page, (at + 1) * self._page)
            hashes.append(block_hash(hashes[-1] if at else None, tokens))
        for at in range(first, total):
            digest = request.keys.digests[at]
            if digest not in self._boundaries:
                tokens_of = request.tokens.slice(at * self._page, (at + 1) * self._page)
                parent = hashes[at - 1] if at else None
                self._boundaries[digest] = Boundary(at, parent, hashes[at], tokens_of)
            self._touched.setdefault(digest)

    def _change(self, group: int, key: bytes, stored: bool) -> None:
        digest, _ = split_key(key)
        self._cached[digest] = self._cached.get(digest, 0) + (1 if stored else -1)
        self._touched.setdefault(digest)

    def drain(self) -> list[KVEvent.BlockStored | KVEvent.BlockRemoved]:
        """The events since the last drain: removals, deepest first, then stores, shallowest first."""
        # Pages that a load-back in flight will publish when it is done are not there yet, but are coming.
        coming = self._cache.loading_digests()
        removed: list[Boundary] = []
        stored: list[Boundary] = []
        for digest in self._touched:
            count = self._cached.get(digest, 0)
            boundary = self._boundaries.get(digest)
            if boundary is not None:
                now = count == self._whole
                if now != boundary.stored:
                    boundary.stored = now
                    (stored if now else removed).append(boundary)
            if not count:
                self._cached.pop(digest, None)
                if digest not in coming:
                    self._boundaries.pop(digest, None)
        self._touched.clear()
        removed.sort(key=lambda boundary: -boundary.depth)
        stored.sort(key=lambda boundary: boundary.depth)
        return [
            *(KVEvent.BlockRemoved([boundary.value]) for boundary in removed),
            *(
                KVEvent.BlockStored([boundary.value], boundary.parent, boundary.tokens, self._page)
                for boundary in stored
            ),
        ]
