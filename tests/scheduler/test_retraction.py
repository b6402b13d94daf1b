"""Retract and grant, who is a victim, and how a victim comes back (engine.md §9, §10; design note §2, §4).

Pages are of 4 tokens, one a block.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from kvplan.scheduler import Cache, ExecutionPlan, ForwardEvent
from kvplan.scheduler.rounds.phases import next_readmission
from kvplan.scheduler.rounds.retraction import Retraction
from tests.support.engine import Engine, has, hits, inputs, load_back, page_table, tokens, write_back
from tests.support.groups import config, full, sliding


def retracted(engine: Engine) -> list[tuple[str, str, str | None, bool]]:
    return [
        (one.request_id, one.state, one.for_request, one.has_snapshot)
        for one in engine.scheduler.take_retractions()
    ]


def two_decodes(pages: int, mixed: bool = True, **fields: Any) -> Engine:
    """a and b decode, 7 tokens and a decode slot each: two pages each, both full after the next step."""
    engine = Engine(config(pages=pages, enable_mixed_prefill_decode=mixed, **fields))
    for rid in "ab":
        engine.submit(rid, 7)
    for _ in range(2):
        engine.ack(engine.step())
    return engine


def test_a_decode_that_finds_no_page_retracts_and_is_granted_in_the_same_round() -> None:
    engine = two_decodes(4)
    plan = engine.step()
    assert retracted(engine) == [("a", "Decoding", "a", False)]
    assert inputs(plan) == {}, "the victim was the blocker, and no other prompt waits"
    assert inputs(engine.step()) == {"b": 1}


def test_the_blocker_is_granted_what_a_victim_gives_up() -> None:
    """Neither has room for its next token; b holds more blocks, so a, who asked first, gets one of them."""
    engine = Engine(config(pages=5))
    engine.submit("a", 7)
    engine.submit("b", 11)
    engine.steps(2)
    plan = engine.step()
    assert retracted(engine) == [("b", "Decoding", "a", False)]
    assert inputs(plan) == {"a": 1}


@pytest.mark.parametrize(("mixed", "granted"), [(True, True), (False, False)])
def test_a_prefill_grant_joins_a_decode_batch_only_in_mixed_mode(mixed: bool, granted: bool) -> None:
    """b's second chunk finds no page beside a's decode; the victim is b itself, and c, who waits, is granted."""
    engine = Engine(config(pages=6, chunk=8, enable_mixed_prefill_decode=mixed))
    engine.submit("a", 8, max_new=8)
    engine.step()
    engine.submit("b", 12)
    engine.submit("c", 5)
    engine.step()
    plan = engine.step()
    assert [one[:3] for one in retracted(engine)] == [("b", "Prefilling", "b")]
    assert inputs(plan) == ({"c": 5, "a": 1} if granted else {"a": 1})


def test_no_retraction_while_a_prefill_progresses() -> None:
    """a finds no page for its step in round 2, but p's last chunk, all of it reserved, goes on."""
    engine = Engine(config(pages=6, chunk=9))
    engine.submit("a", 7)
    engine.submit("p", 12, max_new=4)
    assert [inputs(plan) for plan in engine.steps(3)] == [{"a": 7, "p": 2}, {"p": 8, "a": 1}, {"p": 2}]
    assert retracted(engine) == []
    engine.step()
    assert retracted(engine) == [("a", "Decoding", "a", False)]


@pytest.mark.parametrize("out", [True, False])
def test_a_victim_whose_result_is_out_is_waited_for(out: bool) -> None:
    engine = Engine(config(pages=4))
    for rid in "ab":
        engine.submit(rid, 7)
    engine.step()
    plan = engine.plan()
    if not out:
        engine.land(plan)
    assert inputs(engine.plan()) == {}
    assert bool(retracted(engine)) is not out


