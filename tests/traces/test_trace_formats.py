"""Each format, its aliases, and how it is recognised."""

from typing import Any

import pytest

from kvplan.traces import FORMAT_NAMES, TraceError, read_trace

BASIC = ["arrival_s", "prompt_tokens", "output_tokens"]


def basics(trace: Any) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = trace.table.select(BASIC).rows()
    return rows


# Mooncake and its variants


def test_mooncake_counts_milliseconds_and_512_tokens_a_hash(read: Any) -> None:
    rows = [
        {"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]},
        {"timestamp": 30535, "input_length": 600, "output_length": 26, "hash_ids": [46, 99]},
    ]
    trace = read(rows)
    assert trace.format == "mooncake"
    assert trace.hash_tokens == 512
    assert basics(trace) == [(0.0, 600, 52), (3.053, 600, 26)]
    first, second = trace.prompt(0), trace.prompt(1)
    assert (first[:512] == second[:512]).all()
    assert not set(first[512:].tolist()) & set(second.tolist())


def test_mooncake_aliases_of_dynamo_are_read(read: Any) -> None:
    trace = read(
        [
            {"created_time": 5, "input_tokens": 7, "output_tokens": 3},
            {"created_time": 9, "input_tokens": 8, "output_tokens": 4},
        ]
    )
    assert trace.format == "mooncake"
    assert basics(trace) == [(0.0, 7, 3), (0.004, 8, 4)]


@pytest.mark.parametrize("format", ["mooncake", "dynamo", "aiperf", "Mooncake"])
def test_the_mooncake_format_goes_by_several_names(read: Any, format: str) -> None:
    assert read([{"timestamp": 5, "input_length": 7, "output_length": 3}], format=format).format == "mooncake"


@pytest.mark.parametrize(("name", "value"), [("delay", 1500), ("delay_ms", 1500), ("delay", 1500.0)])
def test_aiperf_turns_of_a_session_follow_each_other_after_a_delay(
    read: Any, name: str, value: float
) -> None:
    rows = [
        {"session_id": "a", "timestamp": 100, "input_length": 7, "output_length": 3},
        {"session_id": "b", "timestamp": 300, "input_length": 9, "output_length": 3},
        {"session_id": "a", name: value, "input_length": 8, "output_length": 3},
        {"session_id": "b", "input_length": 8, "output_length": 3},
    ]
    table = read(rows).table
    assert table["session_id"].to_list() == ["a", "b", "a", "b"]
    assert table["delay_s"].to_list() == [None, None, 1.5, 0.0]
    assert table["arrival_s"].to_list() == [0.0, 0.2, 0.2, 0.2]


def test_a_delay_is_in_the_unit_that_is_given_for_arrivals_and_delay_ms_is_not(read: Any) -> None:
    rows = [
        {"session_id": "a", "timestamp": 1, "input_length": 7, "output_length": 3},
        {"session_id": "a", "delay": 2, "input_length": 8, "output_length": 3},
        {"session_id": "a", "delay_ms": 2, "input_length": 8, "output_length": 3},
    ]
    assert read(rows, time_unit="s").table["delay_s"].to_list() == [None, 2.0, 0.002]


def test_the_tokens_of_a_hash_can_be_given(read: Any) -> None:
    trace = read(
        [{"timestamp": 0, "input_length": 33, "output_length": 3, "hash_ids": [4, 5, 6]}], hash_tokens=16
    )
    assert trace.hash_tokens == 16
    assert trace.prompt(0).tolist() == list(range(33))


def test_hash_tokens_for_a_format_without_hashes_are_refused(refusal: Any) -> None:
    message = refusal("num_prefill_tokens,num_decode_tokens\n5,5\n", "v.csv", hash_tokens=16)
    assert "hash_tokens 16 is given, but" in message
    assert "vidur, which has no hashes" in message


def test_hashes_may_be_strings_and_big_numbers(read: Any) -> None:
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": ["ab", 2**63 + 5]},
        {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": ["ab", 2**64]},
    ]
    trace = read(rows)
    assert (trace.prompt(0) == trace.prompt(1)).sum() == 512


def test_a_row_that_says_one_thing_twice_differently_is_refused(refusal: Any) -> None:
    message = refusal([{"timestamp": 0, "input_length": 5, "input_tokens": 6, "output_length": 1}])
    assert "t.jsonl:1: input_length is 5 and input_tokens is 6; one of them is expected" in message


def test_a_missing_field_is_named(refusal: Any) -> None:
    rows = [{"timestamp": 0, "input_length": 5, "output_length": 1}, {"timestamp": 0, "input_length": 5}]
    assert "t.jsonl:2: output_length or output_tokens is missing" in refusal(rows)


# Qwen-Bailian


def bailian(chat: int, parent: int = -1, **fields: Any) -> dict[str, Any]:
    row = {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": 61.114,
        "input_length": 20,
        "output_length": 9,
    }
    return row | {"type": "text", "turn": 1, "hash_ids": [1, 2]} | fields


def test_bailian_counts_seconds_and_16_tokens_a_hash(read: Any) -> None:
    trace = read([bailian(159), bailian(160, timestamp=61.2145, hash_ids=[1, 3])])
    assert trace.format == "bailian"
    assert trace.hash_tokens == 16
    assert basics(trace) == [(0.0, 20, 9), (0.1005, 20, 9)]
    assert (trace.prompt(0) == trace.prompt(1)).tolist() == [True] * 16 + [False] * 4
    assert trace.table["request_id"].to_list() == ["159", "160"]


def test_bailian_chats_belong_to_the_session_of_their_first(read: Any) -> None:
    rows = [bailian(1), bailian(2, 1), bailian(3), bailian(4, 2), bailian(5, 77), bailian(6, 5)]
    table = read(rows).table
    assert table["session_id"].to_list() == ["1", "1", "3", "1", "77", "77"]
    assert table["delay_s"].to_list() == [None] * 6


def test_bailian_sessions_hold_over_a_turn_that_is_left_out(read: Any) -> None:
    rows = [bailian(1), bailian(2, 1, output_length=0), bailian(3, 2)]
    assert read(rows).table["session_id"].to_list() == ["1", "1"]


# CSV


def test_vidur_arrivals_are_seconds(read: Any) -> None:
    trace = read("arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,374,44\n4.814579,396,109\n", "v.csv")
    assert trace.format == "vidur"
    assert basics(trace) == [(0.0, 374, 44), (4.314579, 396, 109)]


def test_vidur_without_arrivals_comes_all_at_once_and_says_so(read: Any) -> None:
    text = ",num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n0,9,3,12,3.0\n1,8,4,12,2.0\n"
    trace = read(text, "v.csv")
    assert basics(trace) == [(0.0, 9, 3), (0.0, 8, 4)]
    assert trace.warnings == ["the trace has no arrival times: all requests arrive at 0 s"]


def test_whole_numbers_may_have_a_decimal_point_as_tables_write_them(read: Any) -> None:
    assert basics(read("num_prefill_tokens,num_decode_tokens\n374.0,44.0\n", "v.csv")) == [(0.0, 374, 44)]


def test_burstgpt_is_read_and_its_failed_calls_are_left_out(read: Any) -> None:
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n"
        "118,GPT-4,417,276,693,API log\n"
    )
    trace = read(text, "b.csv")
    assert trace.format == "burstgpt"
    assert basics(trace) == [(0.0, 472, 18), (113.0, 417, 276)]
    assert trace.zero_output_rows == 1


