"""What a trace can be made into: a part of it, another speed; and what it is told by."""

import gzip
from typing import Any

import polars as pl
import pytest

from kvplan.traces import TraceError, read_trace


def rows(count: int = 6) -> list[dict[str, Any]]:
    return [
        {"timestamp": 1000 * row, "input_length": 600, "output_length": 5, "hash_ids": [row // 2, 100 + row]}
        for row in range(count)
    ]


def test_the_table_has_these_columns_and_types(read: Any) -> None:
    assert read(rows(), "t.jsonl").table.schema == {
        "request_id": pl.String,
        "arrival_s": pl.Float64,
        "prompt_tokens": pl.Int64,
        "output_tokens": pl.Int64,
        "max_new_tokens": pl.Int64,
        "session_id": pl.String,
        "delay_s": pl.Float64,
        "line": pl.Int64,
        "source": pl.String,
    }


@pytest.mark.parametrize(
    ("start", "limit", "lines"),
    [
        (None, 2, [1, 2]),
        (2, None, [3, 4, 5, 6]),
        ("2", 2, [3, 4]),
        (2.0, 2, [3, 4]),
        ("2s", 2, [3, 4]),
        ("1.5s", 1, [3]),
        ("1500 ms", 1, [3]),
        ("0.05min", 9, [4, 5, 6]),
        (0, 99, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_part_of_a_trace_begins_at_zero_with_its_own_prompts(
    read: Any, start: Any, limit: Any, lines: list[int]
) -> None:
    whole = read(rows())
    for part in (read(rows(), start=start, limit=limit), whole.slice(start, limit)):
        assert part.table["line"].to_list() == lines
        assert part.table["arrival_s"].to_list() == [float(place) for place in range(len(lines))]
        assert len(part) == len(lines)
        for row in range(len(part)):
            assert len(part.prompt(row)) == 600
            shared = (part.prompt(row)[:512] == part.prompt(0)[:512]).all()
            assert shared == ((lines[row] - 1) // 2 == (lines[0] - 1) // 2)


def test_a_part_keeps_the_token_ids_of_the_whole(read: Any) -> None:
    whole = read(rows())
    part = whole.slice(3, 2)
    assert part.prompt(0).tolist() == whole.prompt(3).tolist()
    assert part.output(1).tolist() == whole.output(4).tolist()
    assert whole.head(2).table.equals(whole.slice(0, 2).table)


@pytest.mark.parametrize(
    "start", ["soon", "5 parsecs", "", "-3", "1e3", -1, -2.5, float("nan"), float("inf")]
)
def test_a_start_that_is_none_is_refused(read: Any, start: Any) -> None:
    with pytest.raises(TraceError, match="is given"):
        read(rows(), start=start)


@pytest.mark.parametrize("start", [6, "6", 5.5, "1h"])
def test_a_start_past_the_end_is_refused(read: Any, start: Any) -> None:
    with pytest.raises(TraceError, match=r"past the end of the trace \(6 requests, the last at 5 s\)"):
        read(rows(), start=start)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_is_refused(read: Any, limit: int) -> None:
    with pytest.raises(TraceError, match=f"limit {limit} is given"):
        read(rows(), limit=limit)


def test_a_limit_of_nothing_is_refused_before_anything_is_read() -> None:
    with pytest.raises(TraceError, match="limit 0 is given"):
        read_trace(["no such file"], limit=0)


def test_nothing_is_read_after_the_rows_that_a_limit_asks_for(write: Any) -> None:
    good, bad = write(rows(3), "a.jsonl"), write("{oops\n", "b.jsonl")
    assert len(read_trace([good, bad], limit=3)) == 3
    with pytest.raises(TraceError, match=r"b\.jsonl:1"):
        read_trace([good, bad], limit=4)


def test_a_limit_counts_sorted_rows_when_sorting(read: Any) -> None:
    assert read(rows()[::-1], sort=True, limit=2).table["line"].to_list() == [6, 5]


def test_a_turn_whose_session_began_before_the_part_has_no_delay(read: Any) -> None:
    turns = [
        {"session_id": "a", "timestamp": 0, "input_length": 5, "output_length": 5},
        {"session_id": "a", "delay": 10, "input_length": 5, "output_length": 5},
        {"session_id": "a", "delay": 20, "input_length": 5, "output_length": 5},
    ]
    assert read(turns).slice(1).table["delay_s"].to_list() == [None, 0.02]


def test_speed_divides_delays_too(read: Any) -> None:
    turns = [
        {"session_id": "a", "timestamp": 0, "input_length": 5, "output_length": 5},
        {"session_id": "a", "timestamp": 50, "delay": 10, "input_length": 5, "output_length": 5},
    ]
    table = read(turns).scaled(speed=0.5).table
    assert table["arrival_s"].to_list() == [0.0, 0.1]
    assert table["delay_s"].to_list() == [None, 0.02]


def test_a_trace_is_not_changed_by_what_is_made_of_it(read: Any) -> None:
    trace = read(rows())
    before = trace.table.clone()
    trace.scaled(speed=3.0)
    trace.slice(2, 2)
    assert trace.table.equals(before)


# The fingerprint


def test_the_fingerprint_is_that_of_the_content_not_of_the_file(read: Any, write: Any) -> None:
    plain = read(rows())
    text = write(rows()).read_bytes()
    assert read(gzip.compress(text.replace(b"\n", b"\r\n\r\n")), "other.gz").fingerprint == plain.fingerprint
    halves = [write(rows()[:3], "1.jsonl"), write(rows()[3:], "2.jsonl")]
    assert read_trace(halves).fingerprint == plain.fingerprint
    assert len(plain.fingerprint) == 64


def test_the_fingerprint_does_not_depend_on_the_names_of_hashes(read: Any) -> None:
    renamed = [row | {"hash_ids": [f"h{name}" for name in row["hash_ids"]]} for row in rows()]
    assert read(renamed).fingerprint == read(rows()).fingerprint


def test_a_part_has_the_fingerprint_of_a_file_with_that_part(read: Any) -> None:
    ids = [row | {"request_id": f"q{place}"} for place, row in enumerate(rows())]
    assert read(ids).slice(2, 3).fingerprint == read(ids[2:5]).fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"timestamp": 5001},
        {"input_length": 601},
        {"output_length": 6},
        {"hash_ids": [2, 104]},
        {"max_new_tokens": 5},
        {"session_id": "a"},
        {"request_id": "a"},
    ],
)
def test_the_fingerprint_changes_with_every_field(read: Any, change: dict[str, Any]) -> None:
    changed = rows()
    changed[5] |= change
    assert read(changed).fingerprint != read(rows()).fingerprint


def test_the_fingerprint_tells_no_delay_from_a_delay_of_0(read: Any) -> None:
    turn = {"session_id": "a", "timestamp": 0, "input_length": 5, "output_length": 5}
    assert read([turn, turn]).fingerprint != read([turn, turn | {"delay": 0}]).fingerprint


def test_the_fingerprint_changes_with_token_ids(read: Any) -> None:
    prints = {
        read([{"prompt": ids, "output_len": 2, "timestamp": 0}]).fingerprint
        for ids in ([1, 2], [1, 3], [2, 1], [1, 2, 3])
    }
    assert len(prints) == 4