def test_an_incomplete_prefill_is_the_victim_before_any_decode_the_largest_first() -> None:
    engine = Engine(config(pages=8, chunk=12))
    engine.submit("d", 3)
    engine.step()
    engine.submit("p", 26)
    engine.steps(2)
    assert engine.state("p") == "Prefilling"
    engine.steps(3)
    assert [(one[0], one[1]) for one in retracted(engine)][:1] == [("p", "Prefilling")]


def test_the_victim_among_decodes_frees_the_most_blocks() -> None:
    """a holds one block, b two, both full."""
    engine = Engine(config(pages=3))
    engine.submit("a", 3)
    engine.submit("b", 7)
    engine.steps(3)
    assert retracted(engine)[0][0] == "b"


def test_among_decodes_that_free_as_many_blocks_the_one_with_the_fewest_tokens_goes() -> None:
    """a's first page is x's too, so both free two blocks; b has 9 tokens and a 13."""
    engine = Engine(config(pages=7))
    engine.submit("x", tokens(5, seed=5, shared=4), max_new=7)
    engine.steps(2)
    engine.submit("a", tokens(11, seed=1, shared=4))
    engine.submit("b", 7)
    assert inputs(engine.step()) == {"a": 7, "b": 7, "x": 1}
    engine.step()
    assert inputs(engine.step()) == {"x": 1, "a": 1}
    assert retracted(engine) == [("b", "Decoding", "a", False)]


def test_among_equals_the_smallest_id_goes() -> None:
    engine = Engine(config(pages=4))
    engine.submit("b", 7)
    engine.submit("a", 7)
    engine.steps(3)
    assert retracted(engine)[0][0] == "a"


def test_a_block_that_another_request_s_page_is_on_counts_for_nobody() -> None:
    """Two pages a block. a (3 pages) and b (1 page) share a block, so a frees one, c (2 pages, fewer tokens)
    one as well: c goes. With b's page elsewhere a would free two."""
    engine = Engine(config(full(4, 2), pages=3))
    engine.submit("a", 11)
    engine.submit("b", 3)
    engine.submit("c", 7)
    engine.steps(3)
    assert retracted(engine)[0][0] == "c"


def test_a_request_whose_generation_is_prepaid_is_never_a_victim() -> None:
    engine = Engine(config(pages=6))
    engine.submit("a", 8, max_new=4)
    engine.submit("b", 8, max_new=4)
    engine.step()
    engine.submit("c", 4, max_new=1)
    engine.steps(3)
    assert retracted(engine) == []
    assert engine.state("c") == "Submitted"


@pytest.mark.parametrize(("max_new", "victim"), [(4_096, False), (4_097, True)])
def test_a_generation_that_one_window_of_4096_covers_protects_its_request(max_new: int, victim: bool) -> None:
    """65 of 70 blocks of 64 tokens are a's; a step of 4,470 tokens finds no room."""
    engine = Engine(config(full(64), prefix_granularity=64, pages=70))
    engine.submit("a", 10, max_new=max_new)
    engine.steps(2)
    engine.tell(ForwardEvent.UpdateReserveNumTokens("a", 4_470))
    assert inputs(engine.step()) == {}
    assert bool(retracted(engine)) is victim


def test_a_second_admission_secures_two_windows_and_protects_as_much() -> None:
    engine = Engine(config(full(64), prefix_granularity=64, pages=70))
    engine.submit("a", 10, max_new=4_300)
    assert len(page_table(engine.step(), "a")) == 65, "10 + 4,096 tokens"
    engine.step()
    engine.tell(ForwardEvent.UpdateReserveNumTokens("a", 4_470))
    engine.step()
    assert len(retracted(engine)) == 1
    assert len(page_table(engine.step(), "a")) == 68, "12 tokens and the 4,298 that are left"
    engine.step()
    engine.tell(ForwardEvent.UpdateReserveNumTokens("a", 4_470))
    engine.step()
    assert retracted(engine) == []


