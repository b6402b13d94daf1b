"""Rounds of a fused engine: budget, batch, head of line, mixed and not, decode steps (engine.md §8, §10).

Pages are of 4 tokens, one a block, unless told otherwise.
"""

import pytest

from kvplan.scheduler import ForwardEvent
from tests.support.engine import Engine, hits, inputs, page_table, tokens
from tests.support.groups import config, full, replay, sliding, state


def test_prompts_are_computed_in_submission_order_until_the_budget_is_spent() -> None:
    """The design note's example: 6 of budget, prompts of 2, 1 and 10."""
    engine = Engine(config(chunk=6))
    for rid, size in (("a", 2), ("b", 1), ("c", 10), ("d", 1)):
        engine.submit(rid, size)
    assert inputs(engine.step()) == {"a": 2, "b": 1, "c": 3}


def test_an_incomplete_prefill_holds_the_line_even_with_budget_left() -> None:
    """A state group aligns c's chunk to 8; the 2 tokens left are for nobody."""
    engine = Engine(config(full(), state(), chunk=10))
    engine.submit("c", 15)
    engine.submit("d", 1)
    assert inputs(engine.step()) == {"c": 8}
    assert inputs(engine.step()) == {"c": 7, "d": 1}


def test_a_final_chunk_releases_the_line_within_the_round() -> None:
    engine = Engine(config(chunk=8))
    engine.submit("a", 10)
    engine.submit("b", 5)
    assert inputs(engine.step()) == {"a": 8}
    assert inputs(engine.step()) == {"a": 2, "b": 5}


def test_a_prompt_that_does_not_fit_holds_up_nobody_behind_it() -> None:
    """Five of eight blocks are taken; the prompt of 20 waits, the one of 4 behind it does not."""
    engine = Engine(config(pages=8))
    engine.submit("a", 18, max_new=2)
    engine.submit("big", 20, max_new=1)
    engine.submit("small", 4, max_new=1)
    assert inputs(engine.step()) == {"a": 18, "small": 4}
    assert engine.state("big") == "Submitted"


def test_a_batch_has_at_most_max_batch_size_requests() -> None:
    engine = Engine(config(max_batch_size=2))
    for rid in "abc":
        engine.submit(rid, 2)
    assert inputs(engine.step()) == {"a": 2, "b": 2}
    assert inputs(engine.step()) == {"a": 1, "b": 1}
    assert engine.state("c") == "Submitted"
    engine.finish("a")
    assert inputs(engine.step()) == {"c": 2, "b": 1}, "a prefill comes first in the batch"


def test_request_slots_are_reused_in_the_order_they_were_freed() -> None:
    engine = Engine(config(max_batch_size=3))
    for rid in "abc":
        engine.submit(rid, 2)
    plan = engine.step()
    assert plan.forward[0].request_pool_indices == [1, 2, 3]
    engine.finish("c")
    engine.finish("a")
    engine.submit("d", 2)
    engine.submit("e", 2)
    assert engine.step().forward[0].request_pool_indices[:2] == [3, 1]


def test_mixed_rounds_decode_first_and_prefill_with_what_remains() -> None:
    engine = Engine(config(chunk=8))
    engine.submit("a", 4)
    engine.step()
    engine.submit("b", 30)
    assert inputs(engine.step()) == {"b": 7, "a": 1}


def test_rounds_that_are_not_mixed_decode_only_without_a_prefill() -> None:
    engine = Engine(config(chunk=8, enable_mixed_prefill_decode=False))
    engine.submit("a", 4)
    engine.step()
    engine.submit("b", 12)
    assert [inputs(plan) for plan in engine.steps(3)] == [{"b": 8}, {"b": 4}, {"a": 1, "b": 1}]


def test_a_decode_step_costs_its_width_of_budget() -> None:
    engine = Engine(config(chunk=5, decode_input_tokens=2))
    for rid in "abc":
        engine.submit(rid, 1)
    engine.step()
    assert inputs(engine.step()) == {"a": 2, "b": 2}, "three times two is more than five"


def test_decodes_leave_a_pending_prefill_its_smallest_chunk() -> None:
    """A state group needs a page of 4: with a budget of 6 two decodes leave it, a third would not."""
    engine = Engine(config(full(), state(), chunk=6, pages=64))
    for rid in "abc":
        engine.submit(rid, 1)
    engine.step()
    assert inputs(engine.step()) == {"a": 1, "b": 1, "c": 1}
    engine.submit("d", 9)
    assert inputs(engine.step()) == {"d": 4, "a": 1, "b": 1}