def test_columns_are_found_by_name_whatever_order_and_case(read: Any) -> None:
    text = "generatedtokens, extra, CONTEXTTOKENS ,Timestamp\n 10,x,4808 , 2023-11-16 18:17:03\n"
    assert basics(read(text, "a.csv")) == [(0.0, 4808, 10)]


def test_a_column_that_is_there_twice_is_refused(refusal: Any) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens\n"
    assert "a.csv:1: column 'ContextTokens' is there twice" in refusal(text, "a.csv")


@pytest.mark.parametrize("row", ["2023-11-16 18:17:03,100", "2023-11-16 18:17:03,100,5,6"])
def test_a_row_with_another_number_of_cells_is_refused(refusal: Any, row: str) -> None:
    message = refusal(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{row}\n", "a.csv")
    assert f"a.csv:2: the row has {row.count(',') + 1} cells; 3 expected" in message


def test_a_quote_that_does_not_close_is_named(refusal: Any) -> None:
    assert "v.csv:2: malformed CSV" in refusal('num_prefill_tokens,num_decode_tokens\n"5,5\n', "v.csv")


def test_a_quote_that_does_not_close_spoils_its_own_row_only(read: Any) -> None:
    text = 'num_prefill_tokens,num_decode_tokens\n"5,5\n6,6\n'
    trace = read(text, "v.csv", skip_bad_rows=True)
    assert (len(trace), trace.skipped_rows) == (1, 1)


def test_a_given_format_that_the_columns_are_not_of_is_refused(refusal: Any) -> None:
    message = refusal("num_prefill_tokens,num_decode_tokens\n5,5\n", "v.csv", format="azure")
    assert "not those of azure; ContextTokens + GeneratedTokens expected" in message


# LLMServingSim and SGLang: token ids


def test_llmservingsim_counts_nanoseconds_and_may_have_token_ids(read: Any) -> None:
    rows = [
        {
            "input_toks": 3,
            "output_toks": 2,
            "arrival_time_ns": 10**18 + 1,
            "input_tok_ids": [7, 8, 9],
            "output_tok_ids": [1, 2],
        },
        {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 10**18 + 250_000_002},
    ]
    trace = read(rows)
    assert trace.format == "llmservingsim"
    assert trace.has_prefixes
    assert basics(trace) == [(0.0, 3, 2), (0.250000001, 3, 2)]
    assert trace.prompt(0).tolist() == [7, 8, 9]
    assert trace.output(0).tolist() == [1, 2]
    assert not {7, 8, 9, 1, 2} & {*trace.prompt(1).tolist(), *trace.output(1).tolist()}


def test_llmservingsim_without_ids_has_no_prefixes(read: Any) -> None:
    assert not read([{"input_toks": 3, "output_toks": 2, "arrival_time_ns": 0}]).has_prefixes


def test_sglang_prompts_are_token_ids_and_times_milliseconds(read: Any) -> None:
    rows = [
        {"prompt": [1, 2, 3], "prompt_len": 3, "output_len": 2, "timestamp": 0},
        {"prompt": [1, 2, 5, 6], "prompt_len": 4, "output_len": 2, "timestamp": 1500},
    ]
    trace = read(rows)
    assert trace.format == "sglang"
    assert basics(trace) == [(0.0, 3, 2), (1.5, 4, 2)]
    assert trace.prompt(1).tolist() == [1, 2, 5, 6]
    assert trace.has_prefixes


def test_a_length_that_its_token_ids_contradict_is_refused(refusal: Any) -> None:
    message = refusal([{"prompt": [1, 2, 3], "prompt_len": 4, "output_len": 2, "timestamp": 0}])
    assert "prompt_len is 4, but prompt has 3 token ids; both must agree" in message


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ("hello", "prompt is 'hello'; a list of token ids"),
        ([1, -2], "prompt has -2; token ids from 0"),
        ([1, 2**31], "prompt has 2147483648; token ids from 0 to 2,147,483,647"),
        ([1, True], "prompt has True; a list of whole numbers"),
        ([1, 2.0], "prompt has 2.0; a list of whole numbers"),
        ([1, None], "prompt has None; a list of whole numbers"),
        ([], "the prompt has 0 tokens"),
    ],
)
def test_token_ids_that_are_none_are_refused(refusal: Any, ids: Any, problem: str) -> None:
    assert problem in refusal([{"prompt": ids, "output_len": 2, "timestamp": 0}])


