"""The storage tier: known keys, probing, filling host pages, shrinking, failing (engine.md §11, api.md)."""

import pytest

from kvplan.scheduler import Cache, ForwardEvent
from tests.support.engine import Engine, has, hits, inputs, load_back, page_table, tokens
from tests.support.groups import config, full, replay, sliding


def storage(*groups: object, known: list[int] | None = None, **fields: object) -> Engine:
    """An engine that knows the pages of a prompt to be stored."""
    settings = {"host": 8, "pages": 16} | fields
    engine = Engine(config(*groups, enable_l3_storage=True, **settings))  # type: ignore[arg-type]
    if known is not None:
        know(engine, known)
    return engine


def know(engine: Engine, prompt: list[int]) -> None:
    scheduler = engine.scheduler
    hashes = scheduler.prefix_hashes_for_tokens(prompt)
    scheduler.register_storage_keys(*scheduler.expand_prefix_keys(hashes))


PROMPT = tokens(13, shared=13)


def test_stored_pages_are_fetched_through_fresh_host_pages() -> None:
    engine = storage(known=PROMPT)
    engine.submit("a", PROMPT)
    plan = engine.step()
    op = load_back(plan)
    assert hits(plan) == {"a": 12}
    assert (op.src_pages, op.dst_pages) == ([[1, 2, 3]], [page_table(plan, "a")[:3]])
    assert op.prefetch_from_storage == [[True] * 3]
    assert op.content_hashes == [engine.scheduler.prefix_hashes_for_tokens(PROMPT)]
    assert op.page_offsets == [[0, 0, 0]]


def test_offsets_tell_the_group_s_pages_inside_a_prefix_page() -> None:
    engine = storage(full(2), known=PROMPT, host=16)
    engine.submit("a", PROMPT)
    op = load_back(engine.step())
    assert op.page_offsets == [[0, 1, 0, 1, 0, 1]]


def test_what_storage_has_to_fill_can_be_hit_only_once_it_is_there() -> None:
    engine = storage(known=PROMPT, pages=32)
    engine.submit("a", PROMPT)
    plan = engine.step()
    engine.submit("b", tokens(13, seed=1, shared=12))
    second = engine.step()
    assert has(second, Cache.LoadBackOp), "fetched a second time"
    engine.ack(plan)
    engine.submit("c", tokens(13, seed=2, shared=12))
    third = engine.step()
    assert hits(third) == {"c": 12}
    assert not has(third, Cache.LoadBackOp)


def test_a_failed_load_publishes_nothing_and_the_request_starts_over() -> None:
    engine = storage(known=PROMPT)
    engine.submit("a", PROMPT)
    plan = engine.plan()
    engine.tell(ForwardEvent.Retract("a"))
    engine.ack(plan, success=False)
    assert engine.scheduler.available_lcm_blocks() == engine.scheduler.empty_lcm_blocks() == 16
    again = engine.step()
    assert load_back(again).prefetch_from_storage == [[True] * 3], "the keys are still known"


def test_a_filled_page_is_on_the_host_afterwards() -> None:
    engine = storage(known=PROMPT)
    engine.submit("a", PROMPT)
    engine.ack(engine.step())
    engine.abort("a")
    assert engine.scheduler.clear_l1_cache()
    engine.submit("b", tokens(13, seed=1, shared=12))
    op = load_back(engine.step())
    assert (op.src_pages, op.prefetch_from_storage) == ([[1, 2, 3]], [[False] * 3])


def beside_a_store(*groups: object, host: int) -> Engine:
    """Two prefix pages of another prompt are on their way to the host when PROMPT is known to storage."""
    engine = storage(*groups, host=host, pages=32)
    engine.submit("x", tokens(9, seed=9))
    engine.steps(2)
    know(engine, PROMPT)
    return engine


def test_a_hit_shrinks_to_what_the_host_has_room_for() -> None:
    """Three keys are known, one of three host blocks is free: the chunk starts over with a hit of 4, and goes
    to the boundary of 12 that the first probe had found."""
    engine = beside_a_store(host=3)
    engine.submit("a", PROMPT)
    plan = engine.step()
    assert hits(plan) == {"a": 4}
    assert inputs(plan)["a"] == 8
    op = load_back(plan)
    assert [len(row) for row in op.dst_pages] == [1]
    assert len(plan.pages_to_zero["full"]) == 2, "of the attempt that held; not those of the one before"


def test_a_hit_shrinks_by_whole_prefix_pages_and_lets_go_of_what_it_had_taken() -> None:
    """Two group pages a prefix page and one host block free: not one prefix page can be filled."""
    engine = beside_a_store(full(2), host=5)
    engine.submit("a", PROMPT)
    plan = engine.step()
    assert hits(plan) == {"a": 0}
    assert not has(plan, Cache.LoadBackOp)
    host = engine.scheduler._cache.host
    assert host is not None
    assert len(host.pool.empties) == 1


