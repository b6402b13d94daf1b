import pytest

from kvplan.replay.arrivals import Arrivals
from kvplan.replay.step_time import NS
from kvplan.replay.workload import Workload


def workload(
    arrivals: list[float], delays: dict[int, float] | None = None, after: dict[int, int] | None = None
) -> Workload:
    rows = range(len(arrivals))
    delays, after = delays or {}, after or {}
    return Workload(
        request_ids=[f"r{row}" for row in rows],
        prompt_tokens=[1] * len(arrivals),
        output_tokens=[1] * len(arrivals),
        budgets=[0] * len(arrivals),
        arrivals_ns=[round(at * NS) for at in arrivals],
        delays_ns=[round(delays[row] * NS) if row in delays else None for row in rows],
        after=[after.get(row) for row in rows],
        prompt=lambda row: [1],
        output=lambda row: [1],
    )


def rows(come: list[tuple[int, int]]) -> list[int]:
    return [row for row, _ in come]


def test_requests_come_at_their_time_and_once() -> None:
    arrivals = Arrivals(workload([0, 1, 1, 3]))
    assert arrivals.due(0) == [(0, 0)]
    assert arrivals.next_ns() == NS
    assert arrivals.due(2 * NS) == [(1, NS), (2, NS)]
    assert arrivals.due(2 * NS) == []
    assert rows(arrivals.due(10 * NS)) == [3]
    assert arrivals.next_ns() is None


def test_a_turn_comes_its_delay_after_the_last_one_has_ended() -> None:
    arrivals = Arrivals(workload([0, 0, 0], delays={1: 2, 2: 1}, after={1: 0, 2: 1}))
    assert rows(arrivals.due(0)) == [0]
    assert arrivals.next_ns() is None
    arrivals.ended(0, 5 * NS)
    assert arrivals.next_ns() == 7 * NS
    assert arrivals.due(6 * NS) == []
    assert arrivals.due(7 * NS) == [(1, 7 * NS)]
    arrivals.ended(1, 8 * NS)
    assert arrivals.due(9 * NS) == [(2, 9 * NS)]


def test_a_closed_loop_sends_the_next_request_when_one_ends_whatever_the_time() -> None:
    arrivals = Arrivals(workload([0, 50, 99, 100]), concurrency=2)
    assert rows(arrivals.due(0)) == [0, 1]
    assert arrivals.due(200 * NS) == []
    assert arrivals.next_ns() is None
    arrivals.ended(1, 200 * NS)
    assert arrivals.next_ns() == 0
    assert arrivals.due(200 * NS) == [(2, 200 * NS)]
    arrivals.ended(0, 201 * NS)
    arrivals.ended(2, 201 * NS)
    assert rows(arrivals.due(201 * NS)) == [3]


def test_a_closed_loop_prefers_a_turn_that_may_come_to_a_later_row() -> None:
    arrivals = Arrivals(workload([0, 0, 0, 0], delays={1: 1}, after={1: 0}), concurrency=1)
    assert rows(arrivals.due(0)) == [0]
    arrivals.ended(0, 0)
    assert rows(arrivals.due(0)) == [2]  # row 1 thinks for a second
    arrivals.ended(2, NS)
    assert rows(arrivals.due(NS)) == [1]
    arrivals.ended(1, 2 * NS)
    assert rows(arrivals.due(2 * NS)) == [3]


def test_a_closed_loop_waits_for_a_delay_only_with_a_place_free() -> None:
    arrivals = Arrivals(workload([0, 0], delays={1: 3}, after={1: 0}), concurrency=1)
    arrivals.due(0)
    arrivals.ended(0, NS)
    assert arrivals.next_ns() == 4 * NS


def test_a_concurrency_of_none_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="concurrency 0"):
        Arrivals(workload([0]), concurrency=0)
