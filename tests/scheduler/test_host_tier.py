"""The host tier: what is stored when and how, where it goes, how it comes back (engine.md §11)."""

from typing import Any

import pytest

from kvplan.scheduler import Cache, ExecutionPlan, ForwardEvent
from tests.support.engine import Engine, has, hits, load_back, page_table, tokens, write_back
from tests.support.groups import config, full, replay, sliding, state


def stored(plan: ExecutionPlan) -> list[tuple[int, int, int]]:
    """What a plan's stores move: (group, device page, host page), all ops one behind the other."""
    if not has(plan, Cache.WriteBackOp):
        return []
    op = write_back(plan)
    return [
        row
        for groups, sources, places in zip(op.group_ids, op.src_pages, op.dst_pages, strict=True)
        for row in zip(groups, sources, places, strict=True)
    ]


def test_pages_published_from_prefill_are_stored_pinned_at_the_end_of_the_plan() -> None:
    engine = Engine(config(host=8, chunk=8))
    engine.submit("a", tokens(16, shared=16))
    assert stored(engine.step()) == []
    plan = engine.step()
    op = write_back(plan)
    assert (op.op_ids, op.source_pinned, op.page_offsets) == ([0], [True], [[0, 0]])
    assert stored(plan) == [(0, 1, 1), (0, 2, 2)]
    assert op.content_hashes == [engine.scheduler.prefix_hashes_for_tokens(tokens(16, shared=16))[:2]]


def test_pages_published_by_decoding_are_streamed_only_for_sliding_groups() -> None:
    engine = Engine(config(full(), sliding(8), pages=64, host=64))
    engine.submit("a", 4)
    plans = engine.steps(8)
    groups = [[group for group, _, _ in stored(plan)] for plan in plans]
    assert groups[:2] == [[], [0, 1]], "the prompt's page, in both, with the first step"
    assert [row for row in groups[2:] if row] == [[1]], "the page that decoding filled"


def test_a_decode_worker_streams_nothing_but_stores_its_victims() -> None:
    from kvplan.scheduler import PD

    engine = Engine(config(role="D", pages=4, host=8))
    for rid in "ab":
        engine.submit(rid, 7)
        engine.plan()
    engine.tell(PD.RemotePrefillDoneEvent("a", 1), PD.RemotePrefillDoneEvent("b", 1))
    assert stored(engine.step()) == []
    plan = engine.step()
    assert write_back(plan).source_pinned == [False]
    assert len(stored(plan)) == 2


def test_a_finish_stores_the_whole_prefix_ahead_of_the_next_plan_s_own() -> None:
    engine = Engine(config(host=32, pages=32))
    engine.submit("b", 8)
    engine.submit("a", 6)
    engine.step()
    engine.ack(engine.step())
    engine.steps(2)
    engine.submit("c", 8)
    engine.step()
    engine.finish("a")
    plan = engine.step()
    op = write_back(plan)
    assert op.op_ids == [1, 2]
    assert op.source_pinned == [True, True]
    assert [len(row) for row in op.src_pages] == [1, 2], "a's second page, then c's prompt"


def test_an_abort_stores_nothing() -> None:
    engine = Engine(config(host=32))
    engine.submit("a", 8)
    engine.step()
    engine.abort("a")
    assert stored(engine.step()) == []


def test_keys_on_the_host_or_on_their_way_are_not_stored_again() -> None:
    engine = Engine(config(host=32, pages=32, max_batch_size=1))
    engine.submit("a", tokens(9, shared=9))
    engine.step()
    on_its_way = engine.step()
    assert len(stored(on_its_way)) == 2
    engine.finish("a")
    engine.submit("b", tokens(9, shared=9))
    assert stored(engine.step()) == []
    engine.ack(on_its_way)
    engine.finish("b")
    assert stored(engine.step()) == []


def test_a_state_group_stores_only_the_latest_checkpoint_of_the_prompt_at_a_finish() -> None:
    engine = Engine(config(full(), state(), pages=64, host=64))
    engine.submit("a", 10)
    engine.step()
    plan = engine.step()
    assert [group for group, _, _ in stored(plan)] == [0, 0, 1]


