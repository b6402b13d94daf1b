"""What must hold after every round; a breach is a bug and is told with its numbers."""

from __future__ import annotations

from collections import Counter

from kvplan.scheduler.cache.blocks import BlockPool
from kvplan.scheduler.cache.coordinator import Coordinator
from kvplan.scheduler.cache.prefix import PrefixIndex
from kvplan.scheduler.roster import Roster


def check(cache: Coordinator, roster: Roster, slots: int) -> None:
    """Raise ``AssertionError`` unless pages, references and request slots add up."""
    tables: list[Counter[int]] = [Counter() for _ in cache.groups]
    for request in roster.holders():
        for group, table in zip(cache.groups, request.tables, strict=True):
            tables[group.index].update(page for page in table.pages if page)
            assert all(not page for page in table.pages[: table.reclaimed]), (
                f"request {request.id!r} holds a page of {group.id} below its reclaimed slot {table.reclaimed}"
            )
    held = [counter + pins for counter, pins in zip(tables, cache.pins(), strict=True)]
    host_held: list[Counter[int]] = [Counter() for _ in cache.groups]
    if cache.host is not None:
        for store in cache.host.stores.values():
            for pair in store.pairs:
                host_held[pair.group][pair.destination] += 1
        for load in cache.host.loads.values():
            for moved in load.pairs:
                host_held[moved.group][moved.source] += 1
        check_pool(cache.host.pool, cache.host.index, host_held, "host")
    check_pool(cache.pool, cache.index, held, "device")
    for group, counter in zip(cache.groups, tables, strict=True):
        for page, owners in counter.items():
            assert owners == 1 or cache.pool.cached[group.index][page], (
                f"page {page} of {group.id} is in {owners} tables and is not cached: two may write it"
            )
    used = [request.pool_slot for request in roster.holders()]
    both = sorted([*used, *roster.free_slots])
    assert both == list(range(1, slots + 1)), (
        f"request slots do not balance: {len(used)} used + {len(roster.free_slots)} free of {slots}"
    )


def check_pool(pool: BlockPool, index: PrefixIndex, held: list[Counter[int]], tier: str) -> None:
    """Check one tier's pool against who holds its pages and what its index has."""
    occupied: Counter[int] = Counter()
    held_pages: Counter[int] = Counter()
    idle = set(range(1, pool.num_parents + 1))
    for group, refs in enumerate(pool.refs):
        k = pool.packing[group]
        in_index = set(index.pages[group].values())
        assert len(in_index) == len(index.pages[group]), f"{tier}: a page of group {group} has two keys"
        for page in range(1, len(refs)):
            assert refs[page] == held[group][page], (
                f"{tier}: page {page} of group {group} counts {refs[page]} references, {held[group][page]} exist"
            )
            assert bool(pool.cached[group][page]) == (page in in_index), (
                f"{tier}: page {page} of group {group} is marked wrongly as cached or not"
            )
            if refs[page] or page in in_index:
                parent = (page - 1) // k + 1
                assert pool.group_of[parent] == group, (
                    f"{tier}: parent {parent} is not bound to group {group}"
                )
                occupied[parent] += 1
                if refs[page]:
                    held_pages[parent] += 1
                    idle.discard(parent)
    empties = set(pool.empties)
    assert len(empties) == len(pool.empties), f"{tier}: a parent is in the free list twice"
    for parent in range(1, pool.num_parents + 1):
        assert pool.occupied[parent] == occupied[parent], (
            f"{tier}: parent {parent} counts {pool.occupied[parent]} pages, {occupied[parent]} exist"
        )
        assert pool.held[parent] == held_pages[parent], f"{tier}: parent {parent} counts its holders wrongly"
        assert (parent in empties) == (not occupied[parent]), f"{tier}: parent {parent} is misfiled"
    assert pool.idle == len(idle), f"{tier}: {pool.idle} idle parents counted, {len(idle)} exist"
    held_parents = pool.num_parents - len(idle)
    cached_parents = len(idle) - len(empties)
    assert len(empties) + held_parents + cached_parents == pool.num_parents, (
        f"{tier}: {len(empties)} free + {held_parents} held + {cached_parents} cached is not {pool.num_parents}"
    )
    for group, k in enumerate(pool.packing):
        bound = [p for p in range(1, pool.num_parents + 1) if pool.group_of[p] == group]
        holes = sum(k - occupied[p] for p in bound)
        reach = sum(k - held_pages[p] for p in bound if held_pages[p])
        assert pool.holes[group] == holes, f"{tier}: {pool.holes[group]} holes counted, {holes} exist"
        assert pool.reach[group] == reach, f"{tier}: reach {pool.reach[group]} counted, {reach} exist"
