"""What a replay plays: requests by row number, in the order of their arrival."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.replay.step_time import nanoseconds
from kvplan.traces import Trace

UNBOUNDED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Workload:
    """Columns of the requests, by row, and the token ids of each.

    `budgets` are the declared `max_new_tokens`, 0 = undeclared. `arrivals_ns` are when requests come; with
    a `delays_ns` that is not None, the request comes so long after the end of row `after` instead (the
    previous turn of its session, an earlier row). `prompt(row)` gives any int sequence or an int32 array,
    `output(row)` the ids of all tokens to generate. `prefix_bounds` are `max_cached_prefix_tokens`.
    """

    request_ids: Sequence[str]
    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]
    budgets: Sequence[int]
    arrivals_ns: Sequence[int]
    delays_ns: Sequence[int | None]
    after: Sequence[int | None]
    prompt: Callable[[int], "NDArray[np.int32] | Sequence[int]"]
    output: Callable[[int], list[int]]
    prefix_bounds: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.request_ids)


def parse_budget(text: str) -> str | int:
    """Return what `--max-new-tokens` says: "trace", "output", "none", or a number of tokens.

    Raises ValueError for anything else.
    """
    if text in ("trace", "output", "none"):
        return text
    if text.isascii() and text.isdigit() and 1 <= int(text) < 2**31:
        return int(text)
    raise ValueError(
        f"max-new-tokens {text!r} is given; trace, output, none or a number from 1 to 2147483647 is expected"
    )


def workload_of(trace: Trace, budget: str | int = "trace") -> Workload:
    """Return the requests of `trace`; `budget` says what each declares as its `max_new_tokens`.

    "trace": what the trace says, where it says something; "output": exactly what it generates; "none":
    nothing; a number: that many, or its output where that is longer.
    """
    table = trace.table
    outputs: list[int] = table["output_tokens"].to_list()
    declared: list[int | None] = table["max_new_tokens"].to_list()
    if budget == "output":
        budgets = list(outputs)
    elif budget == "none":
        budgets = [0] * len(outputs)
    elif isinstance(budget, int):
        budgets = [max(budget, output) for output in outputs]
    else:
        budgets = [given or 0 for given in declared]
    delays: list[Any] = table["delay_s"].to_list()
    sessions: list[str | None] = table["session_id"].to_list()
    return Workload(
        request_ids=table["request_id"].to_list(),
        prompt_tokens=table["prompt_tokens"].to_list(),
        output_tokens=outputs,
        budgets=budgets,
        arrivals_ns=[nanoseconds(at) for at in table["arrival_s"].to_list()],
        delays_ns=[None if delay is None else nanoseconds(delay) for delay in delays],
        after=_previous_turns(sessions, delays),
        prompt=trace.prompt,
        output=lambda row: trace.output(row).tolist(),
    )


def _previous_turns(sessions: Sequence[str | None], delays: Sequence[float | None]) -> list[int | None]:
    """Return, for each row with a delay, the row of its session's previous turn."""
    last: dict[str, int] = {}
    after: list[int | None] = []
    for row, (session, delay) in enumerate(zip(sessions, delays, strict=True)):
        after.append(None if delay is None or session is None else last.get(session))
        if session is not None:
            last[session] = row
    return after