def test_a_pinned_store_holds_its_device_pages_until_the_ack() -> None:
    engine = Engine(config(pages=4, host=8))
    engine.submit("a", 8)
    engine.step()
    plan = engine.step()
    engine.abort("a")
    assert engine.scheduler.available_lcm_blocks() == 2
    assert not engine.scheduler.can_clear_cache()
    engine.ack(plan)
    assert engine.scheduler.available_lcm_blocks() == 4
    assert engine.scheduler.can_clear_cache()


def evicted_but_stored(**fields: Any) -> Engine:
    """``a`` (9 tokens, two pages) is on the host; the device has lost it."""
    engine = Engine(config(host=8, pages=8, **fields))
    engine.run("a", tokens(9, shared=9))
    for plan in engine.steps(2):
        engine.ack(plan)
    assert engine.scheduler.clear_l1_cache()
    return engine


def test_what_the_device_lost_is_loaded_back_from_the_host() -> None:
    engine = evicted_but_stored()
    engine.submit("b", tokens(9, seed=2, shared=9))
    plan = engine.step()
    op = load_back(plan)
    assert op.src_pages == [[1, 2]]
    assert op.dst_pages == [page_table(plan, "b")[:2]]
    assert (op.page_offsets, op.content_hashes) == ([[0, 0]], [["", ""]]), "filled only with storage on"
    assert hits(plan) == {"b": 8}
    assert plan.pages_to_zero == {"full": page_table(plan, "b")[2:]}, "load destinations are not zeroed"


def test_a_load_s_pages_can_be_hit_on_the_device_at_once() -> None:
    engine = evicted_but_stored()
    engine.submit("b", tokens(9, seed=2, shared=9))
    engine.submit("c", tokens(9, seed=3, shared=8))
    plan = engine.step()
    assert page_table(plan, "c")[:2] == page_table(plan, "b")[:2]
    assert len(load_back(plan).op_ids) == 1


def test_both_pages_of_a_load_are_held_until_it_is_done() -> None:
    engine = evicted_but_stored()
    engine.submit("b", tokens(9, seed=2, shared=9))
    plan = engine.step()
    engine.abort("b")
    assert engine.scheduler.available_lcm_blocks() == 6
    assert not engine.scheduler.can_clear_cache()
    engine.ack(plan)
    assert engine.scheduler.available_lcm_blocks() == 8


def test_stores_and_loads_count_their_ids_together_from_0() -> None:
    engine = evicted_but_stored()
    engine.submit("b", tokens(20, seed=2, shared=9))
    first = engine.step()
    second = engine.step()
    assert (load_back(first).op_ids, write_back(second).op_ids) == ([1], [2])


def test_without_l2_nothing_is_stored() -> None:
    engine = Engine(config(host=8, disable_l2_cache=True))
    engine.submit("a", 16)
    assert [plan.cache for plan in engine.steps(4)] == [[], [], [], []]


def places(engine: Engine, rid: str, prompt: list[int]) -> list[int]:
    """The host pages that a prompt's own pages are stored to."""
    engine.submit(rid, prompt)
    engine.step()
    plan = engine.step()
    engine.ack(plan)
    engine.abort(rid)
    return [place for _, _, place in stored(plan)]


def test_the_host_evicts_what_was_never_acquired_then_what_is_oldest() -> None:
    engine = Engine(config(host=3, pages=16))
    assert places(engine, "a", tokens(5, seed=1)) == [1]
    assert places(engine, "b", tokens(5, seed=2)) == [2]
    assert places(engine, "c", tokens(5, seed=3)) == [3]
    assert engine.scheduler.clear_l1_cache()
    engine.submit("again", tokens(6, seed=1))  # loads a's page: it is acquired now
    plan = engine.step()
    assert load_back(plan).src_pages == [[1]]
    engine.ack(plan)
    engine.abort("again")
    assert places(engine, "d", tokens(5, seed=4)) == [2]
    assert places(engine, "e", tokens(9, seed=5)) == [3, 2], "c's, then d's; the acquired one is last"


