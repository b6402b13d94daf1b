"""The formats that kvplan reads, as a table of names, and how one is found by what a file holds."""

from collections.abc import Collection
from typing import Final

from kvplan.traces.errors import TraceError
from kvplan.traces.format import Format
from kvplan.traces.own import OWN

# The most particular first: a Bailian row has all that a Mooncake row needs.
FORMATS: Final = (
    Format(
        name="bailian",  # Qwen-Bailian
        kind="jsonl",
        time_unit="s",
        marks=("chat_id",),
        request_id=("chat_id",),
        parent_id=("parent_chat_id",),
        arrival=("timestamp",),
        prompt_tokens=("input_length",),
        output_tokens=("output_length",),
        hash_ids=("hash_ids",),
        hash_tokens=16,
    ),
    Format(
        name="mooncake",  # and what Dynamo and aiperf made of it
        kind="jsonl",
        time_unit="ms",
        arrival=("timestamp", "created_time"),
        prompt_tokens=("input_length", "input_tokens"),
        output_tokens=("output_length", "output_tokens"),
        hash_ids=("hash_ids",),
        hash_tokens=512,
        delays={"delay": None, "delay_ms": "ms"},
    ),
    Format(
        name="llmservingsim",
        kind="jsonl",
        time_unit="ns",
        arrival=("arrival_time_ns",),
        prompt_tokens=("input_toks",),
        prompt_ids=("input_tok_ids",),
        output_tokens=("output_toks",),
        output_ids=("output_tok_ids",),
    ),
    Format(
        name="sglang",
        kind="jsonl",
        time_unit="ms",
        marks=("output_len",),
        arrival=("timestamp",),
        prompt_tokens=("prompt_len",),
        prompt_ids=("prompt",),
        output_tokens=("output_len",),
    ),
    OWN,
    Format(
        name="azure",
        kind="csv",
        time_unit="s",
        arrival=("TIMESTAMP",),
        prompt_tokens=("ContextTokens",),
        output_tokens=("GeneratedTokens",),
    ),
    Format(
        name="burstgpt",
        kind="csv",
        time_unit="s",
        arrival=("Timestamp",),
        prompt_tokens=("Request tokens",),
        output_tokens=("Response tokens",),
        session_id=("Session ID",),
    ),
    Format(
        name="vidur",
        kind="csv",
        time_unit="s",
        arrival=("arrived_at",),
        prompt_tokens=("num_prefill_tokens",),
        output_tokens=("num_decode_tokens",),
    ),
)
SPELLINGS: Final = {
    "aiperf": "mooncake",
    "dynamo": "mooncake",
    "own": "kvplan",
    "qwen": "bailian",
    "qwen-bailian": "bailian",
    "splitwise": "vidur",
}
NAMES: Final = tuple(sorted(entry.name for entry in FORMATS))


def format_named(name: str) -> Format:
    """Return the format called `name`, whatever its case; raises TraceError when there is none."""
    wanted = SPELLINGS.get(name.lower(), name.lower())
    for entry in FORMATS:
        if entry.name == wanted:
            return entry
    raise TraceError(f"trace format {name!r} is not known; one of {', '.join(NAMES)} is expected")


def format_of(kind: str, names: Collection[str]) -> Format | None:
    """Return the format of a row with these fields or a header with these columns, or None."""
    return next((entry for entry in FORMATS if entry.kind == kind and entry.matches(names)), None)


def unknown_format(place: str, kind: str, names: Collection[str]) -> TraceError:
    """Return the error for fields or columns that no format has."""
    word = "fields" if kind == "jsonl" else "columns"
    few = [repr(name if len(name) <= 32 else f"{name[:31]}…") for name in list(names)[:16]]
    more = f" and {len(names) - len(few)} more" if len(names) > len(few) else ""
    known = "; ".join(f"{entry.name} ({entry.needs})" for entry in FORMATS if entry.kind == kind)
    other = ", ".join(entry.name for entry in FORMATS if entry.kind != kind)
    return TraceError(
        f"{place}: no known trace format has the {word} {', '.join(few) or 'of an empty row'}{more}; "
        f"expected is {known}; or, as {'CSV' if kind == 'jsonl' else 'JSON Lines'}, {other}"
    )
