"""What a request must be to be taken (engine.md §2); cases S4, S5 and S12 of the field."""

from typing import Any

import numpy as np
import pytest

from kvplan.scheduler import RequestSpec, Scheduler
from tests.support.engine import Engine, inputs, page_table
from tests.support.groups import config, full, state


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"tokens": []}, "request 'a': tokens is empty"),
        ({"tokens": ["x"]}, "request 'a': tokens must be a sequence of integers"),
        ({"tokens": [2**31]}, "request 'a': tokens must be a sequence of integers that fit in 32 bits"),
        ({"tokens": [[1], [2]]}, "request 'a': tokens must be"),
        ({"tokens": 5}, "request 'a': tokens must be"),
        ({"max_new_tokens": -1}, "request 'a': max_new_tokens is -1; at least 0"),
        ({"max_cached_prefix_tokens": -2}, "request 'a': max_cached_prefix_tokens is -2; at least 0"),
        ({"request_id": "known"}, "request 'known': request_id is taken"),
    ],
)
def test_an_invalid_request_is_refused_by_name_and_field(spec: dict[str, Any], message: str) -> None:
    engine = Engine(config())
    engine.submit("known", 3)
    with pytest.raises(ValueError, match=message):
        engine.scheduler.submit_requests([RequestSpec(**({"request_id": "a", "tokens": [1]} | spec))])


def test_a_request_id_may_not_come_twice_in_one_list() -> None:
    with pytest.raises(ValueError, match="request 'a': request_id is taken"):
        Scheduler(config()).submit_requests([RequestSpec("a", [1]), RequestSpec("a", [2])])


@pytest.mark.parametrize(
    "bad", [RequestSpec("b", []), RequestSpec("b", [1], -1), RequestSpec("b", [1] * 999)]
)
def test_submitting_is_all_or_nothing(bad: RequestSpec) -> None:
    scheduler = Scheduler(config())
    with pytest.raises(ValueError, match="'b'"):
        scheduler.submit_requests([RequestSpec("a", [1]), bad])
    assert scheduler.waiting_size() == 0
    assert scheduler.request_token_size("a") == -1


def test_an_int32_array_is_as_good_as_a_list() -> None:
    by_list, by_array = Engine(config()), Engine(config())
    by_list.submit("a", [3, 1, 2])
    by_array.scheduler.submit_requests([RequestSpec("a", np.array([3, 1, 2], np.int32))])
    assert by_list.plan().forward[0].input_ids == by_array.plan().forward[0].input_ids == [3, 1, 2]


@pytest.mark.parametrize(
    ("role", "width", "prompt", "max_new", "taken"),
    [
        pytest.param("Fused", 1, 63, 0, True, id="the decode slot is needed at least"),
        pytest.param("Fused", 1, 64, 0, False, id="one token more"),
        pytest.param("Fused", 4, 61, 0, False, id="the whole width is needed"),
        pytest.param("Fused", 4, 60, 3, True, id="the larger of width and budget"),
        pytest.param("Fused", 1, 54, 10, True, id="prompt and budget exactly"),
        pytest.param("Fused", 1, 54, 11, False, id="one token of budget more"),
        pytest.param("D", 1, 54, 11, False, id="a decode worker generates too"),
        pytest.param("P", 1, 64, 500, True, id="a prefill worker does not"),
        pytest.param("P", 1, 65, 0, False, id="but its prompt must fit"),
    ],
)
def test_the_longest_request_a_pool_of_64_tokens_takes(
    role: str, width: int, prompt: int, max_new: int, taken: bool
) -> None:
    scheduler = Scheduler(config(pages=16, role=role, decode_input_tokens=width))
    assert scheduler.max_single_request_tokens() == 64
    spec = RequestSpec("a", [1] * prompt, max_new)
    if taken:
        scheduler.submit_requests([spec])
    else:
        with pytest.raises(ValueError, match=r"request 'a': .* never fit: .* at most 64 tokens"):
            scheduler.submit_requests([spec])


def test_case_s4_the_exact_boundary_fits_and_one_token_more_does_not() -> None:
    """8 pages of 128 in all, 7 usable: 896 tokens. 1,024 never fits."""
    scheduler = Scheduler(config(full(128), prefix_granularity=128, pages=7, chunk=1024))
    assert scheduler.max_single_request_tokens() == 896
    for prompt in (1024, 896):
        with pytest.raises(ValueError, match="at most 896 tokens"):
            scheduler.submit_requests([RequestSpec("a", [1] * prompt)])
    scheduler.submit_requests([RequestSpec("a", [1] * 895)])
    assert inputs(scheduler.next_execution_plan()) == {"a": 895}


def test_case_s5_the_one_that_never_fits_is_refused_with_need_and_limit_and_the_others_finish() -> None:
    """A pool of 76,640 tokens; requests of 100,000, 500 and 500."""
    engine = Engine(config(full(16), prefix_granularity=16, pages=4790, chunk=8192))
    assert engine.scheduler.max_single_request_tokens() == 76_640
    with pytest.raises(ValueError, match=r"'long'.* 100001 tokens \(100000 \+ 1\).* at most 76640 tokens"):
        engine.submit("long", 100_000)
    engine.submit("b", 500)
    engine.submit("c", 500)
    assert inputs(engine.step()) == {"b": 500, "c": 500}
    engine.step()
    engine.finish("b", "c")
    engine.step()
    assert engine.scheduler.active_lcm_blocks() == 0


def test_case_s12_tokens_would_fit_pages_do_not() -> None:
    """A page of 128, one of them free, two requests of 2 tokens: one runs, one waits."""
    engine = Engine(config(full(128), prefix_granularity=128, pages=1, chunk=256))
    engine.submit("a", 2)
    engine.submit("b", 2)
    assert inputs(engine.step()) == {"a": 2}
    assert engine.states("a", "b") == ["PrefillDone", "Submitted"]
    engine.finish("a")
    assert inputs(engine.step()) == {"b": 2}


def hybrid(role: str) -> Engine:
    groups = [full(2, group_id="full"), *(state(2, group_id=f"state{at}") for at in range(3))]
    return Engine(config(*groups, prefix_granularity=2, pages=32, chunk=64, max_batch_size=16, role=role))


def test_case_s2_fused() -> None:
    """P = 2, 32 blocks, one full and three state groups; 6 requests of 2 tokens, max_new 4: 9 pages each, so
    3 are admitted and use 27 of 32 blocks; the rest wait; all finish; nothing is held in the end."""
    engine = hybrid("Fused")
    names = [f"r{at}" for at in range(6)]
    for rid in names:
        engine.submit(rid, 2, max_new=4)
    plan = engine.plan()
    assert inputs(plan) == {"r0": 2, "r1": 2, "r2": 2}
    pages = [len(page_table(plan, "r0", group)) for group in ("full", "state0", "state1", "state2")]
    assert (pages, sum(pages)) == ([3, 2, 2, 2], 9)
    scheduler = engine.scheduler
    assert (scheduler.active_lcm_blocks(), scheduler.empty_lcm_blocks()) == (27, 5)
    assert scheduler.waiting_size() == 3
    engine.land(plan)
    finished: list[str] = []
    while len(finished) < 6:
        for rid in names:
            if rid not in finished and scheduler.request_token_size(rid) == 6:
                engine.finish(rid)
                finished.append(rid)
        engine.step()
    assert engine.scheduler.take_retractions() == []
    assert scheduler.active_lcm_blocks() == 0
    assert finished == names
