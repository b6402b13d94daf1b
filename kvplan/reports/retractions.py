"""The retractions of a run: a table, storms and what to do about them, for people; JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from rich.text import Text

from kvplan.explain.cures import Cure
from kvplan.explain.retractions import RetractionRow, Storm, Story
from kvplan.reports.columns import Column, folded, table
from kvplan.reports.replay_units import counted, duration, grouped, percent, rounds_time, tokens

LABEL = 8
ROWS = 20
VICTIMS = 5
STORMS = 5
NAMED = 4
STOPPED = "the search for what spares it was stopped by Ctrl-C: the rest was not tried"
Time = Callable[[float], str]


def retractions_json(
    story: Story, cures: Sequence[Cure], tried: bool, stopped: bool = False, unfinished: bool = False
) -> str:
    """Everything, names as in the dataclasses; ``tried``: whether cures were looked for, ``stopped`` if
    by Ctrl-C not to the end; ``unfinished``: the run is."""
    value = {
        **msgspec.to_builtins(story),
        "unfinished": unfinished,
        "cures_tried": tried,
        "cures_stopped": stopped,
        "cures": cures,
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def retractions_text(
    story: Story,
    cures: Sequence[Cure],
    tried: bool,
    width: int,
    lockstep: bool = False,
    everything: bool = False,
    stopped: bool = False,
    warning: str | None = None,
) -> Text:
    """The story at ``width`` columns; ``everything``: all rows of its tables; ``stopped``: Ctrl-C ended the
    search for cures; ``warning`` is about the run."""
    time: Time = rounds_time if lockstep else duration
    lines = []
    if not story.rows:
        lines = folded("RESULT", "no retraction", width, LABEL)
    else:
        lines += _rows(story, width, time, everything)
        lines += _victims(story, width, time, everything)
        lines += _storms(story.storms, width, time, everything)
        lines += ["", *_result(story, width, time)]
        for cure in cures:
            lines += folded("try", f"{cure.flag}   {effect(cure, time)}", width, LABEL)
        if stopped:
            lines += folded("", STOPPED, width, LABEL)
        elif tried and not cures:
            lines += folded(
                "",
                "of the pools up to 4 times as large, smaller batches and declared budgets that were tried, none "
                "halves them",
                width,
                LABEL,
            )
    lines += folded("warning", warning, width, LABEL) if warning else []
    text = Text(overflow="ignore", no_wrap=True)
    for line in lines:
        style = {"RESULT": "bold", "try": "cyan", "storm": "yellow"}.get(line.split(" ", 1)[0], "")
        text.append(line + "\n", style=style)
    return text


def _rows(story: Story, width: int, time: Time, everything: bool) -> list[str]:
    rows = story.rows if everything else story.rows[:ROWS]

    def of(value: int | None) -> str:
        return "–" if value is None else grouped(value)

    columns = [
        Column("round", [grouped(row.round) for row in rows], right=True),
        Column("time", [time(row.time_s) for row in rows], right=True, drop=4),
        Column("victim", [row.request_id for row in rows]),
        Column("state", [row.state for row in rows], drop=3),
        Column("for", [row.granted or row.for_request or "the runtime" for row in rows]),
        Column("dropped", [grouped(row.dropped) for row in rows], right=True),
        Column("back", [_back(row) for row in rows], right=True, drop=2),
        Column("again", [of(row.again) for row in rows], right=True),
        Column("waited", ["–" if row.waited_s is None else time(row.waited_s) for row in rows], right=True),
        Column(
            "headroom",
            [f"{of(row.headroom_before)} → {of(row.headroom_after)}" for row in rows],
            right=True,
            drop=1,
        ),
    ]
    lines = table(columns, width)
    note = (
        "dropped, back (from cache + from the host), again (computed again before the next one) and headroom in "
        "tokens; – not readmitted"
    )
    lines += folded("", note, width, 0)
    left = len(story.rows) - len(rows)
    return lines + (folded("", f"and {grouped(left)} more (--all)", width, 0) if left else [])


def _back(row: RetractionRow) -> str:
    if row.from_cache is None:
        return "–"
    return grouped(row.from_cache) + (f" + {grouped(row.from_host)}" if row.from_host else "")


def _victims(story: Story, width: int, time: Time, everything: bool) -> list[str]:
    rows = story.victims if everything else story.victims[:VICTIMS]
    columns = [
        Column("request", [row.request_id for row in rows]),
        Column("retractions", [grouped(row.retractions) for row in rows], right=True),
        Column("dropped", [grouped(row.dropped) for row in rows], right=True, drop=1),
        Column("again", [grouped(row.again) for row in rows], right=True),
        Column("waited", [time(row.waited_s) for row in rows], right=True),
        Column(
            "declares",
            [grouped(row.max_new_tokens) if row.max_new_tokens else "–" for row in rows],
            right=True,
        ),
    ]
    left = len(story.victims) - len(rows)
    more = folded("", f"and {counted(left, 'more request')} (--all)", width, 0) if left else []
    return ["", *table(columns, width), *more]


def _storms(storms: Sequence[Storm], width: int, time: Time, everything: bool) -> list[str]:
    """The storms that cost most, in the order in which they came."""
    costly = sorted(range(len(storms)), key=lambda at: -storms[at].again)
    shown = sorted(costly if everything else costly[:STORMS])
    lines = [line for at in shown for line in _storm(at + 1, storms[at], width, time)]
    left = len(storms) - len(shown)
    return lines + (
        ["", *folded("", f"and {counted(left, 'storm')} that cost less (--all)", width, 0)] if left else []
    )


def _storm(number: int, storm: Storm, width: int, time: Time) -> list[str]:
    text = (
        f"{number}: rounds {grouped(storm.first_round)}..{grouped(storm.last_round)}, {time(storm.start_s)} to "
        f"{time(storm.end_s)}: {counted(storm.retractions, 'retraction')} of {counted(storm.requests, 'request')}, "
        f"{tokens(storm.again)} tokens computed again"
    )
    lines = ["", *folded("storm", text, width, LABEL)]
    for ring in storm.cycles:
        names = " ⇄ ".join(ring[:NAMED]) + (
            f" and {grouped(len(ring) - NAMED)} more" if len(ring) > NAMED else ""
        )
        lines += folded("  cycle", f"{names} evict each other", width, LABEL)
    for why in _why(storm):
        lines += folded("  why", why, width, LABEL)
    return lines


def _why(storm: Storm) -> list[str]:
    said = []
    if storm.undeclared:
        said.append(
            f"{counted(storm.undeclared, 'victim')} without a declared max_new_tokens: their admissions hold no "
            "room for the rest of a prompt and for its output, so what is admitted outgrows the pool"
        )
    if storm.partly_covered:
        said.append(
            f"{counted(storm.partly_covered, 'victim')} with a max_new_tokens above what the admission secured, "
            "so they outgrow it"
        )
    if storm.by_runtime:
        said.append(
            f"{counted(storm.by_runtime, 'retraction')} came from the runtime, not from a lack of pages"
        )
    return said


def _result(story: Story, width: int, time: Time) -> list[str]:
    first, last = story.rows[0], story.rows[-1]
    text = (
        f"{counted(len(story.rows), 'retraction')} of {counted(len(story.victims), 'request')}, "
        f"{time(first.time_s)} to {time(last.time_s)}; {tokens(story.recomputed_tokens)} tokens computed again "
        f"({percent(story.recomputed_share)} of all prefill)"
    )
    if story.storms:
        text += f"; {counted(len(story.storms), 'storm')}"
    return folded("RESULT", text, width, LABEL)


def effect(cure: Cure, time: Time) -> str:
    """What came of the replay with a cure."""
    text = (
        f"{counted(cure.retractions, 'retraction')} instead (replayed): {counted(cure.finished, 'request')} "
    )
    text += f"finished in {time(cure.duration_s)}"
    if cure.first_token_p50_s is not None:
        text += f", first token p50 {time(cure.first_token_p50_s)}"
    if cure.never_fit:
        text += f", {grouped(cure.never_fit)} never fit"
    return f"{text}; {cure.what}"
