"""Clearing, waiting hashes, pool counters and cache events, as an engine asks for them (api.md)."""

import pytest

from kvplan.scheduler import Cache, KVEvent, Scheduler
from tests.support.engine import Engine, has, hits, tokens
from tests.support.groups import config, full, sliding
from tests.support.hashing import block_hashes


def cached() -> Engine:
    """Two pages of a finished prompt are cached on the device and, acked, on the host."""
    engine = Engine(config(host=8))
    engine.run("a", tokens(9, shared=9))
    for plan in engine.steps(2):
        engine.ack(plan)
    return engine


def test_clear_l1_drops_the_device_s_entries_and_leaves_the_host_s() -> None:
    engine = cached()
    assert engine.scheduler.empty_lcm_blocks() == 14
    assert engine.scheduler.clear_l1_cache()
    assert engine.scheduler.empty_lcm_blocks() == 16
    engine.submit("b", tokens(9, seed=1, shared=9))
    plan = engine.step()
    assert has(plan, Cache.LoadBackOp)


def test_clear_cache_drops_the_host_s_entries_too() -> None:
    engine = cached()
    assert engine.scheduler.clear_cache()
    engine.submit("b", tokens(9, seed=1, shared=9))
    plan = engine.step()
    assert hits(plan) == {"b": 0}


def test_clearing_is_refused_while_a_live_request_holds_a_cached_page() -> None:
    engine = cached()
    engine.submit("b", tokens(9, seed=1, shared=9))
    engine.step()
    for clear in (
        engine.scheduler.can_clear_cache,
        engine.scheduler.clear_cache,
        engine.scheduler.clear_l1_cache,
    ):
        assert not clear()
    engine.abort("b")
    assert engine.scheduler.can_clear_cache()
    assert engine.scheduler.empty_lcm_blocks() == 14, "what was refused changed nothing"


def test_a_live_request_without_cached_pages_is_no_hindrance() -> None:
    engine = Engine(config())
    engine.submit("a", 3)
    engine.step()
    assert engine.scheduler.clear_cache()


def test_freed_pages_go_back_in_the_order_their_entries_came() -> None:
    engine = Engine(config(pages=4))
    engine.run("a", tokens(9, shared=9))  # pages 1 and 2 are published, 3 was free again before
    engine.scheduler.clear_cache()
    engine.submit("b", 15)
    assert engine.step().pages_to_zero == {"full": [4, 3, 1, 2]}


def test_pool_counters_by_group() -> None:
    """Three blocks: two pages of the full group in one of two, the rest empty."""
    engine = Engine(config(full(4, 2), sliding(8), pages=5))
    scheduler = engine.scheduler
    assert [scheduler.cache_group_available_pages(group) for group in ("full", "sliding")] == [10, 5]
    engine.submit("a", 9)
    engine.step()
    assert scheduler.empty_lcm_blocks() == 0
    assert [scheduler.cache_group_available_pages(group) for group in ("full", "sliding")] == [1, 0]
    assert scheduler.active_lcm_blocks() == 5
    assert scheduler.cache_group_total_pages("full") == 1
    with pytest.raises(ValueError, match="'other' is unknown; there are 'full', 'sliding'"):
        scheduler.cache_group_available_pages("other")


def test_available_blocks_count_those_with_nothing_but_cache() -> None:
    engine = cached()
    scheduler = engine.scheduler
    assert (scheduler.available_lcm_blocks(), scheduler.empty_lcm_blocks()) == (16, 14)
    assert scheduler.active_lcm_blocks() == 0


def hashes_of(engine: Engine, *prompts: list[int]) -> list[str]:
    return [one for prompt in prompts for one in engine.scheduler.prefix_hashes_for_tokens(prompt)]


def test_waiting_hashes_are_those_of_as_many_prompts_as_there_are_free_slots() -> None:
    engine = Engine(config(max_batch_size=2))
    prompts = [tokens(9, seed=seed) for seed in range(3)]
    for seed, prompt in enumerate(prompts):
        engine.submit(f"r{seed}", prompt, max_cached_prefix_tokens=0)
    assert engine.scheduler.waiting_prefix_hashes() == hashes_of(engine, *prompts[:2])


def test_no_waiting_hash_comes_twice_but_its_request_counts() -> None:
    engine = Engine(config(max_batch_size=2))
    for rid in "abc":
        engine.submit(rid, tokens(9, seed=ord(rid), shared=8))
    assert engine.scheduler.waiting_prefix_hashes() == hashes_of(engine, tokens(9, shared=8))


def test_nothing_waits_to_be_fetched_beside_a_prefilling_request_or_without_a_free_slot() -> None:
    prefilling = Engine(config(chunk=4))
    prefilling.submit("a", 9)
    prefilling.submit("b", 9)
    prefilling.step()
    assert prefilling.scheduler.waiting_prefix_hashes() == []
    full_house = Engine(config(max_batch_size=1))
    full_house.submit("a", 5)
    full_house.submit("b", 9)
    full_house.step()
    assert full_house.scheduler.waiting_prefix_hashes() == []


