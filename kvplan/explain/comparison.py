"""Two runs side by side: what they were given, what came of it, and the first round where their plans part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kvplan.explain.explanation import RoundExplanation, explain_next
from kvplan.explain.history import entries, evictions, session_before
from kvplan.explain.record import Record, first_parting
from kvplan.replay.run import RunSummary
from kvplan.replay.store import RunError
from kvplan.scheduler.journal import Attempt

Value = int | float | str | bool | None


@dataclass(frozen=True, slots=True)
class Pair:
    """A figure or a setting of both runs, by its path in ``run.json``."""

    name: str
    first: Value
    second: Value


@dataclass(frozen=True, slots=True)
class Turn:
    """A request's turn in a round: its attempt, or why it was not tried; neither: it had no turn."""

    attempt: Attempt | None
    reason: str
    by: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A request that the two plans treat differently."""

    request_id: str
    first: Turn
    second: Turn


@dataclass(frozen=True, slots=True)
class Parting:
    """The first round in which the plans differ, as each run made it, and whom it treats differently.

    ``untold``: why a run cannot be gone back to, so that neither is explained; ``differences`` are empty then.
    """

    round: int
    first: RoundExplanation | None
    second: RoundExplanation | None
    differences: list[Difference]
    untold: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs. ``parting`` is None where every round that both have is the same, ``same_rounds`` many.

    Runs of different traces are compared by their figures alone (``same_rounds`` None).
    """

    same_trace: bool
    settings: list[Pair]
    figures: list[Pair]
    same_rounds: int | None
    ends_first: str | None
    parting: Parting | None


def compare(first: Record, second: Record) -> Comparison:
    """Compare two runs. Raises ``RunError`` when one cannot be read."""
    a, b = first.summary, second.summary
    same_trace = a.trace.fingerprint == b.trace.fingerprint
    same: int | None = None
    parting, ends_first = None, None
    if same_trace:
        same, parted = _same_rounds(first, second)
        if parted is not None:
            parting = _parting(first, second, parted)
        else:
            lengths = [len(run.table("plans")) for run in (first, second)]
            if lengths[0] != lengths[1]:
                ends_first = str((first if lengths[0] < lengths[1] else second).directory)
    return Comparison(
        same_trace=same_trace,
        settings=[pair for pair in _pairs(_settings(a), _settings(b)) if pair.first != pair.second],
        figures=list(_pairs(msgspec.to_builtins(a.figures), msgspec.to_builtins(b.figures))),
        same_rounds=same,
        ends_first=ends_first,
        parting=parting,
    )


def _settings(summary: RunSummary) -> dict[str, Any]:
    """What a run was given."""
    given = {
        "ending": summary.ending,
        "trace": summary.trace.fingerprint[:12],
        "config": summary.config,
        "assumptions": summary.assumptions,
    }
    built: dict[str, Any] = msgspec.to_builtins(given)
    return built


def _pairs(first: Any, second: Any, name: str = "") -> Iterator[Pair]:
    """The plain values of two structures of the same shape, by path; lists of figures over time left out."""
    if isinstance(first, Mapping) or isinstance(second, Mapping):
        left, right = first or {}, second or {}
        for key in [*left, *(key for key in right if key not in left)]:
            yield from _pairs(left.get(key), right.get(key), f"{name}.{key}" if name else str(key))
    elif isinstance(first, list) or isinstance(second, list):
        left, right = first or [], second or []
        if any(isinstance(item, Mapping) for item in (*left, *right)) and name.endswith("cache_groups"):
            for at in range(max(len(left), len(right))):
                ours = left[at] if at < len(left) else None
                theirs = right[at] if at < len(right) else None
                yield from _pairs(ours, theirs, f"{name}[{at}]")
    else:
        yield Pair(name, first, second)


def _same_rounds(first: Record, second: Record) -> tuple[int, int | None]:
    """How many rounds are the same from the beginning on, and the first one that is not (None: none)."""
    ours, theirs = first.table("plans"), second.table("plans")
    parted = first_parting(ours, theirs)
    same = min(len(ours), len(theirs)) if parted is None else int((ours["round"] < parted).sum())
    return same, parted


def _parting(first: Record, second: Record, round_index: int) -> Parting:
    told = []
    for record in (first, second):
        try:
            session = session_before(record, round_index)
        except RunError as error:
            return Parting(round_index, None, None, [], str(error))
        told.append(explain_next(session, detailed=0, eviction_of=evictions(record), entered=entries(record)))
    ours, theirs = _turns(told[0]), _turns(told[1])
    none = Turn(None, "", None)
    differences = [
        Difference(name, ours.get(name, none), theirs.get(name, none))
        for name in dict.fromkeys([*ours, *theirs])
        if _plan_of(ours.get(name, none)) != _plan_of(theirs.get(name, none))
    ]
    return Parting(round_index, told[0], told[1], differences)


def _turns(explanation: RoundExplanation) -> dict[str, Turn]:
    """Each request's last turn in a round."""
    turns: dict[str, Turn] = {}
    for phase in explanation.phases:
        for held in phase.held:
            for name in held.request_ids:
                turns.setdefault(name, Turn(None, held.reason, held.by))
        for attempt in phase.attempts:
            turns[attempt.request_id] = Turn(attempt, "", None)
    return turns


def _plan_of(turn: Turn) -> tuple[object, ...]:
    """What of a turn the plan shows: whether the request is in it, and with which tokens."""
    attempt = turn.attempt
    if attempt is None or attempt.outcome not in ("scheduled", "incomplete"):
        return ()
    return attempt.kind, attempt.cut and (attempt.cut.first, attempt.cut.tokens)
