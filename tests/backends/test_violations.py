"""What a broken scheduler would do, done to the plans of a sound one: each ends with the right words."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvplan.backends.carried import CarriedScheduler
from kvplan.backends.errors import Violation
from kvplan.scheduler import Cache, ExecutionEvent, ExecutionPlan, Scheduler
from tests.backends.carrying import CarriedRun
from tests.backends.small import Mutation, group, play, request, scenario
from tests.support.scenario import Scenario

pytest.importorskip("torch", reason="carrying plans out needs the extra kvplan-toolkit[torch]")

ALONE = scenario(request(0, (1, 0, 14)))
PAIR = scenario(request(0, (1, 0, 14)), request(1, (2, 0, 14), submit=1))


def in_round(index: int, change: Callable[[ExecutionPlan], None]) -> Mutation:
    """Change the plan of one round."""

    def mutate(plan: ExecutionPlan, run: CarriedRun) -> None:
        if run.backend.counts.rounds == index:
            change(plan)

    return mutate


def violation(one: Scenario, mutate: Mutation | None = None, **options: Any) -> Violation:
    """The violation that a changed run ends with; without the change it ends well."""
    if mutate is not None:
        play(one, **options)
    with pytest.raises(Violation) as caught:
        play(one, mutate, **options)
    return caught.value


def hosted(*requests: dict[str, Any], **settings: Any) -> Scenario:
    """A scenario with a host tier of 64 blocks."""
    return scenario(*requests, num_host_pages=65, **settings)


# --- tables -----------------------------------------------------------------------------------------


def test_two_pages_swapped_in_a_table() -> None:
    def swap(plan: ExecutionPlan) -> None:
        row = plan.forward[0].block_tables["full"][0]
        row[0], row[1] = row[1], row[0]

    error = violation(ALONE, in_round(3, swap))
    assert (error.round, error.request_id, error.group, error.page) == (3, "r0", "full", 2)
    assert "reads its own position 0 and finds position 4 of r0" in str(error)
    assert "last written by the forward of r0 in round 0" in str(error)


def test_a_page_given_to_two_requests() -> None:
    def share(plan: ExecutionPlan) -> None:
        table = plan.forward[0].block_tables["full"]
        table[0][0] = table[1][0]  # prefills come first: row 0 is the new request, row 1 the resident one

    error = violation(PAIR, in_round(1, share))
    assert (error.request_id, error.page) == ("r1", 1)
    assert "writes position 0 over position 0 of r0: the page was not zeroed, or is another's" in str(error)


def test_a_page_given_to_two_requests_of_one_forward() -> None:
    both = scenario(request(0, (1, 0, 14)), request(1, (2, 0, 14)))

    def share(plan: ExecutionPlan) -> None:
        table = plan.forward[0].block_tables["full"]
        table[0][0] = table[1][0]

    error = violation(both, in_round(0, share))
    assert error.request_id == "r0"
    assert "finds position 0 of r1; last written by the forward of r1 in round 0" in str(error)


def test_a_table_without_a_page_that_is_needed() -> None:
    def drop(plan: ExecutionPlan) -> None:
        plan.forward[0].block_tables["full"][0][0] = 0

    error = violation(ALONE, in_round(2, drop))
    assert "slot 0 of its table is null, but it reads position 0 there" in str(error)


# --- zeroing ----------------------------------------------------------------------------------------


def test_a_zeroing_that_is_left_out_on_fresh_memory() -> None:
    error = violation(ALONE, in_round(0, lambda plan: plan.pages_to_zero.clear()))
    assert "writes position 0 over memory that was never zeroed or written: the page was not zeroed" in str(
        error
    )
    assert str(error).endswith("last written by nobody")


def test_a_zeroing_that_is_left_out_on_a_page_used_before() -> None:
    reuse = scenario(
        request(0, (1, 0, 14), output=2), request(1, (2, 0, 14), submit=6), disable_prefix_cache=True
    )
    reuse["config"]["num_device_pages"] = 5
    error = violation(reuse, in_round(6, lambda plan: plan.pages_to_zero.clear()))
    assert error.request_id == "r1"
    assert "of r0: the page was not zeroed" in str(error)


def test_a_page_zeroed_that_is_in_use() -> None:
    error = violation(ALONE, in_round(2, lambda plan: plan.pages_to_zero.update(full=[1])))
    assert "reads its own position 0 and finds zeros, which nobody has computed" in str(error)
    assert str(error).endswith("last written by zeroing in round 2")


# --- windows and states -----------------------------------------------------------------------------


class ShortWindow(CarriedRun):
    """A scheduler that takes the window of the sliding groups for a page less than it is."""

    @staticmethod
    def carried(config: Any, backend: Any) -> CarriedScheduler:  # type: ignore[override]
        groups = [
            replace(one, sliding_window_tokens=one.sliding_window_tokens - one.block_granularity)
            if one.sliding_window_tokens
            else one
            for one in config.cache_groups
        ]
        return CarriedScheduler(replace(config, cache_groups=groups), backend)


def test_a_window_reclaimed_one_page_early() -> None:
    run = ShortWindow(scenario(request(0, (1, 0, 30)), groups=("full", "sliding")))
    with pytest.raises(Violation) as caught:
        for _ in run.rounds():
            pass
    assert caught.value.group == "sliding"
    assert "of its table is null, but it reads position" in str(caught.value)


def test_a_state_continued_from_the_wrong_page() -> None:
    states = scenario(request(0, (1, 0, 14)), request(1, (2, 0, 14)), groups=("full", "state"))

    def swap(plan: ExecutionPlan) -> None:
        table = plan.forward[0].block_tables["state"]
        table[0], table[1] = table[1], table[0]

    error = violation(states, in_round(3, swap))
    assert (error.request_id, error.group) == ("r0", "state")
    assert "continues from the state behind its own position" in str(error)
    assert "of r1; last written by the forward of r1 in round 2" in str(error)


# --- prefix hits ------------------------------------------------------------------------------------


class UncomputedPage(CarriedScheduler):
    """A scheduler that publishes the page of a finished request's last token, which nobody has computed."""

    def _publish_finished(self, request: Any) -> None:
        request.tokens.extra.append(1)
        super()._publish_finished(request)
        request.tokens.extra.pop()


