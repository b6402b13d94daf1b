"""The cases from the field, T1 to T11, with their values."""

import gzip
import io
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kvplan.traces import TraceError, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def mooncake(**fields: Any) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": 100, "output_length": 5} | fields


# T1: n hashes mean 512 (n - 1) < length <= 512 n


@pytest.mark.parametrize(
    ("length", "hashes", "expected"),
    [
        (20, 2, "1 hash expected"),
        (655, 3, "2 hashes expected"),
        (1024, 3, "2 hashes expected"),
        (1025, 2, "3 hashes expected"),
        (512, 2, "1 hash expected"),
        (1, 0, "1 hash expected"),
    ],
)
def test_t1_a_wrong_number_of_hashes_is_refused(
    refusal: Any, length: int, hashes: int, expected: str
) -> None:
    message = refusal([mooncake(), mooncake(input_length=length, hash_ids=list(range(hashes)))])
    assert message.count("t.jsonl:2: hash_ids has ") == 1
    assert expected in message


@pytest.mark.parametrize(("length", "hashes"), [(20, 1), (655, 2), (1024, 2), (1025, 3), (512, 1), (513, 2)])
def test_t1_the_right_number_of_hashes_is_read(read: Any, length: int, hashes: int) -> None:
    trace = read([mooncake(input_length=length, hash_ids=list(range(hashes)))])
    assert len(trace.prompt(0)) == length


def test_t1_the_refusal_names_the_hash_size_that_would_fit(refusal: Any) -> None:
    message = refusal([mooncake(input_length=100, hash_ids=list(range(7)))])
    assert "16 tokens a hash would fit" in message
    assert "would fit" not in refusal([mooncake(input_length=600, hash_ids=[0])])


# T2: a wall clock keeps every digit


def test_t2_offsets_keep_every_digit_of_a_wall_clock(read: Any) -> None:
    rows = ["03.9799600", "03.9809600", "03.9819600", "03.9899600", "03.9919600"]
    text = AZURE + "".join(f"2023-11-16 18:17:{second},100,5\n" for second in rows)
    assert read(text, "a.csv").table["arrival_s"].to_list() == [0.0, 0.001, 0.002, 0.010, 0.012]


def test_t2_rows_1_2_9_11_ms_on_are_0_1_8_10_ms_after_the_first(read: Any) -> None:
    rows = ["03.9809600", "03.9819600", "03.9889600", "03.9909600"]
    text = AZURE + "".join(f"2023-11-16 18:17:{second},100,5\n" for second in rows)
    assert read(text, "a.csv").table["arrival_s"].to_list() == [0.0, 0.001, 0.008, 0.010]


def test_t2_one_unit_of_the_seventh_digit_is_not_lost(read: Any) -> None:
    text = AZURE + "2023-11-16 18:17:03.9799600,100,5\n2023-11-16 18:17:03.9799601,100,5\n"
    assert read(text, "a.csv").table["arrival_s"].to_list() == [0.0, 1e-7]


@pytest.mark.parametrize(
    "clock",
    [
        "2023-11-16 18:17:04",
        "2023-11-16T18:17:04",
        "2023-11-16T18:17:04Z",
        "2023-11-16 18:17:04.0000000",
        '"2023-11-16 18:17:04"',
        "2023-11-16T19:17:04+01:00",
        "2023-11-16 18:17:04.000000+00:00",
        "2023-11-16 12:47:04-0530",
        "2023-11-16 18:17:04 UTC",
    ],
)
def test_t2_every_spelling_of_a_wall_clock_is_read(read: Any, clock: str) -> None:
    text = AZURE + f"2023-11-16 18:17:03.9799600,100,5\n{clock},100,5\n"
    assert read(text, "a.csv").table["arrival_s"].to_list() == [0.0, 0.02004]


@pytest.mark.parametrize(
    "clock", ["2023-02-30 00:00:00", "2023-11-16 24:00:00", "2023-11-16 10:61:00", "yesterday", "2023-11-16"]
)
def test_t2_a_clock_that_shows_no_time_is_refused(refusal: Any, clock: str) -> None:
    assert f"a.csv:2: TIMESTAMP is '{clock}'" in refusal(AZURE + f"{clock},100,5\n", "a.csv")


