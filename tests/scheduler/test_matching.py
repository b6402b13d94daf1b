"""How long a prefix hit is, by group and in common (engine.md §6)."""

import pytest

from kvplan.scheduler import CacheGroupConfig
from kvplan.scheduler.cache.groups import cache_groups
from kvplan.scheduler.cache.matching import common_boundary, match_closed, match_window
from tests.support.groups import config, full, sliding, state

KEYS = [bytes([at]) for at in range(12)]


def present(*at: int) -> set[bytes]:
    return {KEYS[index] for index in at}


@pytest.mark.parametrize(
    ("there", "begin", "end", "extent"),
    [
        pytest.param((0, 1, 2), 0, 5, 3, id="contiguous from the left"),
        pytest.param((0, 1, 3, 4), 0, 5, 2, id="a gap ends it"),
        pytest.param((1, 2), 0, 5, 0, id="nothing without the first"),
        pytest.param((0, 1, 2, 3), 0, 2, 2, id="not beyond the end"),
        pytest.param((2, 3), 2, 5, 4, id="below the begin everything counts as present"),
    ],
)
def test_a_full_group_matches_contiguous_pages(
    there: tuple[int, ...], begin: int, end: int, extent: int
) -> None:
    assert match_closed(KEYS, present(*there), begin, end) == extent


@pytest.mark.parametrize(
    ("there", "lookback", "begin", "end", "extent"),
    [
        pytest.param((3, 4), 2, 0, 6, 5, id="two pages right below a boundary"),
        pytest.param((0, 1, 3, 4), 2, 0, 6, 5, id="the highest such boundary"),
        pytest.param((0, 1, 4), 2, 0, 6, 2, id="one page is not enough for two"),
        pytest.param((4,), 2, 0, 6, 0, id="nothing matches"),
        pytest.param((0,), 2, 0, 6, 1, id="a shorter run will do if it reaches the begin"),
        pytest.param((2,), 2, 2, 6, 3, id="the begin of a later tier"),
        pytest.param((5,), 1, 0, 6, 6, id="a boundary at the very end"),
        pytest.param((), 0, 0, 6, 6, id="no lookback: every boundary matches"),
        pytest.param((1, 2, 3), 2, 0, 3, 3, id="not beyond the end"),
    ],
)
def test_a_window_matches_from_the_right(
    there: tuple[int, ...], lookback: int, begin: int, end: int, extent: int
) -> None:
    assert match_window(KEYS, present(*there), lookback, begin, end) == extent


def boundary(
    groups: list[CacheGroupConfig], there: list[set[bytes]], begin: int = 0, end: int = 6, prefix: int = 4
) -> tuple[int, int]:
    made = cache_groups(config(*groups, prefix_granularity=prefix))
    closed = [group for group in made if group.closed]
    others = [group for group in made if not group.closed]
    return common_boundary(closed, others, [KEYS] * len(made), there, begin, end)


def test_the_common_boundary_is_the_shortest_of_the_full_groups() -> None:
    assert boundary([full(), full(group_id="b")], [present(0, 1, 2), present(0, 1)]) == (2, 2)


def test_the_closed_boundary_is_kept_where_another_group_has_less() -> None:
    """Full has four pages, the window one page right below three: 3 in common, 4 to be promoted to."""
    assert boundary([full(), sliding(2)], [present(0, 1, 2, 3), present(2)]) == (3, 4)


def test_a_group_matched_before_is_matched_again_under_a_lower_bound() -> None:
    """One window is there below 3 and 1, the other below 2 and 1: 3, then 2, then 1 for both."""
    groups = [full(), sliding(2), sliding(2, group_id="b")]
    assert boundary(groups, [present(0, 1, 2), present(2, 0), present(1, 0)]) == (1, 3)


def test_nothing_in_common_where_the_windows_never_meet() -> None:
    groups = [full(), sliding(2), sliding(2, group_id="b")]
    assert boundary(groups, [present(0, 1, 2), present(2), present(1)]) == (0, 3)


def test_a_match_inside_a_prefix_page_is_rounded_down() -> None:
    """Prefix pages of 4 tokens, group pages of 2: five pages are two prefix pages."""
    assert boundary([full(2)], [present(0, 1, 2, 3, 4)]) == (2, 2)
    assert boundary([full(2), sliding(2, 2)], [present(*range(8)), present(0, 1, 2, 3, 4)]) == (2, 4)


def test_without_a_full_group_nothing_is_prefix_closed() -> None:
    assert boundary([sliding(2)], [present(3)]) == (4, 0)
    assert boundary([state()], [present(1)]) == (2, 0)


def test_a_later_tier_starts_at_the_boundary_of_the_first() -> None:
    assert boundary([full(), sliding(8)], [present(2, 3), present(3)], begin=2) == (2, 4)
    assert boundary([full(), sliding(8)], [present(2, 3), present(2, 3)], begin=2) == (4, 4)
