"""Looks inside a scheduler that its API does not offer, all in one place."""

import copy
from collections.abc import Sequence
from typing import Any

from kvplan.scheduler import Scheduler
from kvplan.scheduler.cache.blocks import BlockPool
from kvplan.scheduler.cache.coordinator import DeviceRank
from kvplan.scheduler.cache.prefix import PrefixIndex
from kvplan.scheduler.request import State

StateData = dict[str, Any]


def device_pages(scheduler: Scheduler) -> list[dict[bytes, int]]:
    """Per group, the pages of the device's prefix index by key (digest, then offset in the prefix page)."""
    return [dict(pages) for pages in scheduler._cache.index.pages]


def host_pages(scheduler: Scheduler) -> list[dict[bytes, int]]:
    """Per group, the pages of the host's prefix index by key."""
    host = scheduler._cache.host
    return [dict(pages) for pages in host.index.pages] if host is not None else []


def page_references(scheduler: Scheduler) -> list[list[int]]:
    """Per group and page, how many things hold it."""
    return [list(refs) for refs in scheduler._cache.pool.refs]


def parents(scheduler: Scheduler) -> tuple[int, int, int]:
    """LCM blocks that are free, that something holds, and that hold nothing but cache."""
    pool = scheduler._cache.pool
    held: set[int] = set()
    cached: set[int] = set()
    for k, refs, marks in zip(pool.packing, pool.refs, pool.cached, strict=True):
        held |= {(page - 1) // k + 1 for page, count in enumerate(refs) if count}
        cached |= {(page - 1) // k + 1 for page, mark in enumerate(marks) if mark}
    return len(pool.empties), len(held), len(cached - held)


def page_owners(scheduler: Scheduler) -> list[dict[int, list[str]]]:
    """Per group, the live requests whose table has each page."""
    owners: list[dict[int, list[str]]] = [{} for _ in scheduler._cache.groups]
    for request in scheduler._roster.holders():
        for group, table in enumerate(request.tables):
            for page in table.pages:
                if page:
                    owners[group].setdefault(page, []).append(request.id)
    return owners


def slots(scheduler: Scheduler) -> tuple[list[int], list[int]]:
    """Request slots in use, and free."""
    return [request.pool_slot for request in scheduler._roster.holders()], list(scheduler._roster.free_slots)


def state_of(scheduler: Scheduler) -> StateData:
    """Everything that can change a later plan, as plain data; caches of pure computations are left out."""
    cache = scheduler._cache
    host = cache.host
    state: StateData = {
        "pool": _pool(cache.pool),
        "index": _index(cache.index),
        "epoch": cache.epoch,
        "requests": [_request(r) for r in scheduler._roster.by_id.values() if r.state != State.FINISHED],
        "slots": list(scheduler._roster.free_slots),
        "stores": [copy.copy(store) for store in scheduler._finished_stores],
        "retractions": scheduler._retraction._next_epoch,
    }
    if host is not None:
        state["host"] = [_pool(host.pool), _index(host.index), list(host.queue), sorted(host.storing)]
        state["transfers"] = [sorted(host.stores), sorted(host.loads), host.next_op_id]
        state["known"] = list(host.known._keys) if host.known is not None else None
    return state


def _pool(pool: Any) -> list[Any]:
    return [
        list(pool.empties),
        list(pool.group_of),
        list(pool.occupied),
        [list(refs) for refs in pool.refs],
        [bytes(marks) for marks in pool.cached],
    ]


def _index(index: Any) -> list[Any]:
    rows = []
    for group, pages in enumerate(index.pages):
        for key, page in pages.items():
            rows.append(
                (
                    group,
                    key,
                    page,
                    index.epoch[group][page],
                    index.slot[group][page],
                    index.kind[group][page],
                    bool(index.acquired[group][page]),
                )
            )
    return rows


def _request(request: Any) -> list[Any]:
    tables = [(list(t.pages), t.available - request.taken, t.reclaimed) for t in request.tables]
    names = (
        "id",
        "state",
        "prefill_size",
        "begin",
        "end",
        "hashed_pages",
        "promotion",
        "pool_slot",
        "epoch",
        "reserve",
        "results_out",
        "retractions",
        "retraction_epoch",
        "landed",
        "recoverable",
    )
    return [
        *(getattr(request, name) for name in names),
        len(request.tokens),
        list(request.checkpoints),
        tables,
    ]


def device_index(pool: BlockPool, closed: Sequence[bool]) -> PrefixIndex:
    """A prefix index over a pool as the device has it; ``closed`` tells the full groups."""
    return PrefixIndex(pool, DeviceRank(closed))