def test_a_victim_s_generated_tokens_become_part_of_its_prompt() -> None:
    """7 of the prompt and 2 outputs, of which one page was published and is hit."""
    engine = two_decodes(4)
    engine.step()
    engine.finish("b")
    plan = engine.step()
    assert plan.forward[0].prefill_lengths == [9]
    assert hits(plan) == {"a": 4}
    assert inputs(plan) == {"a": 5}


def test_without_a_host_cache_a_victim_queues_like_a_new_prompt() -> None:
    """It was submitted before c, so it is tried before it; c fits beside what a lacks and is not sealed off."""
    engine = two_decodes(4)
    engine.step()
    engine.submit("c", 2)
    assert inputs(engine.step()) == {"c": 2, "b": 1}
    assert engine.state("a") == "Retracted"


# --- with a host cache ------------------------------------------------------------------------------------


def test_a_victim_is_stored_stream_ordered_in_the_plan_that_retracts_it() -> None:
    """8 computed tokens are two pages; the first was streamed when the prompt was done."""
    engine = two_decodes(4, host=8)
    op = write_back(engine.step())
    assert retracted(engine) == [("a", "Decoding", "a", True)]
    assert op.source_pinned == [False]
    assert [len(pages) for pages in op.src_pages] == [1]


def back_from_the_host() -> tuple[Engine, ExecutionPlan]:
    """a was retracted, b took one of its pages and ended; the plan in which a is back."""
    engine = two_decodes(4, host=8)
    engine.ack(engine.step())
    engine.ack(engine.step())
    engine.abort("b")
    retracted(engine)
    return engine, engine.step()


def test_it_comes_back_by_loading_what_the_device_lost() -> None:
    """Page 0 is still on the device, page 1 comes from the host: one token is computed again."""
    _, plan = back_from_the_host()
    op = load_back(plan)
    assert [len(pages) for pages in op.dst_pages] == [1]
    assert page_table(plan, "a")[1] == op.dst_pages[0][0]
    assert op.prefetch_from_storage == [[False]]
    assert (inputs(plan), plan.forward[0].prefill_lengths) == ({"a": 1}, [9])


@pytest.mark.parametrize("in_flight", [True, False])
def test_a_load_back_in_flight_defers_retraction(in_flight: bool) -> None:
    engine, plan = back_from_the_host()
    if not in_flight:
        engine.ack(plan)
    engine.ack(engine.step())
    engine.tell(ForwardEvent.UpdateReserveNumTokens("a", 100))
    assert inputs(engine.step()) == {}
    assert bool(retracted(engine)) is not in_flight


@pytest.mark.parametrize("in_flight", [True, False])
def test_a_pinned_store_in_flight_defers_retraction(in_flight: bool) -> None:
    engine = Engine(config(pages=4, host=8))
    for rid in "ab":
        engine.submit(rid, 7)
    engine.step()
    plan = engine.step()
    assert write_back(plan).source_pinned == [True]
    if not in_flight:
        engine.ack(plan)
    assert inputs(engine.step()) == {}
    assert bool(retracted(engine)) is not in_flight


def test_a_readmission_that_does_not_fit_seals_new_prompts_and_retracts_nobody() -> None:
    """a needs three pages of four, b holds two; a newcomer that one page would do for is not let in."""
    engine = two_decodes(4, host=8)
    engine.ack(engine.step())
    assert retracted(engine)[0][0] == "a"
    engine.submit("new", 2)
    for _ in range(3):
        plan = engine.step()
        engine.ack(plan)
        assert inputs(plan) == {"b": 1}
    assert retracted(engine) == []
    engine.abort("a")
    assert inputs(engine.step()) == {"new": 2, "b": 1}


