"""kvplan's own trace format: JSON Lines in UTF-8, one request a line, with everything a replay can use.

    {"id": "a-1", "arrival_s": 0.25, "prompt_tokens": 700, "output_tokens": 90,
     "prefix": [{"id": "system", "tokens": 512}, {"id": "manual", "tokens": 100}],
     "max_new_tokens": 256, "session_id": "a", "delay_s": 1.5}

(on one line). Rows are in arrival order. Any other field is refused; null is the same as absent.

`id`              string or integer, unique in the trace. Absent: the row's number, `r0` for the first.
`arrival_s`       seconds >= 0, never less than in the row before. Every row has it, or none (then all
                  requests arrive at 0), except that a later turn of a session may leave it out.
`prompt`          the prompt's token ids: a list of integers from 0 to 2^31 - 1. Excludes `prefix`.
`prompt_tokens`   the prompt's length in tokens, 1 to 2^31 - 1. One of `prompt` and `prompt_tokens` is needed;
                  with both, they must agree.
`prefix`          what the prompt begins with: `{"id": name, "tokens": n}`, or a list of them in prompt
                  order, together at most `prompt_tokens`. A name stands for an endless text and a part takes
                  its first n tokens: prompts that begin with 512 and with 700 tokens of "system" have 512 in
                  common. What follows the prefix is text that no other prompt has. `[]` says that the prompt
                  shares nothing.
`output_tokens`   tokens generated, 0 to 2^31 - 1. Needed. A request with 0 is counted and left out.
`max_new_tokens`  the budget that the request declares to the scheduler, >= `output_tokens`. Absent: none.
`session_id`      string or integer: the conversation that this request is a turn of.
`delay_s`         seconds from the end of the session's previous turn to this request (a closed loop). A later
                  turn with neither `arrival_s` nor `delay_s` has a delay of 0.

A trace in which some row has `prompt` or `prefix` carries prefix information; without one, what a prefix
cache would find is unknown.
"""

from kvplan.traces.errors import shown
from kvplan.traces.fields import Fields
from kvplan.traces.format import Format

OWN = Format(
    name="kvplan",
    kind="jsonl",
    time_unit="s",
    request_id=("id",),
    arrival=("arrival_s",),
    prompt_ids=("prompt",),
    prompt_tokens=("prompt_tokens",),
    output_tokens=("output_tokens",),
    prefix="prefix",
    max_new_tokens=("max_new_tokens",),
    session_id=("session_id",),
    delays={"delay_s": "s"},
    closed=True,
)


def prefix_of(fields: Fields, name: str) -> list[tuple[str, int]] | None:
    """Return the (name, tokens) parts of the field `name`, or None when it is absent."""
    value = fields.get(name)
    if value is None:
        return None
    parts = [value] if isinstance(value, dict) else value
    if not isinstance(parts, list):
        raise fields.fault(
            f'{name} is {shown(value)}; {{"id": name, "tokens": n}} or a list of them is expected'
        )
    return [_part(fields, name, part) for part in parts]


def _part(fields: Fields, name: str, part: object) -> tuple[str, int]:
    if not isinstance(part, dict) or part.keys() != {"id", "tokens"}:
        raise fields.fault(f'{name} has {shown(part)}; {{"id": name, "tokens": n}} is expected')
    label, tokens = part["id"], part["tokens"]
    if not isinstance(label, str) or not label:
        raise fields.fault(f"{name} has the id {shown(label)}; a name of one letter or more is expected")
    length = fields.whole(f"{name} {label!r}: tokens", tokens)
    if length == 0:
        raise fields.fault(f"{name} {label!r} has 0 tokens; 1 or more is expected")
    return label, length
