"""Prefill and decode workers (engine.md §8, §9, §10; design note §3.1, §3.2). Pages of 4 tokens, one a block."""

from kvplan.scheduler import PD, ExecutionPlan, ForwardEvent
from tests.support.engine import Engine, hits, inputs, page_table, table, tokens
from tests.support.groups import config, full, replay, sliding, state


def worker(role: str, *groups: object, **fields: object) -> Engine:
    return Engine(config(*groups, role=role, **fields))  # type: ignore[arg-type]


def remote(plan: ExecutionPlan) -> dict[str, int]:
    """Who is prefilled by the peer, and how many tokens."""
    batch = plan.remote_prefill
    return dict(zip(batch.request_ids, batch.input_lengths, strict=True)) if batch is not None else {}


def landed(engine: Engine, *rids: str) -> None:
    engine.tell(*(PD.RemotePrefillDoneEvent(rid, 77) for rid in rids))


# --- P ----------------------------------------------------------------------------------------------------


def test_a_finished_prompt_leaves_on_remote_decode_the_round_after_its_token_landed() -> None:
    engine = worker("P")
    engine.submit("a", 6)
    engine.tell(ForwardEvent.Abort("nobody"))
    plan = engine.plan()
    assert engine.state("a") == "PrefillAwaitingResult"
    assert engine.plan().remote_decode is None
    engine.tell(ForwardEvent.ExtendResult("a", [55], [8, 9]))
    batch = engine.plan().remote_decode
    assert batch is not None
    assert (batch.request_ids, batch.input_lengths) == (["a"], [1])
    assert (batch.decode_input_ids, batch.spec_candidate_ids) == ([55], [[8, 9]])
    assert table(batch, "a") == page_table(plan, "a")
    assert engine.state("a") == "Decoding"
    assert engine.plan().remote_decode is None, "it leaves once"


def test_leaving_costs_no_budget_and_no_place_in_the_batch() -> None:
    engine = worker("P", chunk=4, max_batch_size=2, decode_input_tokens=3)
    engine.submit("a", 4)
    engine.step()
    engine.submit("b", 4)
    plan = engine.plan()
    assert plan.remote_decode is not None
    assert (plan.remote_decode.request_ids, plan.remote_decode.input_lengths) == (["a"], [3])
    assert inputs(plan) == {"b": 4}


def test_a_prefill_worker_reserves_the_decode_slot_and_no_growth() -> None:
    engine = worker("P", full(), sliding(8), state())
    engine.submit("a", 8, max_new=50)
    plan = engine.plan()
    assert [len(page_table(plan, "a", group)) for group in ("full", "sliding", "state")] == [3, 3, 2]


def test_the_pages_are_held_until_the_peer_has_them_and_stay_cached() -> None:
    engine = worker("P")
    engine.submit("a", tokens(8, shared=8))
    engine.step()
    engine.step()
    assert engine.scheduler.active_lcm_blocks() == 3
    engine.tell(PD.SucceededEvent("a"))
    assert engine.scheduler.active_lcm_blocks() == 0
    assert engine.scheduler.empty_lcm_blocks() == 14, "two pages were published on the way out"


def test_a_prefill_worker_waits_where_others_retract() -> None:
    engine = worker("P", pages=4, chunk=8)
    engine.submit("a", 10)
    engine.submit("b", 10)
    for _ in range(4):
        engine.step()
    assert engine.scheduler.take_retractions() == []
    assert engine.states("a", "b") == ["Decoding", "Submitted"]
    engine.tell(PD.SucceededEvent("a"))
    assert inputs(engine.step()) == {"b": 8}


def test_a_prompt_waits_for_its_handshake() -> None:
    from kvplan.scheduler import RequestSpec

    engine = worker("P")
    engine.scheduler.submit_requests([RequestSpec("a", [1, 2])])
    assert engine.plan().forward == []
    engine.tell(PD.BootstrappedEvent("a"))
    assert inputs(engine.plan()) == {"a": 2}


# --- D ----------------------------------------------------------------------------------------------------


def test_a_remote_admission_takes_the_whole_prompt_whatever_the_budget() -> None:
    engine = worker("D", chunk=4)
    engine.submit("a", 30)
    plan = engine.plan()
    assert remote(plan) == {"a": 30}
    assert plan.forward == []
    assert engine.state("a") == "RemotePrefilling"