@pytest.mark.parametrize(
    ("waiting", "first"),
    [
        pytest.param(
            [("old", False, 1), ("new", True, 5)], "new", id="with output before older ones without"
        ),
        pytest.param([("b", True, 5), ("a", True, 4)], "a", id="then the oldest retraction"),
        pytest.param([("b", False, 2), ("a", False, 3)], "b", id="among those without output too"),
    ],
)
def test_readmission_order(waiting: list[tuple[str, bool, int]], first: str) -> None:
    requests = [
        SimpleNamespace(id=rid, resumes_generation=output, retraction_epoch=epoch)
        for rid, output, epoch in waiting
    ]
    roster: Any = SimpleNamespace(readmissions=SimpleNamespace(items=requests))
    chosen = next_readmission(roster)
    assert chosen is not None
    assert chosen.id == first


@pytest.mark.parametrize(
    ("sizes", "victim"),
    [
        pytest.param([("a", 5, False), ("b", 9, False), ("c", 9, False)], "b", id="the first of the largest"),
        pytest.param([("a", 5, False), ("b", 9, True)], "a", id="not an exempt one"),
    ],
)
def test_the_victim_among_incomplete_prefills_has_the_most_tokens(
    sizes: list[tuple[str, int, bool]], victim: str
) -> None:
    requests = [SimpleNamespace(id=rid, tokens=[0] * size, exempt=exempt) for rid, size, exempt in sizes]
    rounds: Any = SimpleNamespace(roster=SimpleNamespace(prefilling=SimpleNamespace(items=requests)))
    chosen = Retraction.choose_victim(rounds)
    assert chosen is not None
    assert chosen.id == victim


@pytest.mark.parametrize(
    ("state", "rounds", "computes"), [("Prefilling", 1, 8), ("PrefillDone", 2, 5), ("Decoding", 3, 2)]
)
def test_a_retract_from_the_runtime_takes_no_snapshot(state: str, rounds: int, computes: int) -> None:
    """Only what its own admissions had published is hit; nothing is stored or loaded for it."""
    engine = Engine(config(chunk=8, host=8))
    engine.submit("a", 12)
    for _ in range(rounds):
        engine.ack(engine.step())
    assert engine.state("a") == state
    engine.tell(ForwardEvent.Retract("a"))
    assert retracted(engine) == [("a", state, None, False)]
    plan = engine.step()
    assert not has(plan, Cache.LoadBackOp)
    assert inputs(plan) == {"a": computes}


def test_a_retracted_request_may_match_what_its_own_results_had_landed_for() -> None:
    """Its own bound of 0 is raised to the tokens whose results had landed."""
    engine = Engine(config(full(), sliding(64), pages=64, host=64, chunk=8, max_batch_size=4))
    engine.submit("a", tokens(12, shared=12), max_cached_prefix_tokens=0)
    engine.steps(3)
    engine.submit("b", tokens(12, shared=12))
    engine.tell(ForwardEvent.Retract("a"))
    plan = engine.step()
    assert plan.forward[0].request_ids[0] == "a"
    assert plan.forward[0].extend_prefix_lens[0] == 12


def test_a_prefill_chunk_whose_result_is_out_counts_only_from_its_begin() -> None:
    """Another request has left the whole prompt in the cache; its own bound is 0."""
    engine = Engine(config(chunk=8, pages=64))
    engine.run("before", tokens(20, shared=20))
    engine.submit("a", tokens(20, shared=20), max_cached_prefix_tokens=0)
    engine.step()
    engine.plan()  # 8..16: its result stays out
    engine.tell(ForwardEvent.Retract("a"))
    assert engine.plan().forward[0].extend_prefix_lens == [8]


def test_page_tables_of_the_granted_are_in_the_plan_that_took_them_away() -> None:
    engine = Engine(config(pages=6, chunk=8))
    engine.submit("a", 8, max_new=8)
    engine.step()
    engine.submit("b", 12)
    engine.submit("c", 5)
    before = page_table(engine.step(), "b")
    assert set(page_table(engine.step(), "c")) <= set(before)
