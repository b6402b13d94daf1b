"""The capacity model, rule by rule (engine.md §3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.scheduler import (
    CacheGroupConfig,
    CacheGroupFamily,
    CacheRetention,
    CacheTransferPolicy,
    CapacityModel,
    SchedulerConfig,
)
from kvplan.scheduler.capacity import MAX_TOKENS

Role = SchedulerConfig.Role
SUFFIX, SNAPSHOT = CacheTransferPolicy.FullSuffix, CacheTransferPolicy.LatestSnapshot


def full(g: int = 64, k: int = 1) -> CacheGroupConfig:
    return CacheGroupConfig("full", g, cache_blocks_per_lcm_block=k, transfer_policy=SUFFIX)


def state(g: int = 64, k: int = 1) -> CacheGroupConfig:
    return CacheGroupConfig(
        "state",
        g,
        cache_blocks_per_lcm_block=k,
        family=CacheGroupFamily.State,
        transfer_policy=SNAPSHOT,
    )


def sliding(window: int, g: int = 64, k: int = 1) -> CacheGroupConfig:
    return CacheGroupConfig(
        "swa",
        g,
        cache_blocks_per_lcm_block=k,
        retention=CacheRetention.SlidingWindow,
        sliding_window_tokens=window,
        transfer_policy=SUFFIX,
    )


def config(*groups: CacheGroupConfig, **fields: Any) -> SchedulerConfig:
    given_fields = {"prefix_granularity": 64, "max_scheduled_tokens": 8192, "max_batch_size": 16} | fields
    return SchedulerConfig(cache_groups=list(groups), **given_fields)


def single(group: CacheGroupConfig, tokens: int, **fields: Any) -> int:
    return CapacityModel(config(group, **fields)).single_request_group_pages(tokens)[0]


def concurrent(group: CacheGroupConfig, total: int, context: int, **fields: Any) -> int:
    return CapacityModel(config(group, **fields)).concurrent_group_pages(total, context)[0]


def test_a_model_is_of_the_configuration_as_it_was() -> None:
    cfg = config(full(), sliding(128))
    model = CapacityModel(cfg)
    cfg.cache_groups[0].block_granularity = 32
    cfg.cache_groups[1].sliding_window_tokens = 8192
    cfg.cache_groups.append(state())
    cfg.max_batch_size = 1
    same = CapacityModel(config(full(), sliding(128)))
    assert model.concurrent_group_pages(4096, 256) == same.concurrent_group_pages(4096, 256)
    assert model.single_request_group_pages(20_000) == same.single_request_group_pages(20_000)


# --- one request ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "fields", "pages"),
    [
        (0, {}, 0),
        (64, {}, 1),
        (65, {}, 2),
        (64, {"overlap_schedule_depth": 1}, 2),  # one protected token beyond the page
        (60, {"overlap_schedule_depth": 1, "decode_input_tokens": 4}, 1),
        (61, {"overlap_schedule_depth": 1, "decode_input_tokens": 4}, 2),
        (64, {"decode_input_tokens": 4}, 1),  # without overlap nothing is protected
        (64, {"overlap_schedule_depth": 1, "role": Role.P}, 1),  # nor on P
        (64, {"overlap_schedule_depth": 1, "role": Role.D}, 2),
    ],
)
def test_a_full_group_holds_every_token_and_those_in_flight(
    tokens: int, fields: dict[str, Any], pages: int
) -> None:
    assert single(full(), tokens, **fields) == pages


@pytest.mark.parametrize(
    ("tokens", "fields", "pages"),
    [
        (0, {}, 0),
        (1, {}, 3),  # lookback 1, endpoint 1, growth 64 tokens
        (4096, {}, 4),  # and a tail of up to P − 1 tokens before the prompt's end
        (66, {}, 4),  # one token past P: a tail page
        (65, {}, 3),  # the prompt ends at P: no tail
        (4096, {"disable_prefix_cache": True}, 3),  # a first chunk has no predecessor then
        (9000, {"disable_prefix_cache": True}, 4),  # a later chunk does
        (4096, {"role": Role.P}, 3),  # P reserves no growth
        (1, {"role": Role.P}, 2),
        (1, {"role": Role.D, "disable_prefix_cache": True}, 2),  # the landing: endpoint and banked growth
        (0, {"role": Role.D}, 0),
        (4096, {"role": Role.D}, 4),  # a retracted request recovers locally
        (4096, {"max_scheduled_tokens": 64}, 3),  # chunk − P is 0: no chunk has a tail
    ],
)
def test_a_state_group_holds_snapshots_and_growth_whatever_the_length(
    tokens: int, fields: dict[str, Any], pages: int
) -> None:
    assert single(state(), tokens, **fields) == pages


def test_a_state_groups_growth_covers_a_decode_width_above_its_page() -> None:
    assert single(state(g=8), 1) == 1 + 1 + 1
    assert single(state(g=8), 20, decode_input_tokens=20) == 1 + 1 + 3


@pytest.mark.parametrize(
    ("tokens", "fields", "pages"),
    [
        (0, {}, 1),  # the width alone
        (1000, {}, 16),  # a prompt within one chunk is held whole
        (8193, {}, 129),  # the prompt is one chunk
        (8194, {}, 2 + 128),  # one token more: the lookback stays beside a chunk
        (1_000_000, {}, 2 + 129),  # a full later chunk and its width
        (1_000_000, {"decode_input_tokens": 4, "overlap_schedule_depth": 1}, 2 + 129),
        (1_000_000, {"max_scheduled_tokens": 64}, 2 + 2),
    ],
)
def test_a_sliding_group_peaks_with_a_chunk_and_its_lookback(
    tokens: int, fields: dict[str, Any], pages: int
) -> None:
    assert single(sliding(128), tokens, **fields) == pages


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (64, 1), (200, 4), (256, 4), (257, 5), (10**6, 5)])
def test_a_sliding_group_on_d_lands_a_window_only(tokens: int, pages: int) -> None:
    # lookback 2 + ceil((127 + 1 + 63) / 64) = 5 at most
    assert single(sliding(128), tokens, role=Role.D) == pages


def test_a_window_of_one_token_looks_back_at_no_page() -> None:
    assert single(sliding(1), 1_000_000, max_scheduled_tokens=64) == 2


# --- many requests ----------------------------------------------------------------------------------


def test_full_groups_share_all_tokens_and_give_each_request_an_open_page() -> None:
    assert concurrent(full(), 65536, 4096) == 1024 + 16
    assert concurrent(full(), 65536, 4096, overlap_schedule_depth=1, decode_input_tokens=4) == 1024 + 32
    assert concurrent(full(g=1), 100, 100) == 100  # a page of one token is never half open


def test_state_groups_give_every_request_its_worst_moment() -> None:
    assert concurrent(state(), 65536, 4096) == 16 * 4


def test_sliding_groups_hold_windows_and_one_chunk() -> None:
    assert concurrent(sliding(128), 65536, 4096) == 16 * 3 + 2 + 128
    assert (
        concurrent(sliding(128), 640, 40) == 16 * 2 + 2 + 10
    )  # context below the window, total below a chunk


def test_sliding_groups_on_d_hold_the_smaller_of_windows_and_everything() -> None:
    assert concurrent(sliding(128), 65536, 4096, role=Role.D) == 16 * 5
    assert concurrent(sliding(128), 640, 40, role=Role.D) == 10 + 16


def test_an_empty_batch_needs_its_tokens_only() -> None:
    model = CapacityModel(config(full(), state(), max_batch_size=0))
    assert model.concurrent_group_pages(640, 64) == [10, 0]


@pytest.mark.parametrize(
    ("total", "context", "name"), [(-1, 0, "max_total_tokens"), (0, -1, "max_context_len")]
)
def test_negative_tokens_are_refused_by_name(total: int, context: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is -1"):
        CapacityModel(config(full())).concurrent_group_pages(total, context)


# --- blocks -----------------------------------------------------------------------------------------


def test_every_group_rounds_up_to_whole_blocks() -> None:
    model = CapacityModel(config(full(k=12), state(), sliding(128, k=3)))
    assert model.num_groups == 3
    assert model.lcm_blocks_needed_for([1056, 64, 194]) == 88 + 64 + 65
    assert model.lcm_blocks_needed_for([0, 0, 0]) == 0
    with pytest.raises(ValueError, match="3"):
        model.lcm_blocks_needed_for([1, 2])


def test_a_pool_that_serves_nothing_has_a_limit_of_zero() -> None:
    assert CapacityModel(config(state())).max_single_request_tokens(2) == 0


def test_a_pool_whose_groups_do_not_grow_has_no_limit_but_the_engines_integers() -> None:
    assert CapacityModel(config(state())).max_single_request_tokens(4) == MAX_TOKENS == 2**31 - 1


# --- properties -------------------------------------------------------------------------------------


@st.composite
def configs(draw: st.DrawFn, least_batch: int = 0) -> SchedulerConfig:
    prefix = draw(st.sampled_from([1, 2, 4, 16, 64, 256]))
    pages = st.sampled_from([g for g in (1, 2, 4, 16, 64, 256) if prefix % g == 0])
    packing = st.sampled_from([1, 2, 3, 12])
    window = st.sampled_from([1, 2, 5, 64, 128, 129, 1024])
    one_group = st.one_of(
        st.builds(full, pages, packing),
        st.builds(state, pages, packing),
        st.builds(sliding, window, pages, packing),
    )
    groups = draw(st.lists(one_group, min_size=1, max_size=4))
    width = draw(st.integers(1, 8))
    return config(
        *(replace(group, group_id=f"g{number}") for number, group in enumerate(groups)),
        prefix_granularity=prefix,
        max_scheduled_tokens=prefix * draw(st.integers(1, 8)) + draw(st.integers(0, prefix)),
        max_batch_size=draw(st.integers(least_batch, 64)),
        decode_input_tokens=width,
        overlap_schedule_depth=draw(st.integers(0, 1)),
        role=draw(st.sampled_from(Role)),
        disable_prefix_cache=draw(st.booleans()),
    )


LENGTHS = st.integers(0, 100_000)


@given(configs(least_batch=1), LENGTHS)
def test_a_batch_never_needs_less_than_one_of_its_requests(cfg: SchedulerConfig, length: int) -> None:
    model = CapacityModel(cfg)
    alone = model.single_request_group_pages(length)
    together = model.concurrent_group_pages(length, length)
    assert all(many >= one for many, one in zip(together, alone, strict=True))


@settings(deadline=None)
@given(configs(), st.integers(0, 5000))
def test_the_limit_fits_and_one_token_more_does_not(cfg: SchedulerConfig, blocks: int) -> None:
    model = CapacityModel(cfg)
    limit = model.max_single_request_tokens(blocks)

    def needed(tokens: int) -> int:
        return model.lcm_blocks_needed_for(model.single_request_group_pages(tokens))

    if limit:
        assert needed(limit) <= blocks
    if limit < MAX_TOKENS:
        assert needed(limit + 1) > blocks


@given(configs(), LENGTHS, LENGTHS)
def test_a_longer_request_never_needs_less(cfg: SchedulerConfig, one: int, other: int) -> None:
    model = CapacityModel(cfg)
    short, long = (model.single_request_group_pages(n) for n in sorted((one, other)))
    assert all(a <= b for a, b in zip(short, long, strict=True))


@given(configs(), LENGTHS, LENGTHS, st.integers(1, 16))
def test_more_requests_never_need_less(cfg: SchedulerConfig, total: int, context: int, more: int) -> None:
    fewer = CapacityModel(cfg).concurrent_group_pages(total, context)
    larger = replace(cfg, max_batch_size=cfg.max_batch_size + more)
    assert all(
        a <= b
        for a, b in zip(fewer, CapacityModel(larger).concurrent_group_pages(total, context), strict=True)
    )