def test_decodes_leave_nothing_where_no_prefill_is_pending_or_no_group_needs_it() -> None:
    engine = Engine(config(chunk=3, pages=64))
    for rid in "abc":
        engine.submit(rid, 1)
    engine.step()
    engine.submit("d", 9)
    assert inputs(engine.step()) == {"a": 1, "b": 1, "c": 1}


def test_decodes_run_beside_a_stalled_prefill() -> None:
    """b's second chunk needs two pages, and none is free; its first one's result is still out."""
    engine = Engine(config(chunk=8, pages=6))
    engine.submit("c", 8, max_new=8)
    engine.step()
    engine.submit("b", 12)
    assert inputs(engine.plan()) == {"b": 7, "c": 1}
    engine.result("c", 1)
    assert inputs(engine.step()) == {"c": 1}
    assert inputs(engine.step()) == {"c": 1}
    assert engine.state("b") == "Prefilling"


def test_a_prompt_s_first_token_takes_the_slot_that_its_last_chunk_reserved() -> None:
    """4 tokens and one decode slot: two pages at once, none for the next four steps."""
    engine = Engine(config())
    engine.submit("a", 4)
    plan = engine.step()
    assert page_table(plan, "a") == [1, 2]
    fresh = [plan.pages_to_zero for plan in engine.steps(6)]
    assert fresh == [{}, {}, {}, {}, {"full": [3]}, {}]


def test_an_intermediate_chunk_reserves_nothing() -> None:
    engine = Engine(config(chunk=4))
    engine.submit("a", 8)
    assert page_table(engine.step(), "a") == [1]
    assert page_table(engine.step(), "a") == [1, 2, 3]


def test_a_declared_generation_is_reserved_with_the_first_chunk() -> None:
    engine = Engine(config(chunk=4))
    engine.submit("a", 8, max_new=7)
    assert page_table(engine.step(), "a") == [1, 2, 3, 4]
    assert engine.step().pages_to_zero == {}


def test_headroom_is_capped_at_a_window_of_4096() -> None:
    engine = Engine(config(full(64), prefix_granularity=64, pages=200))
    engine.submit("a", 64, max_new=6_000)
    assert len(page_table(engine.step(), "a")) == (64 + 4_096) // 64


def test_a_sliding_group_holds_no_headroom() -> None:
    engine = Engine(config(full(), sliding(8)))
    engine.submit("a", 4, max_new=20)
    plan = engine.step()
    assert len(page_table(plan, "a")) == 6
    assert len(page_table(plan, "a", "sliding")) == 2


def test_a_state_group_banks_a_growth_block_on_the_completing_chunk_only() -> None:
    engine = Engine(config(full(), state(), chunk=8, pages=32))
    engine.submit("a", 12)
    first, second = engine.steps(2)
    assert page_table(first, "a", "state") == [0, 3], "the checkpoint at 8 and no growth"
    assert len(page_table(second, "a", "state")) == 4, "12 tokens and a block of growth"


def test_a_chunk_keeps_the_latest_checkpoint_and_its_end_in_a_state_group() -> None:
    """10 tokens at once: the checkpoint at 8 in slot 1, the end in slot 2, growth in slot 3."""
    engine = Engine(config(full(), state(), pages=32))
    engine.submit("a", 10)
    assert page_table(engine.step(), "a", "state") == [0, 4, 5, 6]


def test_sliding_pages_fall_out_of_the_window_with_the_next_admission() -> None:
    """Window 4, pages of 2: with 8 computed tokens slots 0 and 1 are behind it, slot 2 is not."""
    engine = Engine(config(full(2), sliding(4, 2), chunk=8))
    engine.submit("a", 12)
    engine.step()
    plan = engine.step()
    row = page_table(plan, "a", "sliding")
    assert row[:2] == [0, 0]
    assert all(row[2:])


def test_retention_is_exact_to_the_token() -> None:
    """Window 4: with 4 computed tokens all are seen; with 5 the first is not, and its page of 1 goes."""
    engine = Engine(config(full(1), sliding(4, 1), prefix_granularity=1, chunk=4, pages=64))
    engine.submit("a", 8)
    engine.step()
    row = page_table(engine.step(), "a", "sliding")
    assert row[0] == 0
    assert row[1]


