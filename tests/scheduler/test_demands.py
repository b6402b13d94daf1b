"""What each kind of group asks for, and what it holds beyond the chunk (engine.md §5, §8)."""

import pytest

from kvplan.scheduler import CacheGroupConfig
from kvplan.scheduler.cache.groups import cache_groups
from kvplan.scheduler.demands import (
    Demand,
    Reserve,
    covers_generation,
    decode_step,
    headroom_tokens,
    local_chunk,
    remote_landing,
)
from tests.support.groups import cache_group, config, full, replay, sliding, state

FULL, SLIDING, STATE, REPLAY = full(2), sliding(6, 2), state(4), replay(8, 2)


@pytest.mark.parametrize(
    ("demand", "available", "pages"),
    [
        pytest.param(Demand(5), 0, 2, id="five tokens take two pages of four"),
        pytest.param(Demand(4), 0, 1, id="four take one"),
        pytest.param(Demand(5), 5, 0, id="room at the tail is enough"),
        pytest.param(Demand(6), 5, 1, id="one token beyond it"),
        pytest.param(Demand(5, 4), 5, 1, id="a reserve counts like tokens"),
        pytest.param(Demand(20, 0, 3), 0, 2, id="a sparse suffix has the pages from its first block on"),
        pytest.param(Demand(20, 4, 3), 0, 3, id="and one for its reserve"),
        pytest.param(Demand(17, 4, 4), 0, 2, id="a reserve that ends inside a page"),
    ],
)
def test_pages_of_a_demand(demand: Demand, available: int, pages: int) -> None:
    assert demand.pages(4, available) == pages


@pytest.mark.parametrize(
    ("group", "reserve", "tokens"),
    [
        pytest.param(FULL, Reserve(3, 0, 0), 3, id="full: the decode slot"),
        pytest.param(FULL, Reserve(3, 50, 0), 50, id="full: raised to the headroom"),
        pytest.param(FULL, Reserve(3, 2, 0), 3, id="full: never below the decode slot"),
        pytest.param(SLIDING, Reserve(3, 50, 3), 3, id="sliding: the decode slot and no headroom"),
        pytest.param(SLIDING, Reserve(0, 50, 0), 0, id="sliding: nothing before the prompt is complete"),
        pytest.param(STATE, Reserve(3, 50, 0), 0, id="state: nothing while no growth is reserved"),
        pytest.param(STATE, Reserve(3, 50, 3), 4, id="state: at least a whole block of growth"),
        pytest.param(STATE, Reserve(5, 50, 5), 5, id="state: the decode width where it is larger"),
    ],
)
def test_reserve_by_retention(group: CacheGroupConfig, reserve: Reserve, tokens: int) -> None:
    assert reserve.of(cache_group(group)) == tokens


NOTHING = Reserve(0, 0, 0)


@pytest.mark.parametrize(
    ("group", "start", "tokens", "replayed", "demand"),
    [
        pytest.param(FULL, 16, 20, 0, Demand(20), id="full: dense"),
        pytest.param(SLIDING, 16, 20, 0, Demand(20), id="sliding: dense"),
        pytest.param(STATE, 0, 20, 0, Demand(20, 0, 3), id="state: from the checkpoint at 16 on"),
        pytest.param(STATE, 0, 16, 0, Demand(16, 0, 3), id="state: an aligned end is the checkpoint"),
        pytest.param(STATE, 16, 3, 0, Demand(19, 0, 4), id="state: no boundary in the chunk, only the end"),
        pytest.param(STATE, 16, 9, 0, Demand(25, 0, 5), id="state: the latest boundary only"),
        pytest.param(REPLAY, 16, 4, 8, Demand(20, 0, 4), id="replayable: from the window before a hit on"),
        pytest.param(REPLAY, 16, 4, 0, Demand(4), id="replayable: dense without a hit"),
        pytest.param(SLIDING, 16, 4, 8, Demand(4), id="sliding: a replay is none of its business"),
    ],
)
def test_local_chunk(group: CacheGroupConfig, start: int, tokens: int, replayed: int, demand: Demand) -> None:
    assert local_chunk([cache_group(group, 8)], start, tokens, 8, NOTHING, replayed) == [demand]


@pytest.mark.parametrize(
    ("group", "hit", "demand"),
    [
        pytest.param(FULL, 8, Demand(12), id="full: what the hit leaves"),
        pytest.param(STATE, 8, Demand(20, 0, 4), id="state: the block of the last token"),
        pytest.param(SLIDING, 0, Demand(20, 0, 7), id="sliding: from the window of the next token on"),
        pytest.param(SLIDING, 16, Demand(20, 0, 8), id="sliding: not below the hit"),
        pytest.param(REPLAY, 0, Demand(20, 0, 6), id="replayable: lands like any sliding group"),
    ],
)
def test_remote_landing_of_20_tokens(group: CacheGroupConfig, hit: int, demand: Demand) -> None:
    assert remote_landing([cache_group(group, 8)], hit, 20, NOTHING) == [demand]


def test_a_short_prompt_lands_from_its_start_in_a_sliding_group() -> None:
    assert remote_landing([cache_group(sliding(40, 2), 8)], 0, 20, NOTHING) == [Demand(20, 0, 0)]


def test_a_decode_step_grows_every_group_alike_without_reserve() -> None:
    groups = cache_groups(config(full(), sliding(4), state()))
    assert decode_step(groups, 3) == [Demand(3, 0, -1)] * 3


@pytest.mark.parametrize(
    ("remaining", "retractions", "tokens"),
    [
        (100, 0, 100),
        (4_096, 0, 4_096),
        (10_000, 0, 4_096),
        (10_000, 1, 8_192),
        (10_000, 2, 10_000),
        (0, 5, 0),
    ],
)
def test_headroom_grows_by_a_window_of_4096_with_every_retraction(
    remaining: int, retractions: int, tokens: int
) -> None:
    assert headroom_tokens(remaining, retractions) == tokens


@pytest.mark.parametrize(
    ("max_new", "retractions", "generated_at_admission", "covered"),
    [
        pytest.param(0, 9, 0, False, id="an undeclared budget is never covered"),
        pytest.param(4_096, 0, 0, True, id="one window covers it"),
        pytest.param(4_097, 0, 0, False, id="one token more than a window"),
        pytest.param(4_097, 1, 0, True, id="a retraction later two windows do"),
        pytest.param(5_000, 0, 904, True, id="what was generated before the admission is not open any more"),
        pytest.param(5_000, 0, 903, False, id="one token less of it"),
    ],
)
def test_covered_generation(
    max_new: int, retractions: int, generated_at_admission: int, covered: bool
) -> None:
    assert covers_generation(max_new, retractions, generated_at_admission) is covered
