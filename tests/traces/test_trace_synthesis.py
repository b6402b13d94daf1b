"""Traces of our own making."""

from typing import Any

import pytest

from kvplan.traces import TraceError
from kvplan.traces.facts import trace_facts
from kvplan.traces.synthesis import synthesize, to_jsonl


def test_the_same_seed_gives_the_same_rows_and_another_others() -> None:
    assert synthesize(50, 7) == synthesize(50, 7)
    assert synthesize(50, 7) != synthesize(50, 8)


@pytest.mark.parametrize("turns", [(1, 1), (1, 4)])
def test_what_is_made_is_read_back(read: Any, turns: tuple[int, int]) -> None:
    rows = synthesize(80, 3, turns=turns, max_new_tokens=256)
    trace = read(to_jsonl(rows))
    assert len(trace) == 80
    assert trace.warnings == []
    assert trace.table["request_id"].to_list() == [row["id"] for row in rows]
    assert trace.table["max_new_tokens"].to_list() == [256] * 80
    assert [len(trace.prompt(row)) for row in range(80)] == [row["prompt_tokens"] for row in rows]


def test_prompts_share_their_system_prompt(read: Any) -> None:
    rows = synthesize(60, 3, system_prompts=1, documents=0, system_tokens=100)
    trace = read(to_jsonl(rows))
    for row in range(1, 60):
        same = trace.prompt(row)[:116] == trace.prompt(0)[:116]
        assert same.tolist() == [True] * 100 + [False] * 16


def test_a_later_turn_begins_with_the_prompt_of_the_one_before(read: Any) -> None:
    trace = read(to_jsonl(synthesize(60, 3, turns=(2, 4))))
    last: dict[str, int] = {}
    for row, session in enumerate(trace.table["session_id"]):
        if session in last:
            before = trace.prompt(last[session])
            assert len(trace.prompt(row)) > len(before) + trace.table["output_tokens"][last[session]]
            assert (trace.prompt(row)[: len(before)] == before).all()
            assert trace.table["delay_s"][row] is not None
        last[session] = row
    assert len(last) < 60


def test_more_sharing_is_found_where_more_was_put(read: Any) -> None:
    few = trace_facts(read(to_jsonl(synthesize(60, 3, system_prompts=60, documents=0))), 16)
    many = trace_facts(read(to_jsonl(synthesize(60, 3, system_prompts=1, documents=0))), 16)
    assert few.hit_share is not None
    assert many.hit_share is not None
    assert few.hit_share < many.hit_share


@pytest.mark.parametrize(
    "options",
    [
        {"rate_per_s": 0.0},
        {"rate_per_s": float("nan")},
        {"system_prompts": 0},
        {"own_tokens": (0, 5)},
        {"turns": (3, 2)},
        {"output_tokens": (1, 50), "max_new_tokens": 49},
    ],
)
def test_a_trace_that_cannot_be_made_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match=f"{list(options)[-1]} .* is given"):
        synthesize(5, 1, **options)
