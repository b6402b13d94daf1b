"""Small traces of our own making, in kvplan's own format (`own.py`): the same seed gives the same rows."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from kvplan.traces.errors import TraceError

Range = tuple[int, int]


def synthesize(
    requests: int,
    seed: int,
    *,
    rate_per_s: float = 2.0,
    system_prompts: int = 2,
    system_tokens: int = 384,
    documents: int = 4,
    document_share: float = 0.5,
    document_tokens: Range = (256, 2048),
    own_tokens: Range = (16, 512),
    output_tokens: Range = (8, 256),
    max_new_tokens: int | None = None,
    turns: Range = (1, 1),
    think_s: float = 5.0,
) -> list[dict[str, Any]]:
    """Return `requests` rows of conversations that start at random, `rate_per_s` of them a second.

    A prompt is one of `system_prompts`, in `document_share` of the conversations one of `documents`, and
    the conversation so far: its first turn has `own_tokens` of text, each later one what came before (the
    answers as text of the conversation, not as the tokens generated) and `own_tokens` more. Conversations
    have `turns` turns; a later one comes a mean of `think_s` seconds after the end of the one before.
    Ranges are inclusive, and all values in them equally likely. `max_new_tokens` None: no budget is
    declared.

    Raises TraceError for a count or a range that no trace can have.
    """
    _check(requests, rate_per_s, system_prompts, max_new_tokens, output_tokens)
    for name, limits in (("document_tokens", document_tokens), ("own_tokens", own_tokens), ("turns", turns)):
        _check_range(name, limits)
    random = Random(seed)
    lengths = [random.randint(*document_tokens) for _ in range(documents)]
    rows: list[tuple[float, int, dict[str, Any]]] = []
    clock, chat = 0.0, 0
    while len(rows) < requests:
        clock = clock + random.expovariate(rate_per_s) if rows else 0.0
        shared = [_part(f"system-{random.randrange(system_prompts)}", system_tokens)]
        if documents and random.random() < document_share:
            document = random.randrange(documents)
            shared.append(_part(f"document-{document}", lengths[document]))
        moment, history = clock, 0
        for turn in range(random.randint(*turns)):
            history += random.randint(*own_tokens)
            answer = random.randint(*output_tokens)
            row: dict[str, Any] = {"id": f"{chat}.{turn}"}
            if turn:
                row["delay_s"] = round(random.expovariate(1 / think_s), 3) if think_s > 0 else 0.0
                moment += row["delay_s"] + think_s
            else:
                row["arrival_s"] = round(moment, 3)
            parts = [*shared, _part(f"chat-{chat}", history)]
            row |= {"prompt_tokens": sum(part["tokens"] for part in parts), "prefix": parts}
            row["output_tokens"] = answer
            if max_new_tokens is not None:
                row["max_new_tokens"] = max_new_tokens
            if turns[1] > 1:
                row["session_id"] = f"chat-{chat}"
            rows.append((moment, len(rows), row))
            history += answer
        chat += 1
    # By the time at which a turn is likely to be played: a cut then leaves the first turns of each.
    return [row for _, _, row in sorted(rows, key=lambda entry: entry[:2])[:requests]]


def to_jsonl(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as the text of a trace file."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def _part(name: str, tokens: int) -> dict[str, Any]:
    return {"id": name, "tokens": tokens}


def _check(requests: int, rate_per_s: float, system_prompts: int, budget: int | None, output: Range) -> None:
    if requests < 1:
        raise TraceError(f"requests {requests} is given; 1 or more is expected")
    if not 0 < rate_per_s < float("inf"):
        raise TraceError(f"rate_per_s {rate_per_s} is given; a finite number over 0 is expected")
    if system_prompts < 1:
        raise TraceError(f"system_prompts {system_prompts} is given; 1 or more is expected")
    _check_range("output_tokens", output)
    if budget is not None and budget < output[1]:
        raise TraceError(
            f"max_new_tokens {budget} is given; {output[1]}, the longest output, or more is expected"
        )


def _check_range(name: str, limits: Range) -> None:
    if not 1 <= limits[0] <= limits[1]:
        raise TraceError(f"{name} {limits} is given; two numbers from 1 up, the smaller first, are expected")
