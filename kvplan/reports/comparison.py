"""Two runs side by side: a table of what matters for people, everything as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from rich.text import Text

from kvplan.explain.comparison import Comparison, Pair, Parting, Turn, Value
from kvplan.reports import attempts
from kvplan.reports.columns import Column, folded, table
from kvplan.reports.replay_units import counted, digits, duration, grouped, percent, rounds_time

LABEL = 8
NAMED = 5
Show = Callable[[float], str]

COUNT, TIME, SHARE, BLOCKS = "count", "time", "share", "blocks"
SHOWN = (
    ("requests.finished", "finished", COUNT),
    ("requests.never_fit", "never fit", COUNT),
    ("requests.unfinished", "unfinished", COUNT),
    ("duration_s", "duration", TIME),
    ("output_tokens_per_s", "output tokens/s", BLOCKS),
    ("tokens.prompt_computed", "prompt tokens computed", COUNT),
    ("tokens.prompt_from_cache", "prompt tokens from cache", COUNT),
    ("tokens.cache_rate", "cache rate", SHARE),
    ("tokens.computed_again", "tokens computed again", COUNT),
    ("retractions.count", "retractions", COUNT),
    ("latency.first_token_s.p50", "first token p50", TIME),
    ("latency.first_token_s.p99", "first token p99", TIME),
    ("latency.per_output_token_s.p50", "per token p50", TIME),
    ("latency.per_output_token_s.p99", "per token p99", TIME),
    ("latency.end_to_end_s.p50", "whole p50", TIME),
    ("latency.end_to_end_s.p99", "whole p99", TIME),
    ("pool.peak_held", "peak blocks held", COUNT),
    ("pool.mean_held", "mean blocks held", BLOCKS),
    ("queue.max", "queue, most", COUNT),
    ("rounds.total", "rounds", COUNT),
)


def comparison_json(comparison: Comparison) -> str:
    """Everything, names as in the dataclasses and in ``run.json``."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=2).decode() + "\n"


def comparison_text(
    comparison: Comparison, names: tuple[str, str], width: int, lockstep: bool = False
) -> Text:
    """The comparison at ``width`` columns; ``names`` are those of the runs."""
    lines = [*_settings(comparison, names, width), "", *_figures(comparison, names, width, lockstep), ""]
    lines += _parting(comparison, names, width)
    text = Text(overflow="ignore", no_wrap=True)
    for line in lines:
        text.append(line + "\n", style="bold" if line.startswith("RESULT") else "")
    return text


def _settings(comparison: Comparison, names: tuple[str, str], width: int) -> list[str]:
    rows = comparison.settings
    if not rows:
        return folded("", "both runs were given the same", width, 0)
    return table(
        [
            Column("given", [row.name for row in rows]),
            Column(names[0], [_plain(row.first) for row in rows], right=True),
            Column(names[1], [_plain(row.second) for row in rows], right=True),
        ],
        width,
    )


def _figures(comparison: Comparison, names: tuple[str, str], width: int, lockstep: bool) -> list[str]:
    by_name = {pair.name: pair for pair in comparison.figures}
    show: dict[str, Show] = {
        COUNT: lambda value: grouped(int(value)),
        TIME: rounds_time if lockstep else duration,
        SHARE: percent,
        BLOCKS: digits,
    }
    rows: list[tuple[str, Pair, Show]] = []
    for path, title, kind in SHOWN:
        pair = by_name.get(path)
        if pair is not None and (pair.first or pair.second):
            rows.append((title, pair, show[kind]))

    def cell(value: Value, how: Show) -> str:
        return how(value) if isinstance(value, int | float) else "–"

    return table(
        [
            Column("", [title for title, _, _ in rows]),
            Column(names[0], [cell(pair.first, how) for _, pair, how in rows], right=True),
            Column(names[1], [cell(pair.second, how) for _, pair, how in rows], right=True),
            Column("change", [_change(pair) for _, pair, _ in rows], right=True, drop=1),
        ],
        width,
    )


def _change(pair: Pair) -> str:
    first, second = pair.first, pair.second
    if not isinstance(first, int | float) or not isinstance(second, int | float) or not first:
        return ""
    if first == second:
        return "="
    return f"{100 * (second - first) / abs(first):+,.1f} %"


def _parting(comparison: Comparison, names: tuple[str, str], width: int) -> list[str]:
    parting = comparison.parting
    if not comparison.same_trace:
        return folded(
            "RESULT", "the runs are of different traces: their plans are not compared", width, LABEL
        )
    if parting is None:
        text = f"every plan is the same, {counted(comparison.same_rounds or 0, 'round')}"
        if comparison.ends_first:
            text += f"; {comparison.ends_first} ends first"
        return folded("RESULT", text, width, LABEL)
    lines = _told(parting, names, width)
    same = counted(comparison.same_rounds or 0, "round")
    text = f"plans part in round {grouped(parting.round)}, after {same} that are the same"
    first = parting.differences[0] if parting.differences else None
    if first is not None:
        text += f": {first.request_id}"
    if parting.untold is None:
        text += f"   (kvplan explain-round {names[0]} --round {parting.round})"
    return [*lines, *folded("RESULT", text, width, LABEL)]


def _told(parting: Parting, names: tuple[str, str], width: int) -> list[str]:
    """What each run did in the round in which they part."""
    if parting.first is None or parting.second is None:
        return folded("", f"it is not told why: {parting.untold}", width, 0)
    lines = []
    for difference in parting.differences[:NAMED]:
        lines += folded("", difference.request_id, width, 0)
        for name, turn in zip(names, (difference.first, difference.second), strict=True):
            lines += folded("", f"{name}: {_turn(turn)}", width, 2)
    left = len(parting.differences) - NAMED
    if left > 0:
        lines += folded("", f"and {counted(left, 'more request')}", width, 0)
    if not parting.differences:
        lines += folded("", "the same requests, in another order", width, 0)
    pools = " and ".join(
        f"{grouped(told.pool_before.free)} free + {grouped(told.pool_before.cached)} cached + "
        f"{grouped(told.pool_before.held)} held"
        for told in (parting.first, parting.second)
    )
    return lines + folded("", f"LCM blocks before it: {pools}", width, 0)


def _turn(turn: Turn) -> str:
    attempt = turn.attempt
    if attempt is None:
        if not turn.reason:
            return "has no turn: not there yet, done, or waiting for an answer"
        return f"not tried: {turn.reason}" + (f", {turn.by}" if turn.by else "")
    text = f"{attempts.chunk(attempt)}: {attempts.OUTCOMES.get(attempt.outcome, attempt.outcome)}"
    if attempt.outcome == "no_capacity":
        text += f", {attempts.shortage(attempt)}"
    if attempt.hit is not None and (attempt.hit.device or attempt.hit.host):
        text += f"; {attempts.hit(attempt.hit)}"
    return text


def _plain(value: Value) -> str:
    if value is None:
        return "–"
    return digits(value) if isinstance(value, float) else str(value)