def test_one_remote_admission_a_round_the_first_that_fits() -> None:
    engine = worker("D", pages=10)
    engine.submit("a", 20, max_new=4)
    engine.submit("big", 30)
    engine.submit("b", 4)
    engine.submit("c", 4)
    assert [remote(engine.plan()) for _ in range(4)] == [{"a": 20}, {"b": 4}, {"c": 4}, {}]


def test_a_remote_admission_rides_beside_the_decode_batch() -> None:
    engine = worker("D", max_batch_size=3, chunk=1)
    engine.submit("a", 4)
    engine.plan()
    landed(engine, "a")
    engine.submit("b", 30)
    plan = engine.step()
    assert (inputs(plan), remote(plan)) == ({"a": 1}, {"b": 30})


def test_decodes_cost_no_budget_on_a_decode_worker() -> None:
    engine = worker("D", max_batch_size=3, chunk=1)
    for rid in "abc":
        engine.submit(rid, 4)
        engine.plan()
    landed(engine, *"abc")
    assert inputs(engine.step()) == {"a": 1, "b": 1, "c": 1}


def test_the_peer_s_token_is_the_first_decode_input() -> None:
    engine = worker("D")
    engine.submit("a", 4)
    engine.plan()
    landed(engine, "a")
    first, second = engine.steps(2)
    assert [plan.forward[0].decode_input_ids for plan in (first, second)] == [[77], [-1]]


def test_landings_by_kind_of_group() -> None:
    """20 tokens, pages of 4, window 6: full has all and the headroom; the window its last two pages; a state
    group the endpoint; each its reserve."""
    engine = worker("D", full(), sliding(6), state(), pages=40)
    engine.submit("a", 20, max_new=8)
    batch = engine.plan().remote_prefill
    assert batch is not None
    rows = {group: table(batch, "a", group) for group in ("full", "sliding", "state")}
    assert len(rows["full"]) == 7
    assert [bool(page) for page in rows["sliding"]] == [False, False, False, True, True, True]
    assert [bool(page) for page in rows["state"]] == [False, False, False, False, True, True]


def test_a_replayable_group_lands_its_window_and_replays_nothing() -> None:
    engine = worker("D", full(), replay(8), pages=40)
    engine.submit("a", 20)
    batch = engine.plan().remote_prefill
    assert batch is not None
    assert batch.extend_replay_lens == [0]
    assert [bool(page) for page in table(batch, "a", "replay")] == [False, False, False, True, True, True]


def test_a_fresh_remote_admission_hits_the_device_and_state_groups_take_no_part() -> None:
    engine = worker("D", full(), state(), pages=40)
    engine.submit("a", tokens(13, shared=13))
    engine.plan()
    landed(engine, "a")
    engine.step()
    engine.finish("a")
    engine.submit("b", tokens(13, seed=1, shared=12))
    batch = engine.plan().remote_prefill
    assert batch is not None
    assert (batch.extend_prefix_lens, batch.input_lengths) == ([12], [1])
    assert [bool(page) for page in table(batch, "b", "state")] == [False, False, False, True, True]


def test_pages_are_pinned_only_while_the_peer_writes_them() -> None:
    engine = worker("D")
    engine.submit("a", 4)
    engine.plan()
    assert engine.scheduler.pd_transfer_pinned("a")
    assert not engine.scheduler.can_clear_cache()
    landed(engine, "a")
    assert not engine.scheduler.pd_transfer_pinned("a")


def test_a_failed_transfer_ends_the_request_and_frees_its_pages() -> None:
    engine = worker("D")
    engine.submit("a", 4)
    engine.plan()
    engine.tell(PD.FailedEvent("a"))
    assert engine.state("a") == "Finished"
    assert engine.scheduler.empty_lcm_blocks() == 16


def under_pressure() -> Engine:
    """a and b decode on a decode worker, each with two full pages; the pool of 4 is full."""
    engine = worker("D", pages=4, chunk=4)
    for rid in "ab":
        engine.submit(rid, 7)
        engine.plan()
    landed(engine, *"ab")
    engine.steps(2)
    return engine


