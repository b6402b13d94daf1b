"""The pool of LCM blocks: which page is taken next (engine.md §4)."""

import pytest

from kvplan.scheduler.cache.blocks import BlockPool


def give_back(pool: BlockPool, *pages: int, group: int = 0) -> None:
    for page in pages:
        pool.unref(group, page)


def test_parents_are_opened_in_order_at_their_first_slot() -> None:
    assert BlockPool(3, [2]).take(0, 5) == [1, 2, 3, 4, 5]


def test_an_emptied_parent_goes_to_the_back_of_the_free_list() -> None:
    pool = BlockPool(4, [1])
    pool.take(0, 3)
    give_back(pool, 2, 1)
    assert pool.take(0, 3) == [4, 2, 1]


def test_a_hole_is_preferred_to_opening_a_parent() -> None:
    pool = BlockPool(3, [2])
    pool.take(0, 4)
    give_back(pool, 1)
    assert pool.take(0, 2) == [1, 5]


def test_the_most_occupied_parent_with_a_hole_comes_first() -> None:
    pool = BlockPool(3, [3])
    pool.take(0, 6)
    give_back(pool, 1, 2, 4)  # parent 1 keeps one page, parent 2 keeps two
    assert pool.take(0, 3) == [4, 1, 2]


def test_parents_of_one_occupancy_go_by_id_and_slots_by_number() -> None:
    pool = BlockPool(3, [3])
    pool.take(0, 9)
    give_back(pool, 9, 8, 6, 5)  # parents 2 and 3 keep one page each
    assert pool.take(0, 4) == [5, 6, 8, 9]


def test_a_parent_serves_one_group_until_it_is_empty() -> None:
    pool = BlockPool(1, [2, 2])
    (page,) = pool.take(0, 1)
    assert (pool.free_pages(0), pool.free_pages(1)) == (1, 0)
    give_back(pool, page)
    assert (pool.free_pages(0), pool.free_pages(1)) == (2, 2)
    assert pool.take(1, 2) == [1, 2]


def test_page_ids_count_slots_of_a_group_s_own_packing() -> None:
    pool = BlockPool(3, [2, 5])
    assert pool.take(0, 1) == [1]
    assert pool.take(1, 2) == [6, 7]  # parent 2 of five slots
    assert pool.take(0, 2) == [2, 5]  # parent 3 of two slots


@pytest.mark.parametrize(
    ("loads", "pages"),
    [
        pytest.param([0, 0], [1, 2, 3, 4], id="buckets in turn"),
        pytest.param([2, 0], [2, 4, 1, 3], id="the lighter bucket first, until it is the heavier one"),
        pytest.param([0, 1], [1, 3, 2, 4], id="the lowest bucket on a tie"),
        pytest.param([1, 1], [1, 2, 3, 4], id="equal loads are as good as none"),
    ],
)
def test_sharded_pages_balance_the_request_s_buckets(loads: list[int], pages: list[int]) -> None:
    assert BlockPool(1, [4], [2]).take(0, 4, loads) == pages


def test_a_sharded_request_takes_the_hole_of_its_lightest_bucket_before_fuller_parents() -> None:
    pool = BlockPool(3, [4], [2])
    pool.take(0, 8, [0, 0])
    give_back(pool, 2, 5, 7)  # parent 1 lacks slot 1 (bucket 1), parent 2 lacks slots 0 and 2 (bucket 0)
    assert pool.take(0, 2, [0, 5]) == [5, 7]
    assert pool.take(0, 1, [0, 5]) == [2]  # no hole in bucket 0 any more: the other bucket's before a parent


def test_within_a_bucket_the_fullest_parent_comes_first() -> None:
    pool = BlockPool(3, [4], [2])
    pool.take(0, 8, [0, 0])
    give_back(pool, 1, 3, 5)  # bucket 0: two holes in parent 1, one in parent 2
    assert pool.take(0, 3, [0, 9]) == [5, 1, 3]


def test_a_new_parent_is_opened_at_the_lightest_bucket_s_slot() -> None:
    assert BlockPool(2, [4], [2]).take(0, 1, [3, 1]) == [2]
    assert BlockPool(2, [6], [3]).take(0, 1, [3, 1, 0]) == [3]


def test_loads_grow_as_pages_are_taken() -> None:
    loads = [1, 0, 0]
    assert BlockPool(2, [3], [3]).take(0, 3, loads) == [2, 3, 1]
    assert loads == [2, 1, 1]


def test_a_page_lives_while_anything_refers_to_it() -> None:
    pool = BlockPool(1, [1])
    pool.take(0, 1)
    pool.ref(0, 1)
    give_back(pool, 1)
    assert pool.free_pages(0) == 0
    give_back(pool, 1)
    assert pool.free_pages(0) == 1


def test_letting_go_once_too_often_is_a_bug_that_is_told() -> None:
    pool = BlockPool(1, [1])
    pool.take(0, 1)
    give_back(pool, 1)
    with pytest.raises(AssertionError, match="page 1 of group 0"):
        give_back(pool, 1)
