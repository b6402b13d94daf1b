"""Who makes way for an admission, in which order, and who is spared (engine.md §7.2-7.4)."""

from copy import deepcopy

import pytest

from kvplan.scheduler.cache.admission import blocks_short, plan_victims
from kvplan.scheduler.cache.blocks import BlockPool
from kvplan.scheduler.cache.prefix import NO_SLOT, BoundaryKind
from tests.support.peek import device_index

CLOSED, WINDOW = 0, 1
CHUNK, ENDPOINT, PROMOTED = BoundaryKind.CHUNK, BoundaryKind.ENDPOINT, BoundaryKind.PROMOTED


class Cache:
    """A pool of a full group and a sliding one, with an index."""

    def __init__(self, parents: int, packing: tuple[int, int] = (1, 1)) -> None:
        self.pool = BlockPool(parents, packing)
        self.index = device_index(self.pool, [True, False])

    def add(
        self,
        group: int,
        epoch: int,
        slot: int = 0,
        kind: BoundaryKind = CHUNK,
        acquired: bool = False,
        held: bool = False,
    ) -> tuple[int, int]:
        """Cache a page under a key of its own; what is not held may be evicted."""
        (page,) = self.pool.take(group, 1)
        self.index.register(group, bytes([group, page]), page, slot, kind, epoch)
        if acquired:
            self.index.claim(group, page, epoch)
            self.pool.unref(group, page)
        if not held:
            self.pool.unref(group, page)
        return group, page

    def victims(
        self,
        needs: tuple[int, int],
        hits: tuple[tuple[int, int], ...] = (),
        own: tuple[tuple[int, ...], ...] = (),
        failing: bool = False,
    ) -> list[tuple[int, int]] | None:
        """The victims, on a copy: those found are drawn from the queue and have to be evicted then."""
        cache = self if failing else deepcopy(self)
        return plan_victims(cache.pool, cache.index.queue, needs, hits, own)


def test_probationary_pages_go_first_then_by_epoch_then_windows_then_suffixes() -> None:
    cache = Cache(10)
    later_full = cache.add(CLOSED, epoch=2, slot=9)
    claimed_window = cache.add(WINDOW, epoch=2, slot=1, acquired=True)
    no_slot = cache.add(CLOSED, epoch=1, slot=NO_SLOT)
    full_4 = cache.add(CLOSED, epoch=1, slot=4)
    full_7 = cache.add(CLOSED, epoch=1, slot=7)
    endpoint = cache.add(WINDOW, epoch=1, slot=8, kind=ENDPOINT)
    chunk_5 = cache.add(WINDOW, epoch=9, slot=5)
    chunk_3 = cache.add(WINDOW, epoch=9, slot=3)
    older_chunk = cache.add(WINDOW, epoch=8, slot=6)
    order = [older_chunk, chunk_3, chunk_5, endpoint, full_7, full_4, no_slot, claimed_window, later_full]
    for count in range(1, 10):
        assert cache.victims((count + 1, 0)) == order[:count]


@pytest.mark.parametrize(
    "established",
    [
        {"kind": ENDPOINT},
        {"kind": PROMOTED},
        {"acquired": True},
        {"slot": NO_SLOT},
    ],
)
def test_a_window_s_page_is_probationary_only_as_a_chunk_never_acquired_with_a_slot(
    established: dict[str, object],
) -> None:
    cache = Cache(2)
    kept = cache.add(WINDOW, **{"epoch": 1, "slot": 2} | established)  # type: ignore[arg-type]
    goes = cache.add(WINDOW, epoch=9, slot=2)
    assert cache.victims((1, 0)) == [goes]
    assert cache.victims((2, 0)) == [goes, kept]


def test_equal_pages_go_by_group_parent_and_slot() -> None:
    cache = Cache(4)
    pages = [cache.add(WINDOW, epoch=1, slot=2, kind=ENDPOINT) for _ in range(4)]
    assert cache.victims((3, 0)) == pages[:3]