def test_a_victim_recovers_locally_without_a_host_cache_alone_in_its_batch() -> None:
    """It hits the page that it had published. Neither b's step nor c's admission is in its rounds."""
    engine = under_pressure()
    (victim,) = engine.scheduler.take_retractions()
    assert (victim.request_id, victim.has_snapshot) == ("a", True)
    first = engine.step()
    assert (inputs(first), hits(first)) == ({"a": 4}, {"a": 4})
    engine.abort("b")
    engine.submit("c", 1)
    second, third = engine.steps(2)
    assert (inputs(second), remote(second)) == ({"a": 1}, {})
    assert (inputs(third), remote(third)) == ({"a": 1}, {"c": 1})


def test_a_first_decode_after_a_local_recovery_carries_the_last_token_too() -> None:
    engine = under_pressure()
    engine.abort("b")
    engine.steps(2)
    plan = engine.plan()
    assert plan.forward[0].num_extends() == 0
    assert plan.forward[0].decode_input_ids == [engine.next_token - 1]


def test_a_remote_request_retracted_by_the_runtime_comes_back_as_a_new_remote_admission() -> None:
    engine = worker("D", chunk=4)
    engine.submit("a", 7)
    engine.plan()
    landed(engine, "a")
    engine.step()
    engine.tell(ForwardEvent.Retract("a"))
    plan = engine.plan()
    assert remote(plan) == {"a": 5}
    assert plan.remote_prefill is not None
    assert plan.remote_prefill.extend_prefix_lens == [4], "what its first step had published"
    assert engine.state("a") == "RemotePrefilling"


def test_case_s2_on_a_decode_worker() -> None:
    """P = 2, 32 blocks, one full and three state groups; 5 requests of 2 tokens, max_new 4: 9 pages each, 3
    admitted one a round, 27 of 32 blocks used; the rest wait; all finish; nothing is held in the end."""
    groups = [full(2), *(state(2, group_id=f"state{at}") for at in range(3))]
    engine = worker("D", *groups, prefix_granularity=2, pages=32)
    names = [f"r{at}" for at in range(5)]
    for rid in names:
        engine.submit(rid, 2, max_new=4)
    assert [remote(engine.plan()) for _ in range(4)] == [{"r0": 2}, {"r1": 2}, {"r2": 2}, {}]
    scheduler = engine.scheduler
    assert (scheduler.active_lcm_blocks(), scheduler.waiting_size()) == (27, 2)
    landed(engine, "r0", "r1", "r2")
    finished: list[str] = []
    for _ in range(30):
        plan = engine.step()
        if plan.remote_prefill is not None:
            landed(engine, *plan.remote_prefill.request_ids)
        done = [rid for rid in names if rid not in finished and scheduler.request_token_size(rid) == 6]
        engine.finish(*done)
        finished += done
    assert sorted(finished) == names
    assert scheduler.take_retractions() == []
    assert scheduler.active_lcm_blocks() == 0


def test_case_s2_a_decode_worker_under_pressure() -> None:
    """80 blocks of 64, chunk 64, batch 2, no host, no prefix cache. A decoding request of 65 tokens and
    max_new 4,200 is in the way of a waiting prompt of 5,057 and max_new 16, which needs all 80: the round in
    which the first finds no room retracts it and grants the second. Once that one is aborted, the victim
    comes back from scratch, in chunks of at most 64.
    """
    engine = worker(
        "D", full(64), prefix_granularity=64, pages=80, chunk=64, max_batch_size=2, disable_prefix_cache=True
    )
    engine.submit("first", 64, max_new=4_200)
    engine.plan()
    landed(engine, "first")
    engine.submit("second", 5_057, max_new=16)
    plan = engine.step()
    assert (inputs(plan), remote(plan)) == ({"first": 1}, {})
    assert engine.scheduler.request_token_size("first") == 66
    engine.tell(ForwardEvent.UpdateReserveNumTokens("first", 64 * 80))
    plan = engine.step()
    (victim,) = engine.scheduler.take_retractions()
    assert (victim.request_id, victim.state) == ("first", "Decoding")
    assert (inputs(plan), remote(plan)) == ({}, {"second": 5_057})
    batch = plan.remote_prefill
    assert batch is not None
    assert len(table(batch, "second")) == 80
    engine.abort("second")
    plans = engine.steps(3)
    assert [inputs(plan) for plan in plans] == [{"first": 64}, {"first": 2}, {"first": 1}]
    assert hits(plans[0]) == {"first": 0}
    assert all(remote(plan) == {} for plan in plans)
