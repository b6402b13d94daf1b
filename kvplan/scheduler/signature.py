"""A digest of all that decides the plans to come: equal digests, and equal answers, mean an equal future.

Pages are numbered anew in the order in which they are met and epochs are reduced to their ranks, so that a
state is recognised when it comes back with other pages or later epochs. Counts that only ever grow are left
out where they no longer decide anything.
"""

from __future__ import annotations

from hashlib import sha256

from kvplan.scheduler.cache.blocks import BlockPool
from kvplan.scheduler.cache.coordinator import Coordinator
from kvplan.scheduler.cache.geometry import ceil_div
from kvplan.scheduler.cache.prefix import PrefixIndex
from kvplan.scheduler.cache.tiers import LoadPair, StorePair
from kvplan.scheduler.demands import SAFE_STEPS
from kvplan.scheduler.request import Request
from kvplan.scheduler.roster import Roster


class Numbering:
    """Pages and parents of one tier, numbered in the order in which they are asked for."""

    def __init__(self, pool: BlockPool) -> None:
        self._packing = pool.packing
        self._pages: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._parents: dict[int, int] = {}

    def of(self, group: int, page: int) -> tuple[int, int, int]:
        """A page's number, its parent's number and its slot; 0 thrice for null."""
        if not page:
            return 0, 0, 0
        known = self._pages.get((group, page))
        if known is None:
            k = self._packing[group]
            parent = self._parents.setdefault((page - 1) // k + 1, len(self._parents) + 1)
            known = (len(self._pages) + 1, parent, (page - 1) % k)
            self._pages[group, page] = known
        return known


def signature(cache: Coordinator, roster: Roster) -> bytes:
    """The digest of a scheduler's state, as 32 bytes."""
    epochs = {0}
    for index in _indices(cache):
        for group, pages in enumerate(index.pages):
            epochs.update(index.epoch[group][page] for page in pages.values())
    requests = sorted((r for r in roster.by_id.values() if r not in roster.finished), key=lambda r: r.seq)
    epochs.update(request.epoch for request in requests if request.tables)
    ranks = {epoch: rank for rank, epoch in enumerate(sorted(epochs))}
    retracted = sorted(r.retraction_epoch for r in requests if r.readmits)
    retraction_ranks = {epoch: rank for rank, epoch in enumerate(retracted)}
    numbers = Numbering(cache.pool)
    parts: list[object] = [
        _request(request, ranks, retraction_ranks.get(request.retraction_epoch, -1), numbers)
        for request in requests
    ]
    parts.append(_tier(cache.pool, cache.index, ranks, numbers))
    if cache.host is not None:
        host_numbers = Numbering(cache.host.pool)
        parts.append(_tier(cache.host.pool, cache.host.index, ranks, host_numbers))
        for store in cache.host.stores.values():
            parts.append((store.pinned, [_pair(p, host_numbers, numbers) for p in store.pairs]))
        for load in cache.host.loads.values():
            parts.append([_pair(p, numbers, host_numbers) for p in load.pairs])
        parts.append(list(cache.host.queue))
        parts.append(cache.host.known.keys() if cache.host.known is not None else ())
    return sha256(repr(parts).encode()).digest()


def _indices(cache: Coordinator) -> list[PrefixIndex]:
    return [cache.index] if cache.host is None else [cache.index, cache.host.index]


def _pair(pair: StorePair | LoadPair, destinations: Numbering, sources: Numbering) -> tuple[object, ...]:
    group = pair.group
    return (group, pair.key, sources.of(group, pair.source), destinations.of(group, pair.destination))


def _request(
    request: Request, ranks: dict[int, int], retraction_rank: int, numbers: Numbering
) -> tuple[object, ...]:
    # Beyond the retractions that secure all it may generate, or with nothing declared, more change nothing.
    decisive = ceil_div(request.max_new, SAFE_STEPS)
    request.settle()
    return (
        request.id,
        int(request.state),
        len(request.tokens),
        request.prefill_size,
        request.begin,
        request.end,
        request.reserve,
        request.results_out,
        min(request.retractions, decisive),
        request.recoverable,
        retraction_rank,
        min(request.landed, request.prefill_size),
        request.hashed_pages,
        request.promotion,
        tuple(request.checkpoints),
        ranks[request.epoch] if request.tables else -1,
        [
            (table.available, table.reclaimed, [numbers.of(group, page) for page in table.pages])
            for group, table in enumerate(request.tables)
        ],
    )


def _tier(
    pool: BlockPool, index: PrefixIndex, ranks: dict[int, int], numbers: Numbering
) -> tuple[object, ...]:
    entries = []
    for group, pages in enumerate(index.pages):
        epoch = index.epoch[group]
        for _, key, page in sorted((epoch[page], key, page) for key, page in pages.items()):
            entries.append(
                (
                    group,
                    key,
                    numbers.of(group, page),
                    ranks[index.epoch[group][page]],
                    index.slot[group][page],
                    index.kind[group][page],
                    index.acquired[group][page],
                    pool.refs[group][page],
                )
            )
    return (len(pool.empties), tuple(pool.holes), entries)
