"""What is promised of a pool, and what is not: who waits, who is retracted, who waits for ever."""

import random
from dataclasses import replace
from typing import Any

import pytest

from kvplan.deployment import Deployment, load_deployment
from kvplan.scheduler import (
    CacheGroupConfig,
    CacheGroupFamily,
    CacheRetention,
    CapacityModel,
    SchedulerConfig,
)
from kvplan.sizing import size_pool
from kvplan.sizing.sure import sure_blocks
from kvplan.sizing.wish import Wish
from tests.recipes.engine_loop import EngineLoop


def full(page: int, packing: int) -> CacheGroupConfig:
    return CacheGroupConfig("full", page, 1, cache_blocks_per_lcm_block=packing)


def sliding(page: int, window: int, packing: int, name: str = "sliding") -> CacheGroupConfig:
    return CacheGroupConfig(
        name,
        page,
        1,
        retention=CacheRetention.SlidingWindow,
        sliding_window_tokens=window,
        cache_blocks_per_lcm_block=packing,
    )


def state(page: int, packing: int, name: str = "state") -> CacheGroupConfig:
    return CacheGroupConfig(name, page, 1, family=CacheGroupFamily.State, cache_blocks_per_lcm_block=packing)


def settings(*groups: CacheGroupConfig, **fields: Any) -> SchedulerConfig:
    config = replace(SchedulerConfig(), **fields)
    config.cache_groups = list(groups)
    return config


def with_pool(config: SchedulerConfig, blocks: int) -> SchedulerConfig:
    groups = [
        replace(group, total_pages=blocks * group.cache_blocks_per_lcm_block + 1)
        for group in config.cache_groups
    ]
    return replace(config, num_device_pages=blocks + 1, cache_groups=groups)


def demand(config: SchedulerConfig, context: int) -> int:
    model = CapacityModel(config)
    return model.lcm_blocks_needed_for(model.concurrent_group_pages(config.max_batch_size * context, context))


def played(
    config: SchedulerConfig,
    context: int,
    output: int,
    declared: bool = True,
    rng: random.Random | None = None,
) -> EngineLoop:
    return EngineLoop(
        config,
        requests=config.max_batch_size,
        prompt=context - output,
        output=output,
        declared=declared,
        rng=rng or random.Random(0),
        watched=True,
    )


