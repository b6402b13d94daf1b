"""Token ids: equal hashes, equal pages; anything else, no page in common."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.traces import Trace, read_trace
from kvplan.traces.tokens import ID_LIMIT, TokenBuilder

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def mooncake(path: Path, prompts: list[tuple[list[int], int]], size: int) -> Trace:
    rows = [
        {"timestamp": 0, "input_length": size * len(hashes) - short, "output_length": 3, "hash_ids": hashes}
        for hashes, short in prompts
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_trace([path], hash_tokens=size)


@st.composite
def hashed_prompts(draw: Any) -> tuple[list[tuple[list[int], int]], int]:
    size = draw(st.integers(1, 9))
    prompt = st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(0, size - 1))
    return draw(st.lists(prompt, min_size=1, max_size=6)), size


@QUICK
@given(hashed_prompts(), st.integers(1, 12))
def test_prompts_have_a_page_in_common_just_where_their_hashes_are_equal(
    tmp_path: Path, drawn: tuple[list[tuple[list[int], int]], int], page: int
) -> None:
    prompts, size = drawn
    trace = mooncake(tmp_path / "t.jsonl", prompts, size)
    for row, (hashes, short) in enumerate(prompts):
        tokens = trace.prompt(row)
        assert len(tokens) == size * len(hashes) - short
        for other, (other_hashes, other_short) in enumerate(prompts[:row]):
            shared = 0
            while shared < min(len(hashes), len(other_hashes)) and hashes[shared] == other_hashes[shared]:
                shared += 1
            common = min(size * shared, len(tokens), size * len(other_hashes) - other_short)
            equal = 0
            while tokens[equal : equal + page].tolist() == trace.prompt(other)[equal : equal + page].tolist():
                if equal + page > min(len(tokens), len(trace.prompt(other))):
                    break
                equal += page
            assert equal == common // page * page


@QUICK
@given(hashed_prompts())
def test_a_token_is_its_hash_by_first_use_times_the_size_plus_its_place(
    tmp_path: Path, drawn: tuple[list[tuple[list[int], int]], int]
) -> None:
    prompts, size = drawn
    trace = mooncake(tmp_path / "t.jsonl", prompts, size)
    order = list(dict.fromkeys(name for hashes, _ in prompts for name in hashes))
    for row, (hashes, short) in enumerate(prompts):
        whole = [order.index(name) * size + place for name in hashes for place in range(size)]
        assert trace.prompt(row).tolist() == whole[: len(whole) - short]


def test_prompts_are_int32_contiguous_and_the_callers_own(tmp_path: Path) -> None:
    trace = mooncake(tmp_path / "t.jsonl", [([5, 6, 5], 2)], 4)
    tokens = trace.prompt(0)
    assert tokens.dtype == np.int32
    assert tokens.flags.c_contiguous
    tokens[:] = 9
    assert trace.prompt(0).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


def test_explicit_prompts_are_the_callers_own_too(read: Any) -> None:
    trace = read([{"prompt": [1, 2], "output_len": 2, "timestamp": 0}])
    trace.prompt(0)[:] = 9
    assert trace.prompt(0).tolist() == [1, 2]


def test_outputs_have_ids_that_no_prompt_and_no_other_output_has(tmp_path: Path) -> None:
    trace = mooncake(tmp_path / "t.jsonl", [([5, 6], 0), ([5, 7], 0)], 4)
    prompts = {token for row in range(2) for token in trace.prompt(row).tolist()}
    outputs = [token for row in range(2) for token in trace.output(row).tolist()]
    assert len(outputs) == len(set(outputs)) == 6
    assert not prompts & set(outputs)
    assert trace.output(1, 1, 2).tolist() == trace.output(1).tolist()[1:3]


def test_outputs_past_their_length_go_on_with_ids_of_their_own(tmp_path: Path) -> None:
    trace = mooncake(tmp_path / "t.jsonl", [([5, 6], 0), ([5, 7], 0)], 4)
    long = [trace.output(row, 0, 50).tolist() for row in range(2)]
    assert len({*long[0], *long[1]}) == 100
    assert long[0][:3] == trace.output(0).tolist()
    assert trace.output(0, 40, 5).tolist() == long[0][40:45]
    assert trace.output(0, 2, 2).tolist() == long[0][2:4]
    assert min(long[0]) >= 0


@pytest.mark.parametrize(("first", "count"), [(-1, 2), (0, -1)])
def test_an_output_before_the_first_is_no_index(tmp_path: Path, first: int, count: int) -> None:
    with pytest.raises(IndexError):
        mooncake(tmp_path / "t.jsonl", [([5], 0)], 4).output(0, first, count)


@pytest.mark.parametrize("row", [-1, 1])
def test_a_row_that_is_not_there_is_no_index(tmp_path: Path, row: int) -> None:
    with pytest.raises(IndexError, match="a trace with 1 row"):
        mooncake(tmp_path / "t.jsonl", [([5], 0)], 4).prompt(row)


def test_a_space_that_ends_at_the_limit_needs_no_mixing() -> None:
    builder = TokenBuilder()
    builder.add_ids([ID_LIMIT - 8])
    builder.add_output(2)
    builder.add_prefix([], 5)
    builder.add_output(0)
    store = builder.finish()
    assert store.top == ID_LIMIT
    assert store.prompt(1).tolist() == list(range(ID_LIMIT - 7, ID_LIMIT - 2))
    assert store.output(0, 0, 2).tolist() == [ID_LIMIT - 2, ID_LIMIT - 1]


def test_a_space_past_31_bits_keeps_equal_text_equal_and_other_text_apart() -> None:
    builder = TokenBuilder()
    builder.add_prefix([("big", 2**31 - 1)], 2**31 - 1)
    builder.add_output(1)
    for _ in range(2):
        builder.add_prefix([("far", 4000)], 6000)
        builder.add_output(1000)
    store = builder.finish()
    first, second = store.prompt(1), store.prompt(2)
    assert first.dtype == np.int32
    assert min(first.min(), second.min()) >= 0
    assert (first[:4000] == second[:4000]).all()
    assert not (first[4000:] == second[4000:]).any()
    everything = np.concatenate([first, second[4000:], store.output(1, 0, 1000), store.output(2, 0, 1000)])
    assert len(np.unique(everything)) == len(everything)


def test_ids_that_span_the_limit_are_kept_below_it() -> None:
    builder = TokenBuilder()
    builder.add_ids([ID_LIMIT - 3])
    builder.add_output(0)
    builder.add_prefix([], 4)
    builder.add_output(0)
    tokens = builder.finish().prompt(1)
    assert tokens[:2].tolist() == [ID_LIMIT - 2, ID_LIMIT - 1]
    assert tokens.min() >= 0
