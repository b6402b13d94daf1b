"""Questions to what a run has logged: when, for whom, in which rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import polars as pl

from kvplan.explain.explanation import EvictionOf
from kvplan.explain.misses import short_key
from kvplan.explain.observer import DEVICE
from kvplan.replay.session import Session
from kvplan.replay.store import RunError

NEAR = 2_000
"""Rounds that are played on rather than from a state: half of those between two states."""


class Logged(Protocol):
    """What an engine has logged."""

    def table(self, name: str) -> pl.DataFrame:
        """rounds, events, evictions, admissions or requests."""

    @property
    def request_ids(self) -> Sequence[str]:
        """The trace's requests, by row."""


class Source(Logged, Protocol):
    """A run that can be asked: kept on disk, or just played."""

    def session_at(self, round_index: int) -> Session:
        """The session before a round; later if the round was skipped, earlier if the run ends before."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that was never submitted: it needs more than any empty pool could serve, in tokens."""

    request_id: str
    round: int
    needed_tokens: int
    limit_tokens: int


@dataclass(frozen=True, slots=True)
class Course:
    """A request's way through the run: times in seconds; None: that did not happen in what was played."""

    request_id: str
    arrived_round: int
    arrived_s: float
    admitted_round: int | None
    waited_s: float | None
    """Until the first admission."""
    retractions: int
    finished_round: int | None
    finished_s: float | None


def course_of(source: Logged, request_id: str) -> Course | None:
    """A request's way through the run; None if it has not arrived in what was played."""
    events = source.table("events").filter(pl.col("request_id") == request_id)
    first: dict[str, tuple[int, float]] = {}
    for event, at, time in events.select("event", "round", "time_s").iter_rows():
        first.setdefault(event, (at, time))
    if "arrived" not in first:
        return None
    arrived, admitted = first["arrived"], first.get("admitted")
    finished = first.get("finished")
    return Course(
        request_id=request_id,
        arrived_round=arrived[0],
        arrived_s=arrived[1],
        admitted_round=None if admitted is None else admitted[0],
        waited_s=None if admitted is None else admitted[1] - arrived[1],
        retractions=int((events["event"] == "retracted").sum()),
        finished_round=None if finished is None else finished[0],
        finished_s=None if finished is None else finished[1],
    )


def known_round(source: Logged, round_index: int) -> int:
    """The round, which is one that the run has. Raises ``RunError``, one sentence, if not."""
    rounds = source.table("rounds")["round"]
    first_unknown = int(rounds[-1]) + 1 if len(rounds) else 0
    if not first_unknown:
        raise RunError(f"round {round_index} is given; the run has no round yet")
    if not 0 <= round_index < first_unknown:
        raise RunError(f"round {round_index} is given; the run has rounds 0 to {first_unknown - 1}")
    return round_index


def session_before(source: Source, round_index: int) -> Session:
    """The session with ``round_index`` as the round that is played next.

    Raises ``RunError``, one sentence, for a round that the run does not have, or that it skipped.
    """
    rounds = source.table("rounds")["round"]
    known_round(source, round_index)
    session = source.session_at(round_index)
    if session.round != round_index:
        at = int(rounds.search_sorted(round_index))
        raise RunError(
            f"round {round_index} was not played: those after round {rounds[at - 1]} repeat the ones before "
            "it exactly, without a token; ask for one of these"
        )
    return session


def sessions_before(source: Source, rounds: Sequence[int]) -> Iterator[Session]:
    """For each of these rounds, in their order, the session with it as the round that is played next.

    A session that has been played past its round goes on where that is nearer than a state. Raises ``RunError``
    as ``session_before``.
    """
    played = set(source.table("rounds")["round"].to_list())
    session: Session | None = None
    for at in rounds:
        near = session is not None and at in played and 0 <= at - session.round < NEAR
        if near and session is not None and session.round < at:
            session.play(at)
        if session is None or session.round != at:
            session = session_before(source, at)
        yield session


def round_at(source: Logged, seconds: float) -> int:
    """The round that was planned last at that time. Raises ``RunError`` for one past the run's end."""
    rounds = source.table("rounds")
    if not len(rounds):
        raise RunError(f"at {seconds:g} s is given; the run has no round yet")
    times = rounds["time_s"]
    at = int(times.search_sorted(seconds, side="right"))
    end = float(times[-1]) + float(rounds["step_s"][-1])
    if seconds < 0 or seconds > end:
        raise RunError(f"at {seconds:g} s is given; the run goes from 0 s to {end:g} s")
    return int(rounds["round"][max(at - 1, 0)])


def rounds_of(source: Logged, request_id: str) -> list[int]:
    """The rounds that mattered to a request.

    The one it was submitted in, those in which it was admitted and the last one before in which it waited,
    those in which it was retracted or another for it, and the last one of all if it still waits then. Raises
    ``RunError`` for an unknown request.
    """
    if request_id not in set(source.request_ids):
        raise RunError(f"request {request_id!r} is not in the trace; a request_id of it is expected")
    events = source.table("events").filter(
        (pl.col("request_id") == request_id) | (pl.col("for_request") == request_id)
    )
    rounds: set[int] = set()
    waits_from: int | None = None
    for at, event, who in events.select("round", "event", "request_id").iter_rows():
        if event == "arrived":
            rounds.add(at)
            waits_from = at
        elif event == "admitted":
            rounds.add(at)
            if waits_from is not None and waits_from < at - 1:
                rounds.add(at - 1)
            waits_from = None
        elif event == "retracted":
            rounds.add(at)
            waits_from = at if who == request_id else waits_from
    if not rounds:
        raise RunError(f"request {request_id!r} has not arrived in what was played")
    played = source.table("rounds")["round"].to_list()
    if waits_from is not None:
        rounds.add(played[-1])
    return sorted(rounds & set(played))


def refusal(source: Logged, request_id: str, limit_tokens: int) -> Refused | None:
    """Why a request never fits, if it was refused."""
    events = source.table("events").filter(
        (pl.col("request_id") == request_id) & (pl.col("event") == "refused")
    )
    if not len(events):
        return None
    return Refused(request_id, int(events["round"][0]), int(events["tokens"][0]), limit_tokens)


def entries(source: Logged) -> Callable[[str, int], int | None]:
    """(request, round) -> the first round after it in which the request was admitted."""
    admitted = source.table("events").filter(pl.col("event") == "admitted")

    def entered(request_id: str, after: int) -> int | None:
        rounds = admitted.filter((pl.col("request_id") == request_id) & (pl.col("round") > after))["round"]
        return int(rounds[0]) if len(rounds) else None

    return entered


def evictions(source: Logged) -> EvictionOf:
    """When a page was last evicted from the device before a round, and for whom."""
    table = source.table("evictions").filter(pl.col("tier") == DEVICE)
    names = source.request_ids

    def eviction_of(round_index: int, group: int, key: bytes) -> tuple[int, str | None] | None:
        number = pl.lit(short_key(key), dtype=pl.UInt64)
        found = table.filter(
            (pl.col("key") == number) & (pl.col("group") == group) & (pl.col("round") < round_index)
        )
        if not len(found):
            return None
        by = int(found["by"][-1])
        return int(found["round"][-1]), names[by] if by >= 0 else None

    return eviction_of