def test_nothing_waits_to_be_fetched_without_a_block() -> None:
    engine = Engine(config(pages=3))
    engine.submit("a", 11)
    engine.step()
    engine.submit("b", 9)
    assert engine.scheduler.waiting_prefix_hashes() == []
    engine.abort("a")
    assert len(engine.scheduler.waiting_prefix_hashes()) == 2


def test_the_readmission_s_hashes_come_first_and_take_a_slot() -> None:
    engine = Engine(config(pages=4, host=8, max_batch_size=3))
    for rid in "ab":
        engine.submit(rid, tokens(7, seed=ord(rid)))
    for _ in range(3):
        engine.ack(engine.step())
    assert engine.states("a", "b") == ["Retracted", "Decoding"]
    prompts = [tokens(9, seed=seed) for seed in (1, 2)]
    for seed, prompt in enumerate(prompts):
        engine.submit(f"n{seed}", prompt)
    waiting = engine.scheduler.waiting_prefix_hashes()
    assert waiting[0] == hashes_of(engine, tokens(7, seed=ord("a")))[0]
    assert waiting[2:] == hashes_of(engine, prompts[0]), "one of three slots is b's, one the readmission's"


# --- cache events -----------------------------------------------------------------------------------------


def telling(*groups: object, **fields: object) -> Engine:
    return Engine(config(*groups, enable_kv_cache_events=True, **fields))  # type: ignore[arg-type]


def test_a_prefix_page_is_stored_once_it_is_cached_with_parent_tokens_and_size() -> None:
    engine = telling()
    prompt = tokens(9, shared=9)
    engine.submit("a", prompt)
    engine.step()
    assert engine.scheduler.drain_kv_events() == []
    engine.step()
    first, second = block_hashes(prompt, 4)
    assert engine.scheduler.drain_kv_events() == [
        KVEvent.BlockStored([first], None, prompt[:4], 4),
        KVEvent.BlockStored([second], first, prompt[4:8], 4),
    ]
    assert engine.scheduler.drain_kv_events() == []


def test_removals_come_first_deepest_first() -> None:
    engine = telling(pages=4)
    prompt = tokens(9, shared=9)
    engine.run("a", prompt)
    engine.scheduler.drain_kv_events()
    engine.run("b", tokens(12, seed=7))
    first, second = block_hashes(prompt, 4)
    events = engine.scheduler.drain_kv_events()
    assert events[:2] == [KVEvent.BlockRemoved([second]), KVEvent.BlockRemoved([first])]
    assert {type(event) for event in events[2:]} == {KVEvent.BlockStored}


def test_what_came_and_went_between_two_drains_is_not_told() -> None:
    engine = telling()
    engine.run("a", tokens(9, shared=9))
    assert engine.scheduler.clear_cache()
    assert engine.scheduler.drain_kv_events() == []


def test_a_page_is_told_only_while_every_group_has_all_of_it() -> None:
    """The window keeps one page: of three prefix pages only the last is in both groups."""
    engine = telling(full(2), sliding(3), pages=64)
    prompt = tokens(13, shared=13)
    engine.run("a", prompt)
    hashes = block_hashes(prompt, 4)
    assert engine.scheduler.drain_kv_events() == [
        KVEvent.BlockStored([hashes[2]], hashes[1], prompt[8:12], 4)
    ]


def test_without_the_setting_nothing_is_told() -> None:
    engine = Engine(config())
    engine.run("a", tokens(9, shared=9))
    assert engine.scheduler.drain_kv_events() == []


def test_a_page_that_only_a_retraction_publishes_is_told() -> None:
    """y finds no room; the budget is spent on x's step, so v's own next step, which would have published the
    second page of its prompt, is not tried before v is retracted."""
    engine = telling(pages=6, host=8, chunk=4, decode_input_tokens=3, enable_mixed_prefill_decode=False)
    engine.submit("x", 4, max_new=8)
    engine.step()
    prompt = tokens(8, shared=8)
    engine.submit("v", prompt)
    for _ in range(2):
        engine.ack(engine.step())
    engine.submit("y", 4)
    engine.scheduler.drain_kv_events()
    engine.step()
    assert [one.request_id for one in engine.scheduler.take_retractions()] == ["v"]
    first, second = block_hashes(prompt, 4)
    assert KVEvent.BlockStored([second], first, prompt[4:], 4) in engine.scheduler.drain_kv_events()


def test_pages_that_storage_filled_are_told_when_the_load_is_done() -> None:
    engine = telling(host=8, enable_l3_storage=True)
    prompt = tokens(9, shared=9)
    hashes = engine.scheduler.prefix_hashes_for_tokens(prompt)
    engine.scheduler.register_storage_keys(*engine.scheduler.expand_prefix_keys(hashes))
    engine.submit("a", prompt)
    plan = engine.step()
    assert hits(plan) == {"a": 8}
    assert engine.scheduler.drain_kv_events() == []
    engine.ack(plan)
    told = [event.block_hashes[0] for event in engine.scheduler.drain_kv_events()]
    assert told == block_hashes(prompt, 4)


def test_two_schedulers_share_nothing() -> None:
    one, other = Scheduler(config()), Scheduler(config())
    engine = Engine(config())
    engine.scheduler = one
    engine.run("a", tokens(9, shared=9))
    assert other.empty_lcm_blocks() == 16