class Uncomputed(CarriedRun):
    """Request r1 asks for all that r0 was and generated, and a little more."""

    carried = UncomputedPage

    def __init__(self, one: Scenario) -> None:
        super().__init__(one)
        first = self.backend.roll.script.tokens("r0")
        self.prompts["r1"] = [*first, *self.prompts["r1"]]


def test_a_page_published_that_nobody_has_computed() -> None:
    run = Uncomputed(scenario(request(0, (1, 0, 14), output=2), request(1, (2, 0, 3), submit=6)))
    with pytest.raises(Violation) as caught:
        for _ in run.rounds():
            pass
    assert caught.value.request_id == "r1"
    assert "reads its own position 15 and finds zeros, which nobody has computed" in str(caught.value)


def test_a_page_stored_that_nobody_has_computed() -> None:
    run = Uncomputed(hosted(request(0, (1, 0, 14), output=2), request(1, (2, 0, 3), submit=6)))
    with pytest.raises(Violation) as caught:
        for _ in run.rounds():
            pass
    assert "brings prefix page 3 to host page" in str(caught.value)
    assert "and it holds zeros, which nobody has computed" in str(caught.value)


def test_a_replayed_row_written_into_the_pages_of_the_hit() -> None:
    replay = scenario(
        request(0, (1, 0, 24), output=2),
        request(1, (1, 0, 20), (2, 0, 12), submit=6),
        groups=("full", "replay"),
    )

    def forget(plan: ExecutionPlan) -> None:
        assert plan.forward[0].extend_replay_lens == [6]
        plan.forward[0].extend_replay_lens = [0]

    error = violation(replay, in_round(6, forget))
    assert (error.request_id, error.group) == ("r1", "full")
    assert "writes position 14 over position 14 of r" in str(error)
    assert "which is there already and may be shared" in str(error)


# --- the host tier ----------------------------------------------------------------------------------


def stores(plan: ExecutionPlan) -> list[Cache.WriteBackOp]:
    return [op for op in plan.cache if isinstance(op, Cache.WriteBackOp)]


def loads(plan: ExecutionPlan) -> list[Cache.LoadBackOp]:
    return [op for op in plan.cache if isinstance(op, Cache.LoadBackOp)]


# Request r0 fills the device, so that its pages are on the host only when r2 asks for them.
BACK = hosted(
    request(0, (1, 0, 22), output=2),
    request(1, (2, 0, 30), output=2, submit=8),
    request(2, (1, 0, 22), (3, 0, 4), output=4, submit=16),
    num_device_pages=10,
)

# Two generations that do not fit: one is retracted for the other, whose page it gets in the same round.
CROWDED = hosted(request(0, (1, 0, 8), output=40), request(1, (2, 0, 8), output=40), num_device_pages=14)


def test_a_fence_that_is_dropped() -> None:
    def unfence(plan: ExecutionPlan, run: CarriedRun) -> None:
        for op in stores(plan):
            op.source_pinned = [True] * len(op.op_ids)

    error = violation(CROWDED, unfence)
    assert error.group == "full"
    assert "is zeroed for another use before store" in str(error)
    assert "has copied it" in str(error)


class EarlyAck(CarriedScheduler):
    """Acks that do not wait for the copy."""

    def advance(self, event: ExecutionEvent) -> None:
        Scheduler.advance(self, event)


class EarlyAcks(CarriedRun):
    carried = EarlyAck