def test_keys_known_are_at_most_what_the_host_can_hold() -> None:
    """Two host blocks: of a prompt's three pages the first two are kept."""
    engine = storage(known=PROMPT, host=2)
    engine.submit("a", PROMPT)
    assert hits(engine.step()) == {"a": 8}


def test_the_bound_counts_the_packing_of_every_group() -> None:
    """2 host blocks × (3 + 1) pages: all six keys of three prefix pages are known."""
    engine = storage(full(4, 3), sliding(8), known=PROMPT, host=2, pages=32)
    known = engine.scheduler._cache.host
    assert known is not None
    assert known.known is not None
    assert len(known.known) == 6
    assert known.known.bound == 8


def test_keys_are_kept_by_hash_then_offset_then_group() -> None:
    """Bound 3 of 8 keys of two prefix pages: both groups' first offset of the first, then its second."""
    engine = storage(full(2), full(2, group_id="b"), host=1, pages=32)
    scheduler = engine.scheduler
    hashes = scheduler.prefix_hashes_for_tokens(PROMPT)[:2]
    groups, names, offsets = scheduler.expand_prefix_keys(hashes)
    scheduler.register_storage_keys(groups[::-1], names[::-1], offsets[::-1])
    host = scheduler._cache.host
    assert host is not None
    assert host.known is not None
    second = bytes.fromhex(hashes[1])
    assert list(host.known._keys) == [(0, second + bytes(4)), (1, second + bytes(4))]


def test_expanding_goes_group_by_group_hash_by_hash_offset_by_offset() -> None:
    engine = storage(full(4), replay(4, 2), chunk=64)
    hashes = engine.scheduler.prefix_hashes_for_tokens(PROMPT)[:2]
    assert engine.scheduler.expand_prefix_keys(hashes) == (
        [0, 0, 1, 1, 1, 1],
        [hashes[0], hashes[1], hashes[0], hashes[0], hashes[1], hashes[1]],
        [0, 0, 0, 1, 0, 1],
    )


def test_unregistered_keys_are_forgotten() -> None:
    engine = storage(known=PROMPT)
    scheduler = engine.scheduler
    hashes = scheduler.prefix_hashes_for_tokens(PROMPT)
    scheduler.unregister_storage_keys(*scheduler.expand_prefix_keys(hashes[1:]))
    scheduler.unregister_storage_keys(*scheduler.expand_prefix_keys(["ab" * 32]))
    engine.submit("a", PROMPT)
    assert hits(engine.step()) == {"a": 4}


@pytest.mark.parametrize("call", ["register_storage_keys", "unregister_storage_keys"])
def test_storage_keys_of_unequal_lists_or_unknown_groups_are_refused(call: str) -> None:
    scheduler = storage().scheduler
    with pytest.raises(ValueError, match="1, 2 and 1 entries"):
        getattr(scheduler, call)([0], ["ab" * 32, "cd" * 32], [0])
    with pytest.raises(ValueError, match="groups has 1; a group is an index from 0 to 0"):
        getattr(scheduler, call)([1], ["ab" * 32], [0])


def test_without_storage_registering_does_nothing() -> None:
    engine = Engine(config(host=8))
    know(engine, PROMPT)
    engine.submit("a", PROMPT)
    assert hits(engine.step()) == {"a": 0}


def test_clearing_forgets_the_keys_that_are_known() -> None:
    engine = storage(known=PROMPT)
    assert engine.scheduler.clear_l1_cache()
    engine.submit("a", PROMPT)
    assert hits(engine.step()) == {"a": 0}


def test_a_write_back_s_ack_makes_its_key_known_and_pushes_the_oldest_out() -> None:
    """Bound 2: of three pages stored one after the other the last two are known."""
    engine = storage(host=2)
    for seed in (1, 2, 3):
        engine.run(f"r{seed}", tokens(5, seed=seed))
        for plan in engine.steps(2):
            engine.ack(plan)
    host = engine.scheduler._cache.host
    assert host is not None
    assert host.known is not None
    digests = [bytes.fromhex(engine.scheduler.prefix_hashes_for_tokens(tokens(5, seed=s))[0]) for s in (2, 3)]
    assert list(host.known._keys) == [(0, digest) for digest in digests]


def test_a_hit_shrinks_to_the_lowest_place_without_room_at_once() -> None:
    """Four host blocks are free for two groups' three pages: the first takes three, the second one, so its next
    place is where the hit ends: at one page, though two would have found room in both."""
    engine = beside_a_store(full(group_id="a"), full(group_id="b"), host=8)
    engine.submit("r", PROMPT)
    plan = engine.step()
    assert hits(plan) == {"r": 4}
    assert sorted(len(row) for row in load_back(plan).dst_pages) == [2]