def drawn(rng: random.Random) -> tuple[SchedulerConfig, int, int]:
    """Settings with one to six groups of any packing, a context, and the part of it that is generated."""
    page = rng.choice((4, 8, 16))
    prefix, width, batch = page * rng.choice((1, 2)), rng.choice((1, 2, 4)), rng.randint(1, 6)
    context = rng.randint(2 * width + 1, 300)
    least = prefix + width
    packings = (1, 2, 3, 6, 12, 20)
    groups = [full(page, rng.choice(packings))] * rng.randint(0, 1)
    groups += [
        sliding(page, rng.choice((5, 8, 24, 40, 100)), rng.choice(packings), f"sliding_{at}")
        for at in range(rng.randint(0, 2))
    ]
    groups += [state(prefix, rng.choice((1, 1, 2, 3)), f"state_{at}") for at in range(rng.randint(0, 3))]
    config = settings(
        *(groups or [full(page, 1)]),
        prefix_granularity=prefix,
        max_scheduled_tokens=rng.choice((least, prefix + batch * width, rng.randint(least, 150))),
        max_batch_size=batch,
        decode_input_tokens=width,
        overlap_schedule_depth=rng.randint(0, 1),
        enable_mixed_prefill_decode=rng.random() < 0.5,
        disable_prefix_cache=rng.random() < 0.2,
    )
    return config, context, rng.randint(width, max(width, context // 2))


@pytest.mark.parametrize("first", range(0, 400, 40))
def test_in_a_pool_of_the_sure_blocks_nobody_ever_waits_for_a_page(first: int) -> None:
    for seed in range(first, first + 40):
        rng = random.Random(seed)
        config, context, output = drawn(rng)
        blocks = sure_blocks(config, Wish(config.max_batch_size, context))
        loop = played(with_pool(config, blocks), context, output, rng.random() < 0.5, rng)
        assert len(loop.finished) == config.max_batch_size, seed
        assert not loop.waited, seed
        assert not loop.retracted, seed


def test_a_first_chunk_that_others_cut_short_leaves_a_snapshot_to_start_from() -> None:
    config = settings(
        state(16, 1),
        prefix_granularity=16,
        max_scheduled_tokens=120,
        max_batch_size=4,
        overlap_schedule_depth=1,
        disable_prefix_cache=True,
    )
    blocks = sure_blocks(config, Wish(4, 82))
    assert demand(config, 82) == 4 * 3
    assert blocks == 4 * (3 + 1)
    # Prompts of 69 tokens: the fourth one's first chunk is what two others leave of 120.
    assert played(with_pool(config, 12), 82, 13).waited == {"r3"}
    assert not played(with_pool(config, blocks), 82, 13).waited


@pytest.mark.parametrize("seed", range(50))
def test_the_sure_blocks_are_never_fewer_than_the_demand_and_grow_with_the_batch(seed: int) -> None:
    config, context, _ = drawn(random.Random(seed))
    sure = [sure_blocks(replace(config, max_batch_size=n), Wish(n, context)) for n in (1, 2, 5)]
    assert sure == sorted(sure)
    assert all(
        count >= demand(replace(config, max_batch_size=n), context)
        for n, count in zip((1, 2, 5), sure, strict=True)
    )


# A window of 24 tokens has 4 + 1 pages of 4 tokens alive, and its LCM block takes 20.
ALONE = settings(
    full(4, 20),
    sliding(4, 24, 20),
    state(8, 2),
    prefix_granularity=8,
    max_scheduled_tokens=9,
    max_batch_size=1,
    enable_mixed_prefill_decode=True,
)


def test_a_window_that_lies_across_two_blocks_keeps_a_lone_request_from_its_end() -> None:
    blocks = demand(ALONE, 277)
    assert blocks == 4 + 1 + 2
    stuck = played(with_pool(ALONE, blocks), 277, 93)
    assert stuck.stalled  # it holds 2 blocks of the window's group, which need not be more than 1
    assert len(played(with_pool(ALONE, blocks + 1), 277, 93).finished) == 1


def deployment(config: SchedulerConfig, blocks: int) -> Deployment:
    names = ("prefix_granularity", "max_scheduled_tokens", "max_batch_size", "enable_mixed_prefill_decode")
    tables = [
        {
            "group_id": group.group_id,
            "block_granularity": group.block_granularity,
            "family": group.family.name,
            "retention": group.retention.name,
            "sliding_window_tokens": group.sliding_window_tokens,
            "cache_blocks_per_lcm_block": group.cache_blocks_per_lcm_block,
        }
        for group in config.cache_groups
    ]
    return load_deployment(
        None,
        {name: getattr(config, name) for name in names} | {"pool_blocks": blocks, "cache_groups": tables},
    )


def test_of_a_lone_request_the_answer_says_from_which_pool_on_it_surely_finishes() -> None:
    answer = size_pool(deployment(ALONE, 7), 277)
    assert answer.verdict == "fits"
    assert answer.pool is not None
    assert answer.pool.requests_without_wait == 0
    sure = answer.blocks_without_wait
    assert sure == sure_blocks(ALONE, Wish(1, 277))
    assert sure is not None
    assert len(played(with_pool(ALONE, sure), 277, 93).finished) == 1
    enough = size_pool(deployment(ALONE, sure), 277)
    assert enough.pool is not None
    assert enough.pool.requests_without_wait == 1


# A round of 16 tokens keeps all of them for a prefill that waits, as snapshots are 16 tokens apart.
STARVED = settings(
    full(16, 10),
    sliding(16, 5, 15),
    state(16, 2, "state_0"),
    state(16, 3, "state_1"),
    prefix_granularity=16,
    max_scheduled_tokens=16,
    max_batch_size=5,
    enable_mixed_prefill_decode=True,
)


def test_mixed_rounds_without_budget_for_a_decode_step_may_wait_for_ever() -> None:
    blocks = demand(STARVED, 120)
    stuck = played(with_pool(STARVED, blocks), 120, 16)
    assert stuck.stalled
    assert not stuck.finished  # four are ready to decode, and the fifth one's prefill waits for their pages
    (caution,) = size_pool(deployment(STARVED, blocks), 120).cautions
    assert (caution.prefill_tokens, caution.decode_input_tokens) == (16, 1)
    assert caution.flags == {"--max-scheduled-tokens": 16 + 5 * 1}
    for budget in (16 + 1, 16 + 5):
        enough = replace(STARVED, max_scheduled_tokens=budget)
        assert len(played(with_pool(enough, blocks), 120, 16).finished) == 5
        assert size_pool(deployment(enough, blocks), 120).cautions == ()


@pytest.mark.parametrize(
    "changes",
    [{"enable_mixed_prefill_decode": False}, {"max_batch_size": 1}, {"max_scheduled_tokens": 17}],
)
def test_there_is_no_caution_where_decodes_get_their_turn(changes: dict[str, Any]) -> None:
    assert size_pool(deployment(replace(STARVED, **changes), 19), 120).cautions == ()


def test_undeclared_budgets_may_be_retracted_in_the_pool_of_their_demand() -> None:
    config = settings(
        sliding(4, 8, 1, "near"),
        sliding(4, 8, 1, "far"),
        prefix_granularity=8,
        max_scheduled_tokens=14,
        max_batch_size=6,
    )
    pool = with_pool(config, demand(config, 46))
    assert played(pool, 46, 20, declared=False).retracted
    assert not played(pool, 46, 20).retracted
    sure = with_pool(config, sure_blocks(config, Wish(6, 46)))
    assert not played(sure, 46, 20, declared=False).retracted