def test_a_store_acknowledged_before_its_copy_when_its_source_is_reused() -> None:
    run = EarlyAcks(BACK)
    with pytest.raises(Violation) as caught:
        for _ in run.rounds():
            pass
    assert "is zeroed for another use before store 0 has copied it" in str(caught.value)


def test_a_store_acknowledged_before_its_copy_when_it_is_loaded_back() -> None:
    cleared = hosted(request(0, (1, 0, 22), output=2), request(1, (1, 0, 22), submit=16))
    cleared["clears"] = [{"round": 12, "what": "clear_l1_cache"}]
    assert play(cleared).backend.counts.pages_loaded == 5
    run = EarlyAcks(cleared)
    with pytest.raises(Violation) as caught:
        for _ in run.rounds():
            pass
    assert (caught.value.request_id, caught.value.place.tier) == ("r1", "host")
    assert "reads it before store 0 is there" in str(caught.value)


def test_a_page_reused_before_its_store_has_copied_it() -> None:
    def reuse(plan: ExecutionPlan, run: CarriedRun) -> None:
        for op in stores(plan):
            plan.pages_to_zero.setdefault("full", []).append(op.src_pages[0][0])

    error = violation(BACK, reuse)
    assert error.request_id == "r0"
    assert "is zeroed for another use before store 0 has copied it" in str(error)


def test_a_store_of_the_wrong_page() -> None:
    def shift(plan: ExecutionPlan, run: CarriedRun) -> None:
        for op in stores(plan):
            op.src_pages = [[*row[1:], row[0]] for row in op.src_pages]

    error = violation(BACK, shift)
    assert error.request_id == "r0"
    assert "store 0 brings prefix page 0 to host page 1 of full, and it holds position 4 of r0" in str(error)


def test_a_load_back_to_the_wrong_place() -> None:
    moved = 0

    def shift(plan: ExecutionPlan, run: CarriedRun) -> None:
        nonlocal moved
        for op in loads(plan):
            moved += len(op.dst_pages[0])
            op.dst_pages = [[*row[1:], row[0]] for row in op.dst_pages]

    error = violation(BACK, shift)
    assert moved > 1
    assert error.request_id == "r2"
    assert "reads its own position 4 and finds position 16 of r0" in str(error)
    assert "last written by load-back" in str(error)
    assert "of host page" in str(error)


def test_a_page_from_storage_that_was_never_stored() -> None:
    storage = {**BACK, "storage": [[[1, 0, 20]]]}
    storage["config"] = storage["config"] | {"enable_l3_storage": True}
    storage["requests"] = [request(0, (1, 0, 22))]
    assert play(storage).backend.counts.pages_loaded == 4
    run = CarriedRun(storage)
    run.backend.storage.unregister(list(run.backend.storage._elsewhere))  # type: ignore[union-attr]
    with pytest.raises(Violation, match="wants it from storage, which was never given it"):
        for _ in run.rounds():
            pass


# --- between engines --------------------------------------------------------------------------------


def test_a_prompt_sent_from_the_wrong_pages() -> None:
    sender = scenario(request(0, (1, 0, 14)), groups=("full", group("sliding")), role="P")

    def swap(plan: ExecutionPlan, run: CarriedRun) -> None:
        if plan.remote_decode is not None:
            row = plan.remote_decode.block_tables["full"][0]
            row[0], row[1] = row[1], row[0]

    error = violation(sender, swap)
    assert "sends its own position 0 and finds position 4 of r0" in str(error)


def test_a_page_taken_while_the_peer_still_reads_it() -> None:
    sender = scenario(request(0, (1, 0, 14)), role="P", timing={"remote_decode": 4})

    def take(plan: ExecutionPlan, run: CarriedRun) -> None:
        if run.backend.counts.rounds == 3:
            plan.pages_to_zero["full"] = [2]

    error = violation(sender, take)
    assert error.round == 3
    assert "sends its own position 4 and finds zeros" in str(error)


def test_a_prompt_received_in_the_wrong_pages() -> None:
    receiver = scenario(request(0, (1, 0, 14)), role="D")

    def swap(plan: ExecutionPlan, run: CarriedRun) -> None:
        if plan.remote_prefill is not None:
            row = plan.remote_prefill.block_tables["full"][0]
            row[0], row[1] = row[1], row[0]

    error = violation(receiver, swap)
    assert "reads its own position 0 and finds position 4 of r0" in str(error)
    assert "last written by the peer's prefill of r0 in round 0" in str(error)


# --- what is no violation ---------------------------------------------------------------------------


def test_a_script_that_is_not_what_the_driver_answers_is_told_apart() -> None:
    run = CarriedRun(scenario(request(0, (1, 0, 14)), decode_input_tokens=3))
    run.backend.roll.script.accepted = lambda request_id, step: 3  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the script is not what the driver answers"):
        for _ in run.rounds():
            pass