@pytest.mark.parametrize(("requests", "stays"), [("a", False), ("ab", True)])
def test_a_decode_step_in_place_leaves_an_expired_slot_that_another_request_shares(
    requests: str, stays: bool
) -> None:
    """Window 3: with 10 computed tokens the page of tokens 6 and 7 is behind it. The second step needs no
    page, so it is an admission only where the request alone holds that page."""
    engine = Engine(
        config(full(8), sliding(3, 2), prefix_granularity=8, decode_input_tokens=4, pages=64, chunk=64)
    )
    engine.run("warm", tokens(9, shared=9))
    for seed, rid in enumerate(requests):
        engine.submit(rid, tokens(9, seed=seed, shared=8))
    first = engine.step()
    assert all(page_table(first, rid, "sliding")[3] for rid in requests)
    engine.step()
    for rid in requests:
        engine.tell(ForwardEvent.UpdateReserveNumTokens(rid, 1))
    plan = engine.step()
    assert [bool(page_table(plan, rid, "sliding")[3]) for rid in requests] == [stays] * len(requests)


def test_update_reserve_sets_the_next_step_s_growth() -> None:
    """Width 4: a step takes 4 slots unless the last one is known to have used fewer."""
    whole = Engine(config(decode_input_tokens=4, pages=64))
    exact = Engine(config(decode_input_tokens=4, pages=64))
    for engine in (whole, exact):
        engine.submit("a", 4)
        engine.step()
    for _ in range(8):
        whole.step()
        exact.step()
        exact.tell(ForwardEvent.UpdateReserveNumTokens("a", 1))
    assert len(page_table(whole.step(), "a")) == 2 + 8
    assert len(page_table(exact.step(), "a")) == 2 + 2


def test_the_reserve_falls_back_to_the_width_after_each_step() -> None:
    engine = Engine(config(decode_input_tokens=4, pages=64))
    engine.submit("a", 4)
    engine.step()
    engine.step()
    engine.tell(ForwardEvent.UpdateReserveNumTokens("a", 0))
    sizes = [len(page_table(engine.step(), "a")) for _ in range(3)]
    assert sizes == [2, 3, 4]


def test_with_overlap_a_request_decodes_again_before_its_result_is_there() -> None:
    engine = Engine(config(overlap_schedule_depth=1))
    engine.submit("a", 4)
    first = engine.plan()
    second = engine.plan()
    assert inputs(second) == {"a": 1}
    engine.land(first)
    engine.land(second)
    assert engine.scheduler.request_token_size("a") == 6


def test_prefix_hits_are_whole_pages_below_the_last_token() -> None:
    engine = Engine(config())
    engine.run("a", tokens(12, shared=12))
    for rid, size, hit in (("b", 12, 8), ("c", 13, 12), ("d", 5, 4), ("e", 4, 0)):
        engine.submit(rid, tokens(size, seed=3, shared=12))
        plan = engine.plan()
        prefix = plan.forward[0].extend_prefix_lens[0]
        assert (rid, prefix) == (rid, hit)
        engine.abort(rid)


def test_prefix_replay_tokens_are_computed_again() -> None:
    engine = Engine(config(prefix_replay_tokens=5))
    engine.run("a", tokens(16, shared=16))
    engine.submit("b", tokens(16, shared=16))
    assert engine.plan().forward[0].extend_prefix_lens == [8], "16 − 5 are two whole pages"


@pytest.mark.parametrize(("bound", "hit"), [(0, 0), (3, 0), (4, 4), (7, 4), (100, 12)])
def test_a_request_s_own_prefix_bound(bound: int, hit: int) -> None:
    engine = Engine(config())
    engine.run("a", tokens(16, shared=16))
    engine.submit("b", tokens(16, shared=16), max_cached_prefix_tokens=bound)
    assert engine.plan().forward[0].extend_prefix_lens == [hit]


def test_without_a_prefix_cache_nothing_is_matched() -> None:
    engine = Engine(config(disable_prefix_cache=True))
    engine.run("a", tokens(16, shared=16))
    engine.submit("b", tokens(16, shared=16))
    assert engine.plan().forward[0].extend_prefix_lens == [0]


def test_a_hit_shares_the_pages_of_the_request_that_computed_them() -> None:
    engine = Engine(config())
    engine.submit("a", tokens(9, shared=9))
    pages = page_table(engine.step(), "a")
    engine.step()
    engine.submit("b", tokens(9, seed=1, shared=8))
    plan = engine.step()
    assert page_table(plan, "b")[:2] == pages[:2]
    assert plan.pages_to_zero == {"full": [4]}


def test_pages_are_published_by_the_admission_behind_the_one_that_computed_them() -> None:
    engine = Engine(config(chunk=4))
    engine.submit("a", tokens(12, shared=12))
    engine.step()
    engine.abort("a")
    engine.submit("b", tokens(12, shared=12))
    assert engine.plan().forward[0].extend_prefix_lens == [0], "computed, but never published"