def test_keys_without_a_place_are_dropped() -> None:
    engine = Engine(config(host=2, pages=16))
    engine.submit("a", tokens(17, seed=1))
    engine.step()
    plan = engine.step()
    assert stored(plan) == [(0, 1, 1), (0, 2, 2)], "two of four"


def test_a_whole_parent_of_another_group_is_evicted_when_the_own_group_has_nothing() -> None:
    """Host blocks hold four pages of the full group each; the sliding group's first store needs one."""
    engine = Engine(config(full(4, 4), sliding(4), host=1, pages=32, max_batch_size=2))
    engine.submit("a", tokens(5, seed=1))
    engine.step()
    plan = engine.step()
    assert [group for group, _, _ in stored(plan)] == [0], "one block: the sliding page found no place"
    engine.ack(plan)
    later = [row for plan in engine.steps(4) for row in stored(plan)]
    assert [(group, place) for group, _, place in later] == [(1, 1)]


@pytest.mark.parametrize("event", ["ack", "nothing"])
def test_a_store_is_on_the_host_only_from_its_ack_on(event: str) -> None:
    engine = Engine(config(host=8, pages=16))
    engine.submit("a", tokens(9, shared=9))
    engine.step()
    plan = engine.step()
    engine.abort("a")
    if event == "ack":
        engine.ack(plan)
        assert engine.scheduler.clear_l1_cache()
    else:
        assert not engine.scheduler.clear_l1_cache(), "its pages are pinned"
        return
    engine.submit("b", tokens(9, seed=2, shared=9))
    assert hits(engine.step()) == {"b": 8}


def test_a_hit_goes_on_from_the_device_to_the_host() -> None:
    """The device lost only the deepest of three pages; that one comes from the host."""
    engine = Engine(config(host=8, pages=4))
    engine.run("a", tokens(13, shared=13))
    for plan in engine.steps(2):
        engine.ack(plan)
    engine.run("x", 7)  # two pages: the free one, and the prompt's deepest
    for plan in engine.steps(2):
        engine.ack(plan)
    engine.submit("b", tokens(13, seed=2, shared=13))
    plan = engine.step()
    assert hits(plan) == {"b": 12}
    assert load_back(plan).dst_pages == [page_table(plan, "b")[2:3]]


def test_a_retracted_sliding_group_is_matched_by_its_last_window_on_the_host() -> None:
    engine = Engine(config(full(), sliding(5), pages=32, host=32))
    engine.run("a", tokens(13, shared=13))
    for plan in engine.steps(2):
        engine.ack(plan)
    assert engine.scheduler.clear_l1_cache()
    engine.submit("b", tokens(13, seed=2, shared=13))
    plan = engine.step()
    assert hits(plan) == {"b": 12}
    op = load_back(plan)
    assert op.group_ids == [[0, 0, 0, 1]]
    assert [bool(page) for page in page_table(plan, "b", "sliding")] == [False, False, True, True]


def test_without_storage_the_end_of_a_load_publishes_nothing_whether_it_failed_or_not() -> None:
    """What it loads was published when it was admitted, and stays."""
    engine = evicted_but_stored()
    engine.submit("b", tokens(9, seed=2, shared=9))
    plan = engine.plan()
    engine.ack(plan, success=False)
    engine.tell(ForwardEvent.Retract("b"))
    assert engine.state("b") == "Retracted"
    assert (engine.scheduler.available_lcm_blocks(), engine.scheduler.empty_lcm_blocks()) == (8, 6)
    assert hits(engine.plan()) == {"b": 8}


def test_a_replayable_group_needs_no_pages_for_what_is_loaded() -> None:
    """Six blocks: two loaded pages and one to grow in the full group, two of the replay window: five."""
    engine = Engine(config(full(), replay(4), pages=6, host=16, chunk=8))
    engine.run("a", tokens(9, shared=9))
    for plan in engine.steps(2):
        engine.ack(plan)
    assert engine.scheduler.clear_l1_cache()
    engine.submit("b", tokens(9, seed=1, shared=8))
    plan = engine.step()
    assert hits(plan) == {"b": 8}
    assert load_back(plan).group_ids == [[0, 0]]
    assert [bool(page) for page in page_table(plan, "b", "replay")] == [False, True, True]
