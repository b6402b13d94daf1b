"""What a recipe recommends holds: a pool of the stated demand serves the stated requests.

The conditions, as the report states them: at least two requests, submitted together, which declare what they
generate; and a round has budget for a prefix page and a decode step. What happens without them, and the pool
in which nobody waits, is in tests/test_sure_pool.py.
"""

import random
from dataclasses import replace
from typing import Any

import pytest

from kvplan.recipes import MemoryPlan, Model, plan_memory
from kvplan.scheduler import CapacityModel
from tests.recipes.engine_loop import EngineLoop
from tests.recipes.small import GIB, attention, model, state


def mixture(rng: random.Random) -> Model:
    """Up to three kinds of layers, in random numbers and order; a state is larger than a page of attention."""
    full = [attention(1, 32)] * rng.randint(0, 3)
    windows = [attention(1, 32, window=rng.choice((5, 24, 40, 100)))] * rng.randint(0, 4)
    recurrent = [state(rng.choice((4, 8)))] * rng.randint(0, 5)
    layers = full + windows + recurrent or [attention()]
    rng.shuffle(layers)
    return model(*layers)


def drawn(rng: random.Random) -> tuple[Model, dict[str, Any]]:
    """A model and how it is served."""
    width = rng.choice((1, 1, 2, 4))
    page = rng.choice((8, 16))
    prefix = page * rng.choice((1, 2))
    requests = rng.randint(2, 6)
    least = prefix + width
    return mixture(rng), {
        "page_tokens": page,
        "prefix_tokens": prefix,
        "max_num_seqs": requests,
        "max_context_len": rng.randint(2 * width + 1, 300),
        "max_scheduled_tokens": rng.choice((least, prefix + requests * width, rng.randint(least, 150))),
        "width": width,
        "overlap": rng.randint(0, 1),
        "padding_limit": 0.99,
    }


def recommended(mixed: Model, options: dict[str, Any]) -> MemoryPlan:
    """A plan whose pool is exactly the demand of its batch and context."""
    sized = plan_memory(mixed, **options)
    assert sized.demand is not None
    blocks = sized.demand.needed_blocks
    return plan_memory(mixed, cache_gib=(blocks + 1) * sized.stage.block_bytes / GIB, **options)


def played(seed: int) -> tuple[MemoryPlan, EngineLoop]:
    rng = random.Random(seed)
    plan = recommended(*drawn(rng))
    assert plan.demand is not None
    assert plan.usable_blocks == plan.demand.needed_blocks
    config = plan.config
    config.enable_mixed_prefill_decode = rng.random() < 0.5
    context, width = plan.demand.max_context_len, config.decode_input_tokens
    output = rng.randint(width, max(context // 2, width))
    loop = EngineLoop(
        config,
        requests=plan.demand.requests,
        prompt=context - output,
        output=output,
        declared=True,
        rng=rng,
    )
    return plan, loop


@pytest.mark.parametrize("first", range(0, 400, 20))
def test_all_requests_finish_in_the_recommended_pool(first: int) -> None:
    for seed in range(first, first + 20):
        plan, loop = played(seed)
        assert plan.demand is not None
        assert not loop.stalled, seed
        assert len(loop.finished) == plan.demand.requests, seed
        assert not loop.retracted, seed


@pytest.mark.parametrize("seed", range(60))
def test_one_block_fewer_does_not_meet_the_demand(seed: int) -> None:
    mixed, options = drawn(random.Random(seed))
    plan = recommended(mixed, options)
    demand, config = plan.demand, plan.config
    assert demand is not None
    assert demand.fits
    assert demand.needed_blocks > 1
    capacity = CapacityModel(config)
    pages = capacity.concurrent_group_pages(demand.requests * demand.max_context_len, demand.max_context_len)
    assert capacity.lcm_blocks_needed_for(pages) == demand.needed_blocks
    fewer = demand.needed_blocks - 1
    short = plan_memory(plan.model, cache_gib=(fewer + 1) * plan.stage.block_bytes / GIB, **options)
    assert short.usable_blocks == fewer
    assert short.demand is not None
    assert short.demand.fits is False


@pytest.mark.parametrize("seed", range(30))
def test_a_request_of_that_context_alone_is_always_admitted(seed: int) -> None:
    plan = recommended(*drawn(random.Random(seed)))
    longest, demand = plan.longest_request(), plan.demand
    assert longest is not None
    assert demand is not None
    assert longest >= demand.max_context_len


@pytest.mark.parametrize("seed", range(30))
def test_counts_of_requests_and_tokens_are_the_last_that_fit(seed: int) -> None:
    plan = recommended(*drawn(random.Random(seed)))
    usable, demand = plan.usable_blocks, plan.demand
    assert usable is not None
    assert demand is not None
    context = max(demand.max_context_len // 2, 1)

    def need(requests: int, total: int, length: int) -> int:
        capacity = CapacityModel(replace(plan.config, max_batch_size=requests))
        return capacity.lcm_blocks_needed_for(capacity.concurrent_group_pages(total, length))

    requests = plan.requests_at_once(context)
    assert requests is not None
    assert need(requests + 1, (requests + 1) * context, context) > usable
    assert requests == 1 or need(requests, requests * context, context) <= usable
    total = plan.max_total_tokens()
    assert total is not None
    assert need(demand.requests, total, demand.max_context_len) <= usable