def test_a_finish_publishes_every_full_page_of_all_tokens_but_the_last() -> None:
    engine = Engine(config(max_batch_size=1))
    prompt = tokens(6, shared=6)
    engine.run("a", prompt, outputs=3)  # 9 tokens: 8 are computed
    outputs = [7_000_000, 7_000_001, 7_000_002]
    engine.submit("b", [*prompt, *outputs, 1])
    assert engine.plan().forward[0].extend_prefix_lens == [8]


def test_an_abort_publishes_nothing() -> None:
    engine = Engine(config())
    engine.submit("a", tokens(8, shared=8))
    engine.step()
    engine.abort("a")
    assert engine.scheduler.empty_lcm_blocks() == 16


def test_two_requests_with_one_prompt_end_up_on_one_page() -> None:
    """Computed twice in one round; the later one's page gives way to the one that was published first."""
    engine = Engine(config())
    for rid in "ab":
        engine.submit(rid, tokens(5, shared=5))
    engine.step()
    plan = engine.step()
    engine.steps(2)
    plan = engine.step()
    assert page_table(plan, "a")[0] == page_table(plan, "b")[0]
    assert page_table(plan, "a")[1] != page_table(plan, "b")[1]


def test_a_promotion_boundary_brings_the_other_groups_up_to_the_full_one() -> None:
    """The full group has 12 tokens, the window only its pages below 12: a prompt that shares 8 computes up to
    8 first, so that the window's pages there can be shared as well."""
    engine = Engine(config(full(), sliding(4), pages=32))
    engine.run("a", tokens(14, shared=14))
    engine.submit("b", tokens(14, seed=1, shared=8))
    first, second = engine.steps(2)
    assert [inputs(first), inputs(second)] == [{"b": 8}, {"b": 6}]
    engine.step()
    engine.submit("c", tokens(14, seed=2, shared=8))
    assert engine.plan().forward[0].extend_prefix_lens == [8]


def test_an_event_free_engine_with_nothing_to_do_plans_nothing() -> None:
    plan = Engine(config()).plan()
    assert (plan.forward, plan.cache, plan.remote_prefill, plan.remote_decode) == ([], [], None, None)
    assert plan.pages_to_zero == {}


def test_a_request_s_pages_go_back_from_the_last_to_the_first() -> None:
    engine = Engine(config(pages=3))
    engine.submit("a", 11)
    assert page_table(engine.step(), "a") == [1, 2, 3]
    engine.abort("a")
    engine.submit("b", 11)
    assert page_table(engine.step(), "b") == [3, 2, 1]


@pytest.mark.parametrize(("shared", "hit"), [(8, 0), (12, 0), (16, 0), (20, 20)])
def test_of_a_prompt_s_state_checkpoints_only_the_last_is_published(shared: int, hit: int) -> None:
    """22 tokens in chunks of 8: checkpoints at 8, 16 and 20."""
    engine = Engine(config(full(), state(), chunk=8, pages=64))
    engine.run("a", tokens(22, shared=22))
    engine.submit("b", tokens(22, seed=1, shared=shared))
    assert hits(engine.step()) == {"b": hit}


def test_a_window_s_page_at_a_prompt_s_end_outlives_one_that_decoding_filled() -> None:
    """a's page is an endpoint and older, c's was filled by decoding; d needs one of them."""
    engine = Engine(config(sliding(4), pages=4))
    engine.submit("a", tokens(5, shared=5))
    engine.steps(2)
    engine.abort("a")
    engine.submit("c", 3)
    engine.steps(3)
    engine.abort("c")
    assert engine.scheduler.empty_lcm_blocks() == 2
    engine.submit("d", 11)
    engine.step()
    engine.abort("d")
    engine.submit("e", tokens(6, seed=3, shared=5))
    assert hits(engine.step()) == {"e": 4}


def test_inputs_are_the_chunk_s_tokens_and_shifted_ones_run_out_with_the_prompt() -> None:
    engine = Engine(config(chunk=4))
    engine.submit("a", [11, 12, 13, 14, 15, 16])
    first, second = (plan.forward[0] for plan in engine.steps(2))
    assert (first.input_ids, first.shifted_input_ids) == ([11, 12, 13, 14], [12, 13, 14, 15])
    assert (second.input_ids, second.shifted_input_ids) == ([15, 16], [16, -1])


def test_a_replayed_window_is_fed_again_ahead_of_the_new_tokens() -> None:
    engine = Engine(config(full(), replay(6), chunk=16, pages=64))
    prompt = tokens(14, shared=14)
    engine.run("a", prompt)
    engine.submit("b", prompt)
    (batch,) = engine.step().forward
    assert (batch.extend_prefix_lens, batch.extend_replay_lens, batch.input_lengths) == ([6], [6], [8])
    assert batch.input_ids == prompt[6:]
    assert batch.shifted_input_ids == [*prompt[7:], -1]
