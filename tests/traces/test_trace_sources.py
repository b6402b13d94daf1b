"""Sources that are damaged or are not what they seem: one sentence each."""

import gzip
import io
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.traces import Trace, TraceError, read_trace

ROW = b'{"timestamp": 0, "input_length": 100, "output_length": 5}\n'
NOISE = random.Random(0)
LONG = b"".join(
    b'{"timestamp": %d, "input_length": %d, "output_length": 5}\n' % (at, NOISE.randrange(1, 10**6))
    for at in range(5000)
)


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (zstandard.compress, ".zst")])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.9999])
def test_a_compressed_file_that_is_cut_short_is_refused(
    refusal: Any, pack: Any, suffix: str, share: float
) -> None:
    packed = pack(LONG)
    assert "damaged or cut short" in refusal(packed[: int(len(packed) * share)], f"t{suffix}")


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (zstandard.compress, ".zst")])
def test_a_compressed_file_with_wrong_bytes_is_refused(refusal: Any, pack: Any, suffix: str) -> None:
    packed = bytearray(pack(LONG))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = bytes(40)
    refusal(bytes(packed), f"t{suffix}")


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (zstandard.compress, ".zst")])
def test_damage_is_not_a_bad_row_to_skip(refusal: Any, pack: Any, suffix: str) -> None:
    assert "damaged or cut short" in refusal(pack(LONG)[:-50], f"t{suffix}", skip_bad_rows=True)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_file_that_is_not_compressed_as_its_name_says_is_refused(refusal: Any, suffix: str) -> None:
    assert f"does not begin as a {suffix} file does" in refusal(ROW, f"t{suffix}")


def test_bytes_that_are_not_utf8_name_line_and_column(refusal: Any, read: Any) -> None:
    bad = b'{"timestamp": 0, "x": "\xc3\xa9\xff", "input_length": 100, "output_length": 5}\n'
    assert "t.jsonl:2:25: byte 0xff is not UTF-8" in refusal(ROW + bad)
    assert "a.csv:1:3: byte 0xff is not UTF-8" in refusal(b"TI\xffMESTAMP,ContextTokens\n", "a.csv")
    assert read(ROW + bad, skip_bad_rows=True).skipped_rows == 1


def test_utf16_is_refused(refusal: Any) -> None:
    assert "is not UTF-8" in refusal(ROW.decode().encode("utf-16"))


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"a": ' * 100_000,
        b'{"a": ' + b"9" * 10_000 + b"}",
        b'{"a": "\\ud800"',
        b'{"a": 1} {"b": 2}',
        b"null",
        b"{",
    ],
)
def test_a_line_that_is_no_object_is_refused(refusal: Any, line: bytes) -> None:
    assert "t.jsonl:2:" in refusal(ROW + line + b"\n")


def test_standard_input_that_is_closed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(TraceError, match="<stdin> is closed"):
        read_trace(["-"])


def test_a_path_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(["a\x00b"])


def outcome(attempt: Callable[[], Trace]) -> tuple[Trace | None, str]:
    """Return the trace that is read, or why it is refused; any other error goes through."""
    try:
        return attempt(), ""
    except TraceError as error:
        return None, str(error)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(
                [
                    ROW.strip(),
                    b"TIMESTAMP,ContextTokens,GeneratedTokens",
                    b"2023-11-16 18:17:03,5,5",
                    b'"',
                    b",,,",
                ]
            ),
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_whatever_the_bytes_they_are_a_trace_or_one_sentence(
    monkeypatch: pytest.MonkeyPatch, lines: list[bytes], skip: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(lines))))
    trace, refusal = outcome(lambda: read_trace(["-"], skip_bad_rows=skip))
    assert "\n" not in refusal
    assert trace is None or len(trace) > 0


NUMBERS = st.one_of(
    st.integers(-5, 60),
    st.sampled_from([2**31, 2**63, 2**70]),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=4),
    st.lists(st.integers(), max_size=3),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "id",
                "arrival_s",
                "prompt",
                "prompt_tokens",
                "prefix",
                "output_tokens",
                "max_new_tokens",
                "session_id",
                "delay_s",
            ]
        ),
        st.one_of(NUMBERS, st.just(3), st.dictionaries(st.sampled_from(["id", "tokens"]), NUMBERS)),
    )
)
def test_whatever_the_values_they_are_a_trace_or_one_sentence(
    refusal: Any, read: Any, row: dict[str, Any]
) -> None:
    trace, refusal = outcome(lambda: read([row]))
    assert "\n" not in refusal
    assert trace is None or trace.table["prompt_tokens"][0] == len(trace.prompt(0)) > 0
    assert trace is None or trace.table["output_tokens"][0] > 0
