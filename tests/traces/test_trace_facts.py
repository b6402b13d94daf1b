"""Facts of a trace, and the public traces' own."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.traces import TraceError, read_trace
from kvplan.traces.facts import page_hits, trace_facts


def test_the_mooncake_conversation_has_its_known_facts(shared: Any) -> None:
    trace = read_trace([shared("mooncake_conversation.jsonl.gz")])
    facts = trace_facts(trace, page_tokens=512)
    assert facts.requests == 12_031
    assert facts.distinct_arrivals == 1_180
    assert facts.prompt_tokens == 144_793_823
    assert facts.hash_references == 288_500
    assert facts.distinct_hashes == 182_790
    assert facts.hash_hit_share == pytest.approx(0.366, abs=5e-4)
    assert facts.hit_share == pytest.approx(0.3734, abs=5e-5)
    assert trace.has_prefixes
    assert trace.warnings == []


def test_the_mooncake_synthetic_has_its_known_facts(shared: Any) -> None:
    facts = trace_facts(read_trace([shared("mooncake_synthetic.jsonl.gz")]), page_tokens=512)
    assert facts.requests == 3_993
    assert facts.hash_hit_share == pytest.approx(0.640, abs=5e-4)


def test_hash_0_is_in_every_row_of_the_mooncake_conversation(shared: Any) -> None:
    trace = read_trace([shared("mooncake_conversation.jsonl.gz")])
    first, _, counts = trace.tokens.spans(trace.rows)
    assert int((first == 0).sum()) == len(counts) == 12_031


@pytest.mark.parametrize(
    ("name", "format", "requests", "last_s"),
    [
        ("azure_code.csv", "azure", 8_819, 3435.948056),
        ("azure_conv.csv", "azure", 19_366, 3501.721937),
        ("splitwise_conv_head.csv", "vidur", 1_999, 423.184196),
    ],
)
def test_the_other_public_traces_are_read_whole(
    shared: Any, name: str, format: str, requests: int, last_s: float
) -> None:
    trace = read_trace([shared(name)])
    assert (trace.format, len(trace), trace.table["arrival_s"][-1]) == (format, requests, last_s)
    assert trace.warnings == []


def test_vidur_made_its_file_from_azures(shared: Any) -> None:
    azure = read_trace([shared("azure_conv.csv")], limit=1_999).table
    vidur = read_trace([shared("splitwise_conv_head.csv")]).table
    for column in ("prompt_tokens", "output_tokens"):
        assert azure[column].equals(vidur[column])
    # Seven of its times are what a floating-point subtraction left, such as 5.8926549999999995.
    assert vidur["arrival_s"].to_list() == pytest.approx(azure["arrival_s"].to_list(), abs=1e-9, rel=0)


def hashed(hashes: list[int], length: int) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": length, "output_length": 1, "hash_ids": hashes}


def test_only_leading_hashes_hit(read: Any) -> None:
    rows = [hashed([1, 2, 3], 48), hashed([1, 9, 3], 48), hashed([2, 3], 32), hashed([1, 2, 3, 4], 64)]
    facts = trace_facts(read(rows, hash_tokens=16), page_tokens=16)
    assert facts.hash_references == 12
    # Of the third row both hashes have been seen, yet not at the start of a prompt; by page that is no hit.
    assert facts.hash_hit_share == (0 + 1 + 2 + 3) / 12
    assert facts.hit_tokens == 16 * (0 + 1 + 0 + 3)
    assert facts.hit_share == 64 / 192


def test_the_last_token_of_a_prompt_never_hits(read: Any) -> None:
    trace = read([hashed([1, 2], 32), hashed([1, 2], 32)], hash_tokens=16)
    assert page_hits(trace, 16).tolist() == [0, 1]
    assert page_hits(trace, 31).tolist() == [0, 1]
    assert page_hits(trace, 32).tolist() == [0, 0]
    assert page_hits(trace, 1).tolist() == [0, 31]


def test_what_a_trace_does_not_say_is_unknown(read: Any) -> None:
    facts = trace_facts(read([{"timestamp": 0, "input_length": 9, "output_length": 2}]))
    assert (facts.hit_share, facts.hit_tokens, facts.hash_hit_share, facts.distinct_hashes) == (None,) * 4
    facts = trace_facts(read([{"prompt": [1, 2, 3], "output_len": 2, "timestamp": 0}]))
    assert facts.hit_share == 0.0
    assert facts.hash_hit_share is None


def test_rows_without_hashes_count_as_none(read: Any) -> None:
    rows = [hashed([1], 16), {"timestamp": 0, "input_length": 9, "output_length": 2}, hashed([1], 16)]
    facts = trace_facts(read(rows, hash_tokens=16))
    assert (facts.hash_references, facts.distinct_hashes, facts.hash_hit_share) == (2, 1, 0.5)


def test_a_page_of_nothing_is_refused(read: Any) -> None:
    with pytest.raises(TraceError, match="page_tokens 0"):
        page_hits(read([hashed([1], 16)], hash_tokens=16), 0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=8), st.integers(1, 5)
)
def test_page_hits_are_those_of_a_list_of_all_earlier_prompts(
    tmp_path: Path, prompts: list[list[int]], page: int
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": ids, "output_len": 1, "timestamp": 0}) + "\n" for ids in prompts)
    )
    hits = page_hits(read_trace([path]), page)
    for row, ids in enumerate(prompts):
        expected = 0
        for pages in range(1, (len(ids) - 1) // page + 1):
            end = pages * page
            if any(ids[:end] == earlier[:end] for earlier in prompts[:row]):
                expected = pages
        assert hits[row] == expected
