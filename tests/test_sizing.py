"""Sizing a pool and bounding a request, as library calls; cases S1 to S13 by number."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.deployment import Deployment, load_deployment
from kvplan.scheduler import RequestSpec, Scheduler
from kvplan.sizing import PoolSize, Verdict, max_request, size_pool


def full(g: int = 64, k: int = 1, **fields: Any) -> dict[str, Any]:
    return {"group_id": "full", "block_granularity": g, "cache_blocks_per_lcm_block": k} | fields


def state(g: int = 64, k: int = 1, **fields: Any) -> dict[str, Any]:
    return full(g, k) | {"group_id": "state", "family": "State"} | fields


def sliding(window: int, g: int = 64, k: int = 1, **fields: Any) -> dict[str, Any]:
    kept = {"group_id": "swa", "retention": "SlidingWindow", "sliding_window_tokens": window}
    return full(g, k) | kept | fields


def deployed(*groups: dict[str, Any], **fields: Any) -> Deployment:
    sizing = {"prefix_granularity": 64, "max_scheduled_tokens": 8192, "max_batch_size": 16}
    return load_deployment(None, sizing | {"cache_groups": list(groups)} | fields)


def again(deployment: Deployment, result: PoolSize, flags: dict[str, Any]) -> PoolSize:
    """The answer to what was asked with a try line's flags put over it."""
    names = {name.removeprefix("--").replace("-", "_"): value for name, value in flags.items()}
    context = names.pop("max_context_len", result.max_context_len)
    total = names.pop("max_total_tokens", result.max_total_tokens if result.max_total_tokens_given else None)
    return size_pool(deployment.replace(**names), context, total)


S1 = {"max_batch_size": 16, "decode_input_tokens": 4, "overlap_schedule_depth": 1}


def s1(**fields: Any) -> Deployment:
    return deployed(full(k=12), state(), sliding(128, k=3), **(S1 | fields))


# --- the need -----------------------------------------------------------------------------------------


def test_s1_pages_blocks_and_one_requests_state_pages() -> None:
    result = size_pool(s1(), 4096, 65536)
    assert [group.pages for group in result.groups] == [1056, 64, 194]
    assert [group.blocks for group in result.groups] == [88, 64, 65]
    assert result.needed_blocks == 217
    assert result.num_device_pages == 218
    assert result.groups[1].single_request_pages == 4
    assert result.verdict is Verdict.NO_POOL
    assert result.pool is None
    assert result.alternatives == ()


def test_all_tokens_are_batch_times_context_unless_given() -> None:
    assert size_pool(s1(), 4096).max_total_tokens == 65536
    assert size_pool(s1(), 4096).needed_blocks == 217
    assert size_pool(s1(), 4096, 10_000).groups[0].pages == 157 + 32


