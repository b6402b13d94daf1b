"""A dead end in words: who waits for what, what keeps it so, and with what it does not come to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvplan.explain.cures import Cure
from kvplan.replay.dead_end import DeadEnd, Stuck
from kvplan.reports.columns import folded
from kvplan.reports.replay_units import counted, grouped
from kvplan.reports.retractions import STOPPED, effect

LABEL = 8
NAMED = 8


def dead_end_lines(dead_end: DeadEnd, width: int) -> list[str]:
    """The kind of dead end, and each request in it."""
    who = counted(len(dead_end.requests), "request")
    if dead_end.kind == "stall":
        text = (
            f"stall in round {grouped(dead_end.round)}: {who} wait, and nothing that is to come changes that"
        )
    else:
        first = dead_end.round - dead_end.period_rounds + 1
        text = (
            f"livelock: rounds {grouped(first)}..{grouped(dead_end.round)} again and again, since round "
            f"{grouped(dead_end.since_round)}; {who} left, none gains a token"
        )
    lines = folded("", text, width, 0)
    for stuck in dead_end.requests[:NAMED]:
        lines += folded("", f"{stuck.request_id}: {_why(stuck)}", width, 2)
    left = len(dead_end.requests) - NAMED
    return lines + (folded("", f"and {counted(left, 'more request')}", width, 2) if left > 0 else [])


def _why(stuck: Stuck) -> str:
    text = stuck.reason
    if stuck.retracted_for:
        others = ", ".join(name for name in stuck.retracted_for if name != stuck.request_id)
        text += f"; retracted for {others or 'its own next chunk'} each time round"
    if stuck.never_ends:
        text += "; it can never end: prompt and output are more than the pool admits of one request"
    return text


def cure_lines(
    cures: Sequence[Cure],
    width: int,
    time: Callable[[float], str],
    stopped: bool = False,
    workers: bool = False,
) -> list[str]:
    """With what the replay has no dead end; ``stopped``: as far as that was tried before Ctrl-C. ``workers``: it
    is one through prefill and decode workers."""
    if not cures and not stopped:
        more = ", more workers" if workers else ""
        tried = (
            f"of the pools up to 4 times as large{more}, smaller batches and declared budgets that were tried, none "
            "ends it"
        )
        return folded("", tried, width, 0)
    lines = [
        line
        for cure in cures
        for line in folded("try", f"{cure.flag}   no dead end, {effect(cure, time)}", width, LABEL)
    ]
    return lines + (folded("", STOPPED, width, LABEL) if stopped else [])
