"""Stores and load-backs between the device's pages, the host's and storage (engine.md §11, design note §2)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvplan.backends.arena import Arena
from kvplan.backends.ledger import Ledger
from kvplan.backends.pairs import Pair, check_moved, pairs_of
from kvplan.backends.storage import Storage
from kvplan.backends.streams import CopyStream, Ticket
from kvplan.backends.writers import Writer
from kvplan.scheduler import Cache


@dataclass(slots=True)
class Store:
    """A store that was started and is not acknowledged."""

    op_id: int
    pairs: list[Pair]
    writer: Writer
    ticket: Ticket
    pinned: bool


class Transfers:
    """Carries out what a plan's ``cache`` says."""

    def __init__(
        self, device: Arena, host: Arena, stream: CopyStream, ledger: Ledger, storage: Storage | None
    ) -> None:
        self._device = device
        self._host = host
        self._stream = stream
        self._ledger = ledger
        self._storage = storage
        self._stores: dict[int, Store] = {}
        self._loads: dict[int, Ticket] = {}
        self._held: dict[tuple[int, int], tuple[str, int]] = {}  # what stores have brought to each host page
        self._to_tell: list[int] = []  # settled because a load-back needed them, and not told by ``settled``
        # Device pages that a pinned store still holds, and host pages whose store is not acknowledged: the op,
        # and the digest of the page.
        self._sources: dict[tuple[int, int], tuple[int, str]] = {}
        self._arriving: dict[tuple[int, int], tuple[int, str]] = {}

    # --- stores -------------------------------------------------------------------------------------

    def store(self, op: Cache.WriteBackOp) -> None:
        """Start an operation's stores: pinned ones beside the forward, the others before all that follows."""
        for at, op_id in enumerate(op.op_ids):
            pairs = pairs_of(op, at)
            pinned = op.source_pinned[at]
            start = self._stream.beside if pinned else self._stream.fenced
            writer = self._ledger.writer(f"store {op_id}")
            ticket = start(self._copying(self._device, self._host, pairs))
            self._stores[op_id] = Store(op_id, pairs, writer, ticket, pinned)
            self._ledger.counts.pages_stored += len(pairs)
            for pair in pairs:
                self._arriving[pair.group, pair.destination] = op_id, pair.digest
                if pinned:
                    self._sources[pair.group, pair.source] = op_id, pair.digest

    def done(self, op_id: int) -> bool:
        """Whether an operation's copies are complete, so that it may be acknowledged."""
        store = self._stores.get(op_id)
        ticket = store.ticket if store is not None else self._loads.get(op_id)
        return ticket is None or ticket.done()

    def settle(self, op_id: int) -> None:
        """Wait for an operation's copies: it is about to be acknowledged. Raises ``Violation`` if what a store
        has brought to the host is not what its key says."""
        load = self._loads.pop(op_id, None)
        if load is not None:
            load.wait()
        store = self._stores.pop(op_id, None)
        if store is None:
            return
        store.ticket.wait()
        for pair in store.pairs:
            self._arriving.pop((pair.group, pair.destination), None)
            self._held[pair.group, pair.destination] = pair.digest, pair.offset
            if self._sources.get((pair.group, pair.source)) == (op_id, pair.digest):
                del self._sources[pair.group, pair.source]
            self._ledger.host.note(pair.group, [pair.destination], store.writer)
        check_moved(self._host, self._ledger, f"store {op_id}", store.pairs, "host")
        if self._storage is not None:
            for pair in store.pairs:
                page = self._host.page(pair.group, pair.destination)
                self._storage.put((pair.group, pair.digest, pair.offset), page)

    def settled(self) -> list[int]:
        """The operations whose copies are complete, settled, oldest first: they may be acknowledged."""
        ready = [op_id for op_id in (*self._stores, *self._loads) if self.done(op_id)]
        for op_id in ready:
            self.settle(op_id)
        told, self._to_tell = self._to_tell, []
        return sorted(told + ready)

    def finish(self) -> None:
        """Settle whatever has not been acknowledged. Raises ``Violation``."""
        for op_id in sorted((*self._stores, *self._loads)):
            self.settle(op_id)

    def guard(self, group: int, pages: Iterable[int], what: str) -> None:
        """Raise ``Violation`` if a page that is about to be written is the source of a store that is out."""
        if not self._sources:
            return
        for page in pages:
            op_id, digest = self._sources.get((group, page), (-1, ""))
            if op_id >= 0 and not self.done(op_id):
                what = f"{what} before store {op_id} has copied it"
                raise self._ledger.violation(self._named(digest), "device", group, page, what)

    def _named(self, digest: str) -> str:
        """A request whose history has the page of a key."""
        named = self._ledger.roll.keyed(digest)
        return "-" if named is None else named[0].request_id

    # --- load-backs ---------------------------------------------------------------------------------

    def load(self, op: Cache.LoadBackOp, failing: Collection[int]) -> None:
        """Carry out load-backs. Of one that fails, what storage had to bring does not come, and its pages on
        both tiers are as if nobody had written them."""
        for at, op_id in enumerate(op.op_ids):
            pairs, who = pairs_of(op, at), f"load-back {op_id}"
            if op_id in failing:
                self._lose(op_id, [pair for pair in pairs if pair.from_storage])
                pairs = [pair for pair in pairs if not pair.from_storage]
            for pair in pairs:
                self._ready(op_id, pair)
            pairs = [self._told(pair) for pair in pairs]
            check_moved(self._host, self._ledger, who, pairs, "host", source=True)
            self._loads[op_id] = self._stream.fenced(self._copying(self._host, self._device, pairs))
            self._ledger.counts.pages_loaded += len(pairs)
            for pair in pairs:
                source = self._ledger.host.of(pair.group, pair.source)
                writer = self._ledger.writer(f"load-back {op_id} of host page {pair.source} ({source})")
                self._ledger.device.note(pair.group, [pair.destination], writer)
            check_moved(self._device, self._ledger, who, pairs, "device")

    def _lose(self, op_id: int, pairs: Sequence[Pair]) -> None:
        writer = self._ledger.writer(f"load-back {op_id}, which failed,")
        for pair in pairs:
            self.guard(pair.group, [pair.destination], f"load-back {op_id} fills it")
            self._device.spoil(pair.group, pair.destination)
            self._host.spoil(pair.group, pair.source)
            self._ledger.device.note(pair.group, [pair.destination], writer)
            self._ledger.host.note(pair.group, [pair.source], writer)
            self._ledger.counts.pages_lost += 1

    def _ready(self, op_id: int, pair: Pair) -> None:
        self.guard(pair.group, [pair.destination], f"load-back {op_id} fills it")
        store, digest = self._arriving.get((pair.group, pair.source), (-1, ""))
        if store >= 0 and self.done(store):
            self.settle(store)
            self._to_tell.append(store)
        elif store >= 0:
            what = f"load-back {op_id} reads it before store {store} is there"
            raise self._ledger.violation(self._named(digest), "host", pair.group, pair.source, what)
        if pair.from_storage:
            self._fill(op_id, pair)

    def _told(self, pair: Pair) -> Pair:
        """A load-back's page with its key: where the plan does not tell it, that of what its source was given."""
        digest, offset = self._held.get((pair.group, pair.source), ("", 0))
        return pair if pair.digest else replace(pair, digest=digest, offset=offset)

    def _fill(self, op_id: int, pair: Pair) -> None:
        storage = self._storage
        key = (pair.group, pair.digest, pair.offset)
        page = self._host.page(pair.group, pair.source)
        kept = storage.get(key) if storage is not None else None
        if kept is not None:
            page.copy_(kept)
        elif storage is not None and storage.elsewhere(key):
            named = self._ledger.roll.keyed(pair.digest)
            page.zero_()
            if named is not None:
                rows, marks = self._ledger.groups.keyed(pair.group, named[0], named[1], pair.offset)
                self._host.write(pair.group, np.full(len(rows), pair.source), rows, marks)
        else:
            what = f"load-back {op_id} wants it from storage, which was never given it"
            raise self._ledger.violation(self._named(pair.digest), "host", pair.group, pair.source, what)
        self._held[pair.group, pair.source] = pair.digest, pair.offset
        self._ledger.host.note(pair.group, [pair.source], self._ledger.writer("storage"))

    # --- common -------------------------------------------------------------------------------------

    def _copying(self, source: Arena, destination: Arena, pairs: Sequence[Pair]) -> Callable[[], None]:
        def copy() -> None:
            for pair in pairs:
                here = source.parts(pair.group, pair.source)
                there = destination.parts(pair.group, pair.destination)
                for place, words in zip(there, here, strict=True):
                    place.copy_(words, non_blocking=True)

        return copy