# kvplan's own


def own(**fields: Any) -> dict[str, Any]:
    return {"prompt_tokens": 10, "output_tokens": 4} | fields


def test_our_own_format_carries_everything(read: Any) -> None:
    rows = [
        own(id="a-1", arrival_s=0.25, prefix={"id": "system", "tokens": 6}, max_new_tokens=8, session_id="a"),
        own(id=7, arrival_s=1.5, prompt=list(range(10))),
        own(
            id="a-2",
            prompt_tokens=12,
            prefix=[{"id": "system", "tokens": 6}, {"id": "b", "tokens": 3}],
            session_id="a",
            delay_s=2.5,
        ),
        own(id="c", arrival_s=2.0, prefix=[]),
    ]
    trace = read(rows)
    assert trace.format == "kvplan"
    assert trace.has_prefixes
    assert trace.table.select("request_id", *BASIC, "max_new_tokens", "session_id", "delay_s").rows() == [
        ("a-1", 0.0, 10, 4, 8, "a", None),
        ("7", 1.25, 10, 4, None, None, None),
        ("a-2", 1.25, 12, 4, None, "a", 2.5),
        ("c", 1.75, 10, 4, None, None, None),
    ]
    assert (trace.prompt(0)[:6] == trace.prompt(2)[:6]).all()
    assert trace.prompt(1).tolist() == list(range(10))


def test_a_longer_part_of_a_name_goes_on_where_a_shorter_one_ends(read: Any) -> None:
    rows = [
        own(prefix={"id": "s", "tokens": 4}),
        own(prefix={"id": "s", "tokens": 7}),
        own(prefix={"id": "t", "tokens": 7}),
    ]
    trace = read(rows)
    short, long, other = (trace.prompt(row).tolist() for row in range(3))
    assert short[:4] == long[:4]
    assert not set(short[4:]) & set(long)
    assert not set(other) & {*short, *long}