# T3: the unit


def test_t3_an_absurd_span_is_warned_about_with_both_readings(read: Any) -> None:
    trace = read([mooncake(timestamp=time) for time in (0.0, 0.2, 0.4)])
    assert trace.table["arrival_s"].to_list() == [0.0, 0.0002, 0.0004]
    (warning,) = trace.warnings
    assert "400 us read in ms" in warning
    assert "400 ms read in s" in warning


def test_t3_the_unit_can_be_given(read: Any) -> None:
    trace = read([mooncake(timestamp=time) for time in (0.0, 0.2, 0.4)], time_unit="s")
    assert trace.table["arrival_s"].to_list() == [0.0, 0.2, 0.4]
    assert trace.warnings == []


def test_t3_milliseconds_read_as_seconds_are_warned_about(read: Any) -> None:
    rows = [mooncake(timestamp=30_000 * row) for row in range(100)]
    (warning,) = read(rows, time_unit="s").warnings
    assert "34.38 days read in s" in warning
    assert "49.5 min read in ms" in warning
    assert read(rows).warnings == []


def test_t3_a_request_every_few_minutes_for_days_is_warned_about(read: Any) -> None:
    rows = [mooncake(timestamp=300 * row) for row in range(1000)]
    (warning,) = read(rows, time_unit="s").warnings
    assert "3.469 days read in s (1,000 requests, one every 5 min)" in warning
    assert "read in ms (1,000 requests, one every 300 ms)" in warning
    assert read(rows[:100], time_unit="s").warnings == []


def test_t3_a_wall_clock_is_never_doubted(read: Any) -> None:
    text = AZURE + "2023-11-16 18:17:03.9799600,100,5\n2023-11-16 18:17:03.9799601,100,5\n"
    assert read(text, "a.csv").warnings == []


def test_t3_a_span_that_is_plausible_for_its_unit_is_not_warned_about(read: Any) -> None:
    assert read([mooncake(timestamp=time) for time in (0, 1, 8, 10)]).warnings == []
    assert read([mooncake(timestamp=0)] * 3).warnings == []


def test_t3_a_unit_nobody_knows_is_refused(refusal: Any) -> None:
    assert "one of s, ms, us, ns is expected" in refusal([mooncake()], time_unit="minutes")


def test_t3_a_wall_clock_has_no_unit(refusal: Any) -> None:
    assert "wall-clock times" in refusal(AZURE + "2023-11-16 18:17:03,100,5\n", "a.csv", time_unit="ms")


# T4: scaling


def test_t4_double_speed_rebases_and_halves_the_intervals(read: Any) -> None:
    trace = read([mooncake(timestamp=time) for time in (100, 101, 103)], time_unit="s").scaled(speed=2.0)
    assert trace.table["arrival_s"].to_list() == [0.0, 0.5, 1.5]


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_t4_a_speed_that_is_none_is_refused(read: Any, speed: float) -> None:
    with pytest.raises(TraceError, match="finite number over 0"):
        read([mooncake()]).scaled(speed=speed)


# T5: order


def test_t5_an_earlier_time_after_a_later_one_names_the_row_and_both_times(refusal: Any) -> None:
    message = refusal([mooncake(timestamp=time) for time in (0, 700, 650)])
    assert "t.jsonl:3: the arrival at 650 ms comes after one at 700 ms (" in message
    assert "t.jsonl:2)" in message


def test_t5_the_times_of_a_wall_clock_are_named_as_the_file_has_them(refusal: Any) -> None:
    text = AZURE + "2023-11-16 18:17:03.9799600,100,5\n2023-11-16 18:17:03.9799500,100,5\n"
    message = refusal(text, "a.csv")
    assert "2023-11-16 18:17:03.9799500 comes after one at 2023-11-16 18:17:03.9799600" in message
    message = refusal(AZURE + "1969-12-31 23:59:59.75,100,5\n1969-12-31 23:59:59.5,100,5\n", "a.csv")
    assert "1969-12-31 23:59:59.5 comes after one at 1969-12-31 23:59:59.75" in message