def test_expired_pages_of_the_request_go_first_uncached_ones_before_all() -> None:
    cache = Cache(3)
    cached = cache.add(CLOSED, epoch=1, slot=5)
    mine = cache.pool.take(WINDOW, 1)[0]
    own = ((0, 0, 0, 0, WINDOW, mine),)
    cache.pool.take(CLOSED, 1)
    assert cache.victims((1, 0), own=own) == [(WINDOW, mine)]
    assert cache.victims((2, 0), own=own) == [(WINDOW, mine), cached]


def test_nothing_is_evicted_while_free_places_suffice() -> None:
    cache = Cache(3)
    cache.add(CLOSED, epoch=1)
    assert cache.victims((2, 0)) == []


def test_held_pages_and_hits_of_the_admission_are_no_candidates() -> None:
    cache = Cache(3)
    cache.add(CLOSED, epoch=1, held=True)
    hit = cache.add(CLOSED, epoch=2)
    other = cache.add(CLOSED, epoch=3)
    assert cache.victims((1, 0), hits=(hit,)) == [other]
    assert cache.victims((2, 0), hits=(hit,)) is None


def test_a_failed_search_leaves_the_order_as_it_was() -> None:
    cache = Cache(3)
    pages = [cache.add(CLOSED, epoch=epoch) for epoch in (1, 2, 3)]
    assert cache.victims((4, 0), failing=True) is None
    assert cache.victims((2, 0)) == pages[:2]
    assert cache.victims((3, 0)) == pages


def test_a_victim_that_is_not_needed_after_all_is_spared() -> None:
    """Parent 1 keeps a held page, so its cached one frees nothing that the other group could use."""
    cache = Cache(2, packing=(2, 1))
    cache.add(CLOSED, epoch=5, held=True)
    spared = cache.add(CLOSED, epoch=1, slot=1)
    third = cache.add(CLOSED, epoch=2, slot=2)
    fourth = cache.add(CLOSED, epoch=3, slot=3)
    assert cache.victims((0, 1)) == [third, fourth]
    assert cache.victims((1, 0)) == [spared]


def test_the_last_victims_are_spared_first() -> None:
    """One place is needed: of two whole parents and a single page, only as much as the need goes."""
    cache = Cache(2, packing=(2, 1))
    first = cache.add(CLOSED, epoch=1, slot=1)
    cache.add(CLOSED, epoch=4, held=True)
    lone = cache.add(CLOSED, epoch=2, slot=2)
    cache.add(CLOSED, epoch=4, held=True)
    assert cache.victims((2, 0)) == [first, lone]
    assert cache.victims((1, 0)) == [first]
    assert cache.victims((0, 1)) is None


def test_what_was_spared_may_be_a_victim_the_next_time() -> None:
    cache = Cache(2, packing=(2, 1))
    cache.add(CLOSED, epoch=5, held=True)
    spared = cache.add(CLOSED, epoch=1, slot=1)
    cache.add(CLOSED, epoch=2, slot=2)
    cache.add(CLOSED, epoch=3, slot=3)
    for group, page in plan_victims(cache.pool, cache.index.queue, (0, 1), (), ()) or ():
        cache.index.remove(group, page)
    cache.pool.take(WINDOW, 1)
    assert cache.victims((1, 0)) == [spared]


@pytest.mark.parametrize(
    ("needs", "holes", "packing", "short"),
    [
        pytest.param([3], [3], [4], 0, id="holes are enough"),
        pytest.param([4], [3], [4], 1, id="one page beyond the holes opens a parent"),
        pytest.param([7], [3], [4], 1, id="which holds four"),
        pytest.param([8], [3], [4], 2, id="one more needs another"),
        pytest.param([2, 2], [0, 0], [4, 4], 2, id="groups share no parent"),
        pytest.param([2, 1], [9, 0], [4, 1], 1, id="holes of one group are none of another"),
    ],
)
def test_parents_that_a_need_takes_beyond_the_holes(
    needs: list[int], holes: list[int], packing: list[int], short: int
) -> None:
    assert blocks_short(needs, holes, packing) == short