def test_prompts_without_a_prefix_share_nothing_and_tell_nothing(read: Any) -> None:
    trace = read([own(), own()])
    assert not set(trace.prompt(0).tolist()) & set(trace.prompt(1).tolist())
    assert not trace.has_prefixes


def test_a_row_may_say_that_it_shares_nothing(read: Any) -> None:
    assert read([own(prefix=[])]).has_prefixes


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"max_new_token": 5},
            "field 'max_new_token' is not known to the kvplan format; max_new_tokens is the nearest",
        ),
        ({"zzz": 5}, "field 'zzz' is not known to the kvplan format; known are arrival_s, delay_s"),
        ({"max_new_tokens": 3}, "max_new_tokens is 3, less than the 4 tokens generated"),
        ({"prefix": {"id": "s", "tokens": 11}}, "prefix has 11 tokens, more than the prompt's 10"),
        ({"prefix": {"id": "s", "tokens": 0}}, "prefix 's' has 0 tokens; 1 or more is expected"),
        ({"prefix": {"id": "s"}}, "prefix has {'id': 's'}; {\"id\": name, \"tokens\": n} is expected"),
        ({"prefix": {"id": 5, "tokens": 1}}, "prefix has the id 5; a name"),
        ({"prefix": "s"}, "prefix is 's'; {\"id\""),
        ({"prefix": {"id": "s", "tokens": "5"}}, "prefix 's': tokens is '5'; a whole number"),
        ({"prompt": [1] * 10, "prefix": []}, "prefix and the prompt's token ids are both there"),
        ({"prompt": [1] * 9}, "prompt_tokens is 10, but prompt has 9 token ids"),
        ({"delay_s": 1.0}, "a delay without a session_id has no turn to follow"),
        ({"delay_s": -1.0, "session_id": "a"}, "delay_s is -1.0, a negative time"),
        ({"id": 1.5}, "id is 1.5; a name or a whole number"),
        ({"id": " "}, "id is ' '; a name or a whole number"),
        ({"id": True}, "id is True; a name or a whole number"),
    ],
)
def test_our_own_format_refuses_what_it_does_not_mean(
    refusal: Any, fields: dict[str, Any], problem: str
) -> None:
    assert f"t.jsonl:1: {problem}" in refusal([own(**fields)])


def test_all_rows_have_an_arrival_or_none(refusal: Any, read: Any) -> None:
    assert "t.jsonl:2: the row has no arrival time" in refusal([own(arrival_s=1), own()])
    assert "t.jsonl:2: the row has an arrival time, those before it have none" in refusal(
        [own(), own(arrival_s=1)]
    )
    assert read([own(), own()]).table["arrival_s"].to_list() == [0.0, 0.0]


def test_numbers_and_clocks_do_not_mix(refusal: Any) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,5\n7,5,5\n"
    assert "a.csv:3: the arrival is a number, those before it are a wall clock" in refusal(text, "a.csv")


def test_a_delay_before_which_there_is_no_turn_is_left_out_with_a_warning(read: Any) -> None:
    trace = read([own(arrival_s=0, session_id="a", delay_s=3), own(session_id="a", delay_s=4)])
    assert trace.table["delay_s"].to_list() == [None, 4.0]
    (warning,) = trace.warnings
    assert "1 first turn of a session with a delay and no turn before" in warning


@pytest.mark.parametrize("format", FORMAT_NAMES)
def test_a_given_format_is_the_one_that_content_tells(write: Any, format: str) -> None:
    samples: dict[str, Any] = {
        "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,5\n",
        "bailian": [bailian(1)],
        "burstgpt": "Timestamp,Request tokens,Response tokens\n1,5,5\n",
        "kvplan": [own()],
        "llmservingsim": [{"input_toks": 3, "output_toks": 2, "arrival_time_ns": 0}],
        "mooncake": [{"timestamp": 5, "input_length": 7, "output_length": 3}],
        "sglang": [{"prompt": [1], "output_len": 2, "timestamp": 0}],
        "vidur": "num_prefill_tokens,num_decode_tokens\n5,5\n",
    }
    path = write(samples[format], "sample")
    assert read_trace([path]).format == read_trace([path], format=format).format == format


def test_no_file_an_empty_name_and_the_same_file_twice_are_refused(write: Any) -> None:
    path = write([own()])
    for paths, problem in (
        ([], "no trace file"),
        ([""], "name of a trace file is empty"),
        ([path, path], "given twice"),
    ):
        with pytest.raises(TraceError, match=problem):
            read_trace(paths)


def test_one_path_is_as_good_as_a_list_of_one(write: Any) -> None:
    assert len(read_trace(write([own()]))) == 1