def test_t5_rows_are_sorted_on_request_with_their_prompts(read: Any) -> None:
    rows = [
        mooncake(timestamp=time, input_length=length) for time, length in ((5, 10), (7, 20), (2, 30), (5, 40))
    ]
    trace = read(rows, sort=True)
    assert trace.table["arrival_s"].to_list() == [0.0, 0.003, 0.003, 0.005]
    assert [len(trace.prompt(row)) for row in range(4)] == [30, 10, 40, 20]
    assert trace.table["line"].to_list() == [3, 1, 4, 2]


def test_t5_a_turn_without_a_time_stays_after_its_session_when_sorting(read: Any) -> None:
    rows = [mooncake(timestamp=10, session_id="a"), mooncake(timestamp=5, session_id="b")]
    later = {"input_length": 7, "output_length": 5, "session_id": "a", "delay": 1}
    table = read([*rows, later], sort=True).table
    assert table["line"].to_list() == [2, 1, 3]
    assert table["arrival_s"].to_list() == [0.0, 0.005, 0.005]


def test_t5_a_negative_time_is_refused_even_when_sorting(refusal: Any) -> None:
    message = refusal([mooncake(timestamp=0), mooncake(timestamp=-5)], sort=True)
    assert "t.jsonl:2: timestamp is -5, a negative time" in message


# T6: no output


def test_t6_rows_without_output_are_counted_and_left_out(read: Any) -> None:
    trace = read([mooncake(output_length=count) for count in (3, 0, 4, 0)])
    assert trace.table["output_tokens"].to_list() == [3, 4]
    assert trace.zero_output_rows == 2
    assert trace.skipped_rows == 0
    assert trace.warnings == ["2 rows with 0 output tokens left out"]


def test_t6_rows_without_output_are_refused_on_request(refusal: Any) -> None:
    message = refusal([mooncake(), mooncake(output_length=0)], zero_output="refuse")
    assert "t.jsonl:2: 0 output tokens" in message


def test_t6_a_trace_of_nothing_else_is_refused(refusal: Any) -> None:
    assert "no request is left (0 rows bad, 1 row with 0 output tokens)" in refusal(
        [mooncake(output_length=0)]
    )


# T7: no prefixes


def test_t7_a_trace_without_prefix_information_says_so(read: Any) -> None:
    assert not read([mooncake()]).has_prefixes
    assert not read(AZURE + "2023-11-16 18:17:03,100,5\n", "a.csv").has_prefixes
    assert read([mooncake(hash_ids=[1])]).has_prefixes


# T8: malformed JSON

BROKEN = '{"timestamp": 0, input_length": 6755}\n'
WHOLE = '{"timestamp": 0, "input_length": 100, "output_length": 5}\n'


def test_t8_malformed_json_names_line_and_column(refusal: Any) -> None:
    assert "t.jsonl:2:18: malformed JSON" in refusal(WHOLE + BROKEN)
    assert "t.jsonl:1:18: malformed JSON" in refusal(BROKEN + WHOLE)


@pytest.mark.parametrize(
    ("text", "first"), [(WHOLE + BROKEN + WHOLE + BROKEN, 2), (BROKEN + BROKEN + WHOLE + WHOLE, 1)]
)
def test_t8_bad_rows_are_skipped_on_request_and_counted(read: Any, text: str, first: int) -> None:
    trace = read(text, skip_bad_rows=True)
    assert len(trace) == 2
    assert trace.skipped_rows == 2
    (warning,) = trace.warnings
    assert warning.startswith("2 bad rows left out, the first: ")
    assert f":{first}:18: malformed JSON" in warning


def test_t8_rows_of_no_format_before_the_first_of_one_are_skipped_too(read: Any, refusal: Any) -> None:
    assert read('{"when": 1}\n' + WHOLE, skip_bad_rows=True).skipped_rows == 1
    message = refusal('{"when": 1}\n{"when": 2}\n', skip_bad_rows=True)
    assert "2 rows bad" in message
    assert "no known trace format has the fields 'when'" in message