def test_bytes_are_those_of_whole_blocks_and_unknown_where_a_page_is() -> None:
    block = 12 * 2**20
    deployment = s1(
        cache_groups=[
            full(k=12, bytes_per_page=2**20),
            state(bytes_per_page=block),
            sliding(128, k=3, bytes_per_page=block // 3 - 1000),
        ]
    )
    result = size_pool(deployment, 4096)
    assert result.bytes_per_block == block
    assert [group.bytes for group in result.groups] == [88 * block, 64 * block, 65 * block]
    assert [group.padding_bytes_per_block for group in result.groups] == [0, 0, 3000]
    assert (result.needed_bytes, result.pool_bytes) == (217 * block, 218 * block)
    unknown = size_pool(s1(), 4096)
    assert unknown.needed_bytes is unknown.pool_bytes is unknown.bytes_per_block is None


def test_a_request_costs_a_fixed_part_and_a_part_per_token() -> None:
    full_cost, state_cost, sliding_cost = (group.cost for group in size_pool(s1(), 4096).groups)
    assert (full_cost.fixed_pages_per_request, full_cost.pages_per_token) == (2, 1 / 64)
    assert (state_cost.fixed_pages_per_request, state_cost.pages_per_token) == (4, 0)
    assert (sliding_cost.fixed_pages_per_request, sliding_cost.pages_per_token) == (4, 0)
    assert (full_cost.once_pages, state_cost.once_pages, sliding_cost.once_pages) == (0, 0, 2 + 128)


def test_s10_a_window_beyond_the_context_costs_what_full_history_costs() -> None:
    group = sliding(32_768)
    alone = size_pool(deployed(full(), group), 512).groups
    assert alone[0].single_request_pages == alone[1].single_request_pages == 8
    landed = size_pool(deployed(full(), group, role="D"), 512).groups
    assert landed[0].pages == landed[1].pages == 16 * 9
    assert landed[0].cost == landed[1].cost


def test_s13_a_window_of_a_few_tokens_still_costs_a_page_a_request() -> None:
    group = size_pool(deployed(sliding(8)), 4096).groups[0]
    assert group.pages >= 16
    assert group.cost.fixed_pages_per_request >= 1


# --- the pool -----------------------------------------------------------------------------------------


def test_s3_a_mean_number_of_requests_is_pages_over_pages() -> None:
    deployment = deployed(full(g=16, bytes_per_page=2 * 2**20), prefix_granularity=16, pool_blocks=1952)
    result = size_pool(deployment, 20_000)
    assert result.groups[0].single_request_pages == 1250
    assert result.pool is not None
    assert result.pool.mean_requests == pytest.approx(1.5616)
    assert result.pool.requests_at_once == 1
    assert result.bytes_per_block == 131_072 * 16


# With P twice a state group's page, a request's worst moment is 5 pages: the snapshot before, the endpoint, and 3
# for a tail of up to P − 1 tokens and a page of growth.
FIVE_PAGES = {"prefix_granularity": 128}


@pytest.mark.parametrize(("slots", "asked", "at_once"), [(47, 32, 9), (10, 8, 2)])
def test_s11_state_slots_bound_the_batch(slots: int, asked: int, at_once: int) -> None:
    deployment = deployed(state(), **FIVE_PAGES, max_batch_size=asked, pool_blocks=slots)
    result = size_pool(deployment, 4096)
    assert result.groups[0].single_request_pages == 5
    assert result.verdict is Verdict.NOT_AT_ONCE
    assert result.pool is not None
    assert result.pool.requests_at_once == at_once
    assert (result.pool.binds.limit, result.pool.binds.kind) == ("group", "state")
    assert result.alternatives[0].flags == {"--max-batch-size": at_once}


def test_s11_the_state_binds_beside_attention_that_has_room() -> None:
    deployment = deployed(full(k=4096), state(), **FIVE_PAGES, max_batch_size=32, pool_blocks=48)
    result = size_pool(deployment, 4096)
    assert result.pool is not None
    assert result.pool.requests_at_once == 9
    assert result.pool.binds.group_id == "state"
    assert result.pool.binds.share_of_blocks == 45 / 46


def test_s12_pages_run_out_before_tokens() -> None:
    deployment = deployed(full(g=128), prefix_granularity=128, max_batch_size=2, pool_blocks=1)
    result = size_pool(deployment, 2)
    assert result.verdict is Verdict.NOT_AT_ONCE
    assert result.pool is not None
    assert result.pool.requests_at_once == 1  # alone, each of them fits
    assert size_pool(deployment.replace(max_batch_size=1), 2).verdict is Verdict.FITS


def test_s12_the_scheduler_runs_one_and_lets_one_wait() -> None:
    deployment = deployed(full(g=128), prefix_granularity=128, max_batch_size=2, pool_blocks=1)
    scheduler = Scheduler(deployment.config)
    scheduler.submit_requests([RequestSpec("a", [1, 2], 1), RequestSpec("b", [3, 4], 1)])
    assert scheduler.next_execution_plan().forward[0].request_ids == ["a"]
    assert scheduler.waiting_size() == 1


def test_a_pool_larger_than_the_batch_is_bound_by_the_batch() -> None:
    result = size_pool(s1(pool_blocks=340), 4096)
    assert result.verdict is Verdict.FITS
    assert result.pool is not None
    assert result.pool.requests_at_once == 27
    assert (result.pool.binds.limit, result.pool.binds.group_id) == ("max_batch_size", "full")
    assert result.alternatives == ()


def test_the_pool_that_is_needed_fits_and_one_block_fewer_does_not() -> None:
    assert size_pool(s1(pool_blocks=217), 4096).verdict is Verdict.FITS
    assert size_pool(s1(pool_blocks=216), 4096).verdict is Verdict.NOT_AT_ONCE


def test_never_and_not_at_once_are_two_verdicts() -> None:
    alone = size_pool(s1(pool_blocks=100), 39_932)
    assert alone.verdict is Verdict.NOT_AT_ONCE
    assert alone.pool is not None
    assert (alone.pool.longest_request, alone.pool.requests_at_once) == (39_932, 1)
    beyond = size_pool(s1(pool_blocks=100), 39_933)
    assert beyond.verdict is Verdict.NEVER_FITS
    assert beyond.pool is not None
    assert beyond.pool.requests_at_once == 0


def test_a_total_above_what_the_requests_hold_is_not_blamed_on_them() -> None:
    result = size_pool(deployed(full(), pool_blocks=100), 64, 100_000)
    assert result.verdict is Verdict.NOT_AT_ONCE
    assert result.pool is not None
    assert result.pool.requests_at_once is not None
    assert result.pool.requests_at_once >= 16
    assert [one.changes for one in result.alternatives] == ["max_total_tokens", "pool"]


def test_groups_that_do_not_grow_leave_lengths_without_a_bound() -> None:
    result = size_pool(deployed(state(), pool_blocks=100), 4096)
    assert result.pool is not None
    assert result.pool.longest_context is None
    assert result.pool.longest_request is None


# --- what to try --------------------------------------------------------------------------------------


def test_alternatives_change_the_batch_the_context_the_total_or_the_pool() -> None:
    batch, context, total, pool = size_pool(s1(pool_blocks=150), 4096).alternatives
    assert (batch.flags, batch.beyond_flags) == ({"--max-batch-size": 9}, {"--max-batch-size": 10})
    assert (batch.needed_blocks, batch.usable_blocks, batch.beyond_needed_blocks) == (
        142,
        150,
        152,
    )  # 50 + 36 + 56 blocks of 9 requests
    # 64 state blocks, 65 of windows and a chunk; 21 blocks of 12 pages are left: 220 for tokens, 32 open.
    assert context.flags == {"--max-context-len": 220 * 64 // 16}
    assert total.flags == {"--max-total-tokens": 220 * 64}
    assert (pool.flags, pool.beyond_flags) == ({"--pool-blocks": 217}, {"--pool-blocks": 216})


def test_a_given_total_is_lowered_with_the_batch_that_cannot_hold_it() -> None:
    result = size_pool(s1(pool_blocks=150), 4096, 65536)
    assert result.alternatives[0].flags == {"--max-batch-size": 9, "--max-total-tokens": 9 * 4096}


def test_where_none_fits_one_shorter_request_is_offered() -> None:
    changes = {one.changes: one.flags for one in size_pool(s1(pool_blocks=100), 50_000).alternatives}
    assert "max_batch_size" not in changes
    assert changes["one_request"] == {"--max-batch-size": 1, "--max-context-len": 39_932}


def test_a_flag_is_spelt_as_it_was_given() -> None:
    deployment = load_deployment(
        None,
        {
            "prefix_granularity": 64,
            "max_scheduled_tokens": 8192,
            "max_num_seqs": 16,
            "cache_groups": [full()],
            "num_device_pages": 100,
        },
    )
    tried = [one.flags for one in size_pool(deployment, 4096).alternatives]
    assert list(tried[0]) == ["--max-num-seqs"]
    assert tried[-1] == {"--num-device-pages": 1024 + 16 + 1}


def test_a_pool_given_in_tokens_is_replaced_by_blocks() -> None:
    one = size_pool(deployed(full(), pool_tokens=10_000), 4096).alternatives[-1]
    assert (one.flags, one.replaces) == ({"--pool-blocks": 1040}, "--pool-tokens")


@pytest.mark.parametrize("page_bytes", [1, 1000, 2**20, 10**9])
def test_a_pool_given_in_gib_is_asked_for_in_gib(page_bytes: int) -> None:
    gib = 3 * page_bytes / 2**30
    one = size_pool(deployed(full(bytes_per_page=page_bytes), pool_gib=gib), 4096).alternatives[-1]
    assert list(one.flags) == ["--pool-gib"]
    assert one.usable_blocks >= 1040 > one.beyond_usable_blocks


def test_a_pool_that_no_engine_can_address_is_not_offered() -> None:
    result = size_pool(deployed(full(), pool_blocks=100, max_batch_size=1_000_000), 2**31 - 1)
    assert [one.changes for one in result.alternatives] == ["one_request"]


group_mixes = st.lists(
    st.one_of(
        st.builds(full, st.sampled_from([1, 16, 64]), st.integers(1, 12)),
        st.builds(state, st.sampled_from([16, 64]), st.integers(1, 3)),
        st.builds(sliding, st.sampled_from([1, 8, 128, 1000]), st.sampled_from([16, 64]), st.integers(1, 12)),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(
    groups=group_mixes,
    width=st.integers(1, 5),
    overlap=st.integers(0, 1),
    role=st.sampled_from(["P", "D", "Fused"]),
    batch=st.integers(1, 40),
    context=st.integers(1, 20_000),
    total_share=st.none() | st.floats(0, 1.5),
    pool=st.integers(1, 3000),
)
def test_every_figure_is_at_its_boundary(
    groups: list[dict[str, Any]],
    width: int,
    overlap: int,
    role: str,
    batch: int,
    context: int,
    total_share: float | None,
    pool: int,
) -> None:
    deployment = deployed(
        *(group | {"group_id": f"g{number}"} for number, group in enumerate(groups)),
        max_batch_size=batch,
        decode_input_tokens=width,
        overlap_schedule_depth=overlap,
        role=role,
        pool_blocks=pool,
    )
    total = None if total_share is None else max(context, int(total_share * batch * context))
    result = size_pool(deployment, context, total)
    for group in result.groups:  # the cost's terms add up to the pages
        cost = group.cost
        per_token = -(-result.max_total_tokens // group.block_granularity) if cost.pages_per_token else 0
        assert group.pages == batch * cost.fixed_pages_per_request + per_token + cost.once_pages
    assert result.pool is not None
    at_once = result.pool.requests_at_once
    assert (result.verdict is Verdict.FITS) == (not result.alternatives)
    assert (result.verdict is Verdict.NEVER_FITS) == (at_once == 0)
    if result.verdict is Verdict.FITS:
        assert at_once is None or at_once >= batch
    for one in result.alternatives:  # pasted, each fits; one step further does not
        assert again(deployment, result, dict(one.flags)).verdict is Verdict.FITS
        beyond = one.beyond_flags
        if all(value >= 1 for value in beyond.values()):
            assert again(deployment, result, dict(beyond)).verdict is not Verdict.FITS


# --- wrong input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("context", "total", "message"),
    [
        (0, None, "max_context_len is 0"),
        (-5, None, "max_context_len is -5"),
        (2**31, None, "max_context_len is 2147483648"),
        (4096, 4095, "max_total_tokens is 4095, below max_context_len"),
        (4096, -1, "max_total_tokens is -1"),
        (4096, 16 * (2**31 - 1) + 1, "max_total_tokens is 34359738353; at most 34359738352"),
    ],
)
def test_figures_out_of_range_are_named(context: int, total: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        size_pool(s1(), context, total)


# --- the longest request ------------------------------------------------------------------------------


def s3(**fields: Any) -> Deployment:
    return deployed(full(g=16), prefix_granularity=16, pool_blocks=1478, **fields)


def test_s3_the_limit_and_how_far_a_longer_request_is_from_it() -> None:
    result = max_request(s3(), 29_000)
    assert (result.max_tokens, result.max_prompt_tokens, result.generation_tokens) == (23_648, 23_647, 1)
    asked = result.asked
    assert asked is not None
    assert not asked.fits
    assert not result.fits
    assert (asked.short_tokens, asked.short_pages, asked.short_blocks) == (5352, 335, 335)
    assert asked.short_group == "full"
    assert [one.flags for one in result.alternatives] == [{"--tokens": 23_648}, {"--pool-blocks": 1813}]


@pytest.mark.parametrize(
    ("fields", "limit"),
    [({}, 896), ({"overlap_schedule_depth": 1}, 895), (S1 | {"max_batch_size": 2}, 892)],
)
def test_s4_the_boundary_fits_and_one_token_more_does_not(fields: dict[str, Any], limit: int) -> None:
    deployment = deployed(full(g=128), prefix_granularity=128, num_device_pages=8, **fields)
    assert deployment.usable_blocks == 7
    result = max_request(deployment)
    width = deployment.config.decode_input_tokens
    assert (result.max_tokens, result.max_prompt_tokens) == (limit, limit - width)
    assert max_request(deployment, limit).fits
    assert not max_request(deployment, limit + 1).fits
    assert not max_request(deployment, 1024).fits
    # The scheduler draws the same line, and counts a decode step at least as generation.
    scheduler = Scheduler(deployment.config)
    scheduler.submit_requests([RequestSpec("longest", [1] * (limit - width), 0)])
    with pytest.raises(ValueError, match="never fit"):
        scheduler.submit_requests([RequestSpec("beyond", [1] * (limit - width + 1), 0)])


def test_s5_what_can_never_fit_is_short_of_the_limit_and_not_of_the_moment() -> None:
    deployment = deployed(full(g=16), pool_tokens=76_640)
    result = max_request(deployment, 100_000)
    assert result.max_tokens == 76_640
    assert result.asked is not None
    assert result.asked.short_tokens == 23_360
    assert max_request(deployment, 500).fits


def test_one_token_more_names_the_group_that_grows() -> None:
    result = max_request(s1(pool_blocks=100))
    assert result.max_tokens == 39_932
    assert result.grows == ("full",)
    assert result.beyond is not None
    assert (result.beyond.tokens, result.beyond.needed_blocks) == (39_933, 101)
    assert (result.beyond.groups[0].pages, result.longest.groups[0].pages) == (625, 624)


def test_declared_generation_takes_from_the_prompt() -> None:
    assert max_request(s3(), max_new_tokens=1000).max_prompt_tokens == 22_648
    wide = max_request(s3(decode_input_tokens=8), max_new_tokens=3)
    assert (wide.max_prompt_tokens, wide.generation_tokens) == (23_640, 8)
    assert max_request(s3(role="P"), max_new_tokens=1000).max_prompt_tokens == 23_648


def test_a_generation_as_long_as_the_limit_leaves_no_prompt() -> None:
    result = max_request(s3(), max_new_tokens=23_648)
    assert (result.max_prompt_tokens, result.fits) == (0, False)


def test_a_pool_below_one_requests_fixed_cost_admits_none() -> None:
    result = max_request(deployed(state(), pool_blocks=2), 10)
    assert (result.max_tokens, result.fits) == (0, False)
    assert result.asked is not None
    assert (result.asked.short_pages, result.asked.short_blocks) == (1, 1)
    assert [one.flags for one in result.alternatives] == [{"--pool-blocks": 3}]


def test_a_length_that_leaves_no_prompt_is_not_offered_instead() -> None:
    deployment = deployed(full(), decode_input_tokens=100, overlap_schedule_depth=1, pool_blocks=3)
    result = max_request(deployment, 500)
    assert (result.max_tokens, result.generation_tokens) == (92, 100)
    assert [one.flags for one in result.alternatives] == [{"--pool-blocks": 10}]


def test_groups_that_do_not_grow_admit_any_length() -> None:
    result = max_request(deployed(state(), pool_blocks=100), 10**9)
    assert result.fits
    assert result.beyond is None


@pytest.mark.parametrize(
    ("tokens", "new", "message"),
    [
        (0, 0, "tokens is 0"),
        (-1, 0, "tokens is -1"),
        (2**31, 0, "tokens is 2147483648"),
        (100, -1, "max_new_tokens is -1"),
        (100, 100, "tokens is 100, prompt and generation together"),
    ],
)
def test_requests_that_are_none_are_named(tokens: int, new: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        max_request(s3(), tokens, new)


def test_a_limit_needs_a_pool() -> None:
    with pytest.raises(ValueError, match="pool_blocks"):
        max_request(s1())


# --- S2 -----------------------------------------------------------------------------------------------


def test_s2_a_request_takes_nine_pages_and_three_of_six_enter() -> None:
    groups = [full(g=2), *(state(g=2) | {"group_id": f"state{n}"} for n in range(3))]
    deployment = deployed(
        *groups, prefix_granularity=2, max_scheduled_tokens=64, max_batch_size=8, pool_blocks=32
    )
    scheduler = Scheduler(deployment.config)
    scheduler.submit_requests([RequestSpec(f"r{n}", [2 * n + 1, 2 * n + 2], 4) for n in range(6)])
    plan = scheduler.next_execution_plan()
    assert plan.forward[0].request_ids == ["r0", "r1", "r2"]
    assert scheduler.empty_lcm_blocks() == 32 - 3 * 9
    assert scheduler.waiting_size() == 3
