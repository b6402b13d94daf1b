import numpy as np
import pytest

from kvplan.replay.statistics import (
    counts_over_time,
    over_time,
    percentile,
    spread,
    weighted_percentile,
)


def ints(*values: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array(values, np.int64)


def test_a_percentile_lies_between_its_two_neighbours() -> None:
    values = [10.0, 20.0, 30.0, 40.0]
    assert percentile(values, 0) == 10
    assert percentile(values, 0.5) == 25  # place 1.5
    assert percentile(values, 0.9) == pytest.approx(37)  # place 2.7
    assert percentile(values, 1) == 40
    assert percentile([7.0], 0.99) == 7


def test_a_spread_of_hand_counted_values() -> None:
    figures = spread([4.0, 1.0, 3.0, 2.0, 10.0])
    assert figures is not None
    assert (figures.count, figures.mean, figures.p50, figures.max) == (5, 4.0, 3.0, 10.0)
    assert figures.p90 == pytest.approx(7.6)  # place 3.6: 4 + 0.6 * 6
    assert spread([]) is None


def test_an_average_over_time_weighs_values_by_how_long_they_last() -> None:
    # 2 for 1 s, 6 for 3 s
    assert over_time(ints(0, 1), ints(2, 6), 4, 1) == [5.0]
    assert over_time(ints(0, 1), ints(2, 6), 4, 2) == [4.0, 6.0]
    assert over_time(ints(0, 1), ints(2, 6), 4, 4) == [2.0, 6.0, 6.0, 6.0]


def test_before_the_first_time_the_value_is_nothing() -> None:
    assert over_time(ints(2), ints(8), 4, 2) == [0.0, 8.0]


def test_of_values_at_one_time_the_last_counts() -> None:
    assert over_time(ints(0, 2, 2), ints(1, 100, 3), 4, 2) == [1.0, 3.0]


def test_a_step_function_without_length_or_values() -> None:
    assert over_time(ints(0), ints(5), 0, 2) == [5.0, 5.0]
    assert over_time(ints(), ints(), 4, 2) == [0.0, 0.0]


def test_times_that_fall_are_refused() -> None:
    with pytest.raises(ValueError, match="must not fall"):
        over_time(ints(1, 0), ints(5, 5), 4, 2)
    with pytest.raises(ValueError, match="past its end"):
        over_time(ints(5), ints(5), 4, 2)


def test_counts_fall_into_the_stretch_of_their_time() -> None:
    assert counts_over_time([0, 1, 4, 9, 10], 10, 5) == [2, 0, 1, 0, 2]
    assert counts_over_time([], 10, 2) == [0, 0]


def test_a_percentile_over_time_is_reached_by_its_share_of_the_time() -> None:
    queue, lasts = ints(0, 5, 2), ints(6, 1, 3)  # 0 for 6 s, 2 for 3 s, 5 for 1 s
    assert weighted_percentile(queue, lasts, 0.5) == 0
    assert weighted_percentile(queue, lasts, 0.6) == 0
    assert weighted_percentile(queue, lasts, 0.61) == 2
    assert weighted_percentile(queue, lasts, 0.9) == 2
    assert weighted_percentile(queue, lasts, 0.99) == 5
    with pytest.raises(ValueError, match="without weight"):
        weighted_percentile(ints(1), ints(0), 0.5)
