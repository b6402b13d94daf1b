"""A page that moves between device and host is checked where it comes from and where it has come to, whether or not
a forward reads it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kvplan.backends.arena import Arena
from kvplan.backends.errors import Violation
from kvplan.backends.pairs import Pair
from kvplan.backends.transfers import Transfers
from kvplan.scheduler import Cache, ExecutionPlan
from tests.backends.small import Mutation, play, request, scenario

pytest.importorskip("torch", reason="carrying plans out needs the extra kvplan-toolkit[torch]")

# r1 has r0's prompt again after the device's cache was cleared: its five pages are loaded back from the host.
BACK = scenario(
    request(0, (1, 0, 22), output=2),
    request(1, (1, 0, 22), output=4, submit=16),
    num_host_pages=65,
) | {"clears": [{"round": 12, "what": "clear_l1_cache"}]}


def ops(plan: ExecutionPlan, kind: type) -> Iterator[Any]:
    return (op for op in plan.cache if isinstance(op, kind))


def violation(mutate: Mutation | None) -> Violation:
    with pytest.raises(Violation) as caught:
        play(BACK, mutate)
    return caught.value


def swapped(kind: type, column: str) -> Mutation:
    """Swaps the first two pages of the first operation of a kind that has two, in one column."""
    left = iter((True,))

    def mutate(plan: ExecutionPlan, run: Any) -> None:
        for op in ops(plan, kind):
            pages = getattr(op, column)[0]
            if len(pages) > 1 and next(left, False):
                pages[0], pages[1] = pages[1], pages[0]

    return mutate


def test_as_planned_five_pages_come_back() -> None:
    assert play(BACK).backend.counts.pages_loaded == 5


def test_a_load_back_from_a_wrong_host_page_is_caught_when_it_is_read() -> None:
    """The plan does not tell the keys of what it loads back, the forward of its round does."""
    error = violation(swapped(Cache.LoadBackOp, "src_pages"))
    assert (error.round, error.group, error.request_id) == (16, "full", "r1")
    assert error.what == "reads its own position 0 and finds position 4 of r0"
    assert error.writer.startswith("load-back 1 of host page 2 (store 0 in round 1)")


def test_a_store_to_a_wrong_host_page_is_caught_where_it_is_loaded_back() -> None:
    """Its page is where the plan says; only whoever looks for it at the right place finds another."""
    error = violation(swapped(Cache.WriteBackOp, "dst_pages"))
    assert (error.group, error.request_id) == ("full", "r1")
    assert error.what == "reads its own position 0 and finds position 4 of r0"


def test_a_host_page_that_has_changed_is_caught_before_anything_reads_it() -> None:
    def overwrite(plan: ExecutionPlan, run: Any) -> None:
        for op in ops(plan, Cache.LoadBackOp):
            run.backend.host.spoil(0, op.src_pages[0][2])
            plan.forward = []

    error = violation(overwrite)
    assert (error.place.tier, error.group, error.request_id) == ("host", "full", "r0")
    assert "load-back 1 brings prefix page 2 from host page 3 of full, and it holds memory" in error.what
    assert error.writer == "store 0 in round 1"


def test_a_store_of_a_wrong_page_is_caught_when_it_is_acknowledged() -> None:
    error = violation(swapped(Cache.WriteBackOp, "src_pages"))
    assert (error.place.tier, error.group, error.request_id) == ("device", "full", "r0")
    assert "store " in error.what
    assert " to host page" in error.what


def test_a_load_back_that_does_not_reach_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    copying = Transfers._copying

    def lost(self: Transfers, source: Arena, destination: Arena, pairs: Sequence[Pair]) -> Callable[[], None]:
        return copying(self, source, destination, pairs[:-1] if destination is self._device else pairs)

    monkeypatch.setattr(Transfers, "_copying", lost)
    error = violation(None)
    assert (error.place.tier, error.group) == ("device", "full")
    assert "brings prefix page 4 to page" in error.what
    assert error.writer.startswith("load-back ")


def test_a_load_back_to_a_page_that_holds_something_is_caught_when_that_is_read() -> None:
    """At the latest: a page that no forward of the round reads is not looked at for its own sake."""
    elsewhere: list[int] = []

    def mutate(plan: ExecutionPlan, run: Any) -> None:
        for op in ops(plan, Cache.LoadBackOp):
            used = plan.forward[0].block_tables["full"][0]
            elsewhere.append(next(page for page in range(1, 64) if page not in used))
            op.dst_pages[0][0] = elsewhere[0]

    error = violation(mutate)
    assert error.request_id == "r1"
    assert elsewhere
    assert "reads its own position 0 and finds" in error.what


def test_what_was_not_acknowledged_is_checked_at_the_end() -> None:
    run = play(BACK)
    tier: Any = run.backend._transfers
    pairs = [Pair(0, 1, 64, next(iter(run.backend.roll._keys)), 0)]
    run.backend.arena.spoil(0, 1)
    op = Cache.WriteBackOp()
    op.op_ids, op.group_ids, op.source_pinned = [99], [[0]], [True]
    op.src_pages, op.dst_pages = [[pairs[0].source]], [[pairs[0].destination]]
    op.content_hashes, op.page_offsets = [[pairs[0].digest]], [[0]]
    tier.store(op)
    with pytest.raises(Violation) as caught:
        run.backend.finish()
    assert "store 99 brings prefix page 0 to host page 64 of full, and it holds memory" in str(caught.value)