def test_t8_a_skipped_row_does_not_rename_the_others(read: Any) -> None:
    trace = read(WHOLE + BROKEN + WHOLE + WHOLE.replace("100", "0") + WHOLE, skip_bad_rows=True)
    assert trace.table["request_id"].to_list() == ["r0", "r2", "r4"]


def test_t8_skipping_every_row_is_refused(refusal: Any) -> None:
    assert "no request is left (1 row bad" in refusal(BROKEN, skip_bad_rows=True)


# T9: ids


def test_t9_an_id_that_is_there_twice_names_both_lines(refusal: Any) -> None:
    message = refusal([mooncake(request_id=name) for name in ("a", "b", "a")])
    assert "t.jsonl:3: request id 'a' was given at " in message
    assert "t.jsonl:1 already" in message


def test_t9_an_id_that_is_in_two_shards_names_both(write: Any) -> None:
    shards = [write([mooncake(id="a")], "one.jsonl"), write([mooncake(id="a")], "two.jsonl")]
    with pytest.raises(TraceError, match=r"two\.jsonl:1: request id 'a' .*one\.jsonl:1 already"):
        read_trace(shards)


# T10: how files come

PLAIN = AZURE + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
ROWS = [("r0", 0.0, 4808, 10), ("r1", 0.052, 3180, 8)]
COLUMNS = ("request_id", "arrival_s", "prompt_tokens", "output_tokens")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bom.csv", b"\xef\xbb\xbf" + PLAIN.encode()),
        ("crlf.csv", PLAIN.replace("\n", "\r\n").encode()),
        ("no-end.csv", PLAIN.rstrip("\n").encode()),
        ("all.csv", b"\xef\xbb\xbf" + PLAIN.replace("\n", "\r\n\r\n").rstrip().encode()),
        ("blank.csv", ("\n\n" + PLAIN.replace("\n", "\n  \n")).encode()),
        (
            "quotes.csv",
            b'"TIMESTAMP","ContextTokens","GeneratedTokens"\n' + PLAIN.encode().split(b"\n", 1)[1],
        ),
        ("a.csv.gz", gzip.compress(PLAIN.encode(), mtime=0)),
        (
            "two-members.csv.gz",
            gzip.compress(PLAIN[:60].encode(), mtime=0) + gzip.compress(PLAIN[60:].encode(), mtime=0),
        ),
        ("a.csv.zst", zstandard.compress(PLAIN.encode())),
        (
            "two-frames.csv.zst",
            zstandard.compress(PLAIN[:60].encode()) + zstandard.compress(PLAIN[60:].encode()),
        ),
        ("no-suffix", gzip.compress(PLAIN.encode(), mtime=0)),
    ],
)
def test_t10_a_file_is_read_however_it_comes(read: Any, name: str, content: bytes) -> None:
    assert read(content, name).table.select(COLUMNS).rows() == ROWS


def test_t10_json_lines_are_read_with_a_mark_crlf_and_no_last_newline(read: Any) -> None:
    assert len(read("\ufeff" + (WHOLE * 2).replace("\n", "\r\n\r\n").rstrip())) == 2


def test_t10_shards_are_one_trace(write: Any) -> None:
    header, first, second = PLAIN.splitlines()
    shards = [
        write(f"{header}\n{first}", "1.csv"),
        write(gzip.compress(f"{header}\n{second}".encode(), mtime=0), "2.csv.gz"),
    ]
    trace = read_trace(shards)
    assert trace.table.select(COLUMNS).rows() == ROWS
    assert trace.table["source"].to_list() == [str(shard) for shard in shards]
    assert trace.sources == [str(shard) for shard in shards]


def test_t10_shards_of_two_formats_are_refused(write: Any) -> None:
    with pytest.raises(TraceError, match=r"a\.csv:2 is azure, but .*t\.jsonl is mooncake"):
        read_trace([write(WHOLE), write(PLAIN, "a.csv")])


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_t10_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch, pack: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pack(PLAIN.encode()))))
    trace = read_trace(["-"])
    assert trace.table.select(COLUMNS).rows() == ROWS
    assert trace.sources == ["<stdin>"]


# T11: nothing to work with


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (mooncake(input_length=0), "the prompt has 0 tokens; 1 or more is expected"),
        (mooncake(input_length="many"), "input_length is 'many'; a whole number of tokens is expected"),
        (mooncake(input_length="100"), "input_length is '100'; a whole number"),
        (mooncake(input_length=True), "input_length is True; a whole number"),
        (mooncake(input_length=10.5), "input_length is 10.5; a whole number"),
        (mooncake(input_length=-1), "input_length is -1; a number of tokens from 0"),
        (
            mooncake(input_length=2**31),
            "input_length is 2147483648; a number of tokens from 0 to 2,147,483,647",
        ),
        (mooncake(input_length=[1]), "input_length is [1]; a whole number"),
        (mooncake(output_length=1e300), "output_length is 1E+300; a number of tokens from 0"),
        (mooncake(timestamp=True), "timestamp is True; a number or a time"),
        (mooncake(timestamp="soon"), "timestamp is 'soon'; a number or a time"),
        (mooncake(timestamp=1e300), "timestamp is 1E+300; a time under"),
        (mooncake(hash_ids=5), "hash_ids is 5; a list of hashes is expected"),
        (mooncake(hash_ids=[True]), "hash_ids has True; whole numbers or strings"),
        (mooncake(hash_ids=[1.0]), "hash_ids has 1.0; whole numbers or strings"),
    ],
)
def test_t11_a_value_that_is_none_names_line_and_field(
    refusal: Any, row: dict[str, Any], problem: str
) -> None:
    assert f"t.jsonl:2: {problem}" in refusal([mooncake(), row])


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_t11_a_number_that_json_has_not_is_refused(refusal: Any, value: str) -> None:
    message = refusal(f'{{"timestamp": {value}, "input_length": 1, "output_length": 1}}\n')
    assert f"t.jsonl:1:15: {value} is no JSON number" in message


@pytest.mark.parametrize("value", ["nan", "inf", "1_000", "0x10", "", "٣"])
def test_t11_a_cell_that_is_no_number_is_refused(refusal: Any, value: str) -> None:
    message = refusal(AZURE + f"2023-11-16 18:17:03,{value},5\n", "a.csv")
    assert "a.csv:2: ContextTokens is " in message


@pytest.mark.parametrize("content", [b"", b"\n \n\r\n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_t11_an_empty_file_is_refused(refusal: Any, content: bytes) -> None:
    assert "the file is empty; a trace has one request or more" in refusal(content)


def test_t11_a_header_without_rows_is_refused(refusal: Any) -> None:
    assert "a header and no rows" in refusal(AZURE, "a.csv")


def test_t11_a_format_nobody_knows_says_what_was_found_and_what_there_is(refusal: Any) -> None:
    message = refusal("when,how_long\n1,2\n", "odd.csv")
    assert "odd.csv:1: no known trace format has the columns 'when', 'how_long'" in message
    assert "azure (ContextTokens + GeneratedTokens)" in message
    message = refusal([{"when": 1, "how_long": 2}])
    assert "t.jsonl:1: no known trace format has the fields 'when', 'how_long'" in message
    assert "mooncake (input_length or input_tokens + output_length or output_tokens)" in message
    assert "kvplan" in message


@pytest.mark.parametrize(
    "content", [b"\x00\x01\x02" * 100, b"PAR1\x15\x04\xff\xfe", b"hello\n", b"[]\n", b"[{}]\n", b"7\n"]
)
def test_t11_what_is_no_trace_at_all_is_refused(refusal: Any, content: bytes) -> None:
    assert "t.jsonl:1" in refusal(content)


def test_t11_a_name_that_is_no_format_is_refused(refusal: Any) -> None:
    assert "trace format 'mooncak' is not known; one of azure, bailian" in refusal(
        [mooncake()], format="mooncak"
    )


def test_t11_no_such_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="none: no such file"):
        read_trace([tmp_path / "none"])
    with pytest.raises(TraceError, match="is a directory"):
        read_trace([tmp_path])
