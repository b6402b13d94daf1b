"""The retractions of a run: what each cost, where they cluster, who evicts whom."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from kvplan.explain.history import Source

GAP_ROUNDS = 100
STORM = 5
"""A storm: so many retractions or more, none of them more than so many rounds after the one before."""


@dataclass(frozen=True, slots=True)
class RetractionRow:
    """One retraction. ``for_request`` None: the runtime's. Lengths are tokens.

    ``granted`` is who was admitted with the pages. Of the KV that the request has ever lost, ``from_cache``
    came back from the device and ``from_host`` from the host at the readmission, and ``again`` was computed
    again before the next retraction, if one followed. ``waited_s`` is until the readmission; headrooms are
    what the admissions before and after secured. None: the request was not readmitted.
    """

    round: int
    time_s: float
    request_id: str
    state: str
    for_request: str | None
    granted: str | None
    dropped: int
    from_cache: int | None
    from_host: int | None
    again: int | None
    readmitted_round: int | None
    waited_s: float | None
    headroom_before: int | None
    headroom_after: int | None


@dataclass(frozen=True, slots=True)
class Victim:
    """All retractions of one request, in tokens and seconds."""

    request_id: str
    retractions: int
    dropped: int
    again: int
    waited_s: float
    max_new_tokens: int | None


@dataclass(frozen=True, slots=True)
class Storm:
    """A stretch in which retractions cluster; ``cycles`` are requests that evict each other in it."""

    first_round: int
    last_round: int
    start_s: float
    end_s: float
    retractions: int
    requests: int
    again: int
    cycles: list[list[str]]
    undeclared: int
    """Victims that declare no max_new_tokens."""
    partly_covered: int
    """Victims that declare more than their admissions secured."""
    by_runtime: int


@dataclass(frozen=True, slots=True)
class Story:
    """The retractions of a run; ``recomputed_share`` is the part of all prefill that was rework."""

    rows: list[RetractionRow]
    victims: list[Victim]
    storms: list[Storm]
    recomputed_tokens: int
    recomputed_share: float


def story_of(source: Source, recomputed_tokens: int, recomputed_share: float) -> Story:
    """The story of a run's retractions, from its tables."""
    rows = _rows(source)
    budgets = _budgets(source)
    return Story(
        rows=rows,
        victims=_victims(rows, budgets),
        storms=_storms(rows, budgets),
        recomputed_tokens=recomputed_tokens,
        recomputed_share=recomputed_share,
    )


def _budgets(source: Source) -> Mapping[str, int | None]:
    table = source.table("requests")
    return dict(zip(table["request_id"].to_list(), table["max_new_tokens"].to_list(), strict=True))


def _rows(source: Source) -> list[RetractionRow]:
    events = source.table("events")
    times: dict[tuple[str, int], float] = {
        (name, at): time
        for name, at, time in events.filter(pl.col("event") == "admitted")
        .select("request_id", "round", "time_s")
        .iter_rows()
    }
    admissions: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
    for name, *figures in (
        source.table("admissions").select("request_id", "round", "headroom", "device_hit", "hit").iter_rows()
    ):
        admissions[name].append((figures[0], figures[1], figures[2], figures[3]))
    granted = {at: name for name, at in times}
    rows = []
    retracted = events.filter(pl.col("event") == "retracted")
    losses: dict[str, list[int]] = defaultdict(list)
    for name, tokens in retracted.select("request_id", "tokens").iter_rows():
        losses[name].append(tokens)
    seen: Counter[str] = Counter()
    for at, time, name, tokens, state, other in retracted.select(
        "round", "time_s", "request_id", "tokens", "state", "for_request"
    ).iter_rows():
        mine = admissions[name]
        seen[name] += 1
        lost = losses[name]
        ever = max(lost[: seen[name]])
        reached = lost[seen[name]] if seen[name] < len(lost) else ever
        # No request is admitted and then retracted within a round; the runtime's retractions come between
        # rounds, and are noted with the plan of the next, which may admit the victim again.
        before = [one for one in mine if one[0] < at]
        after = next((one for one in mine if one[0] >= at), None)
        back = 0 if after is None else min(after[3], ever)
        device = 0 if after is None else min(after[2], ever)
        rows.append(
            RetractionRow(
                round=at,
                time_s=time,
                request_id=name,
                state=state,
                for_request=other,
                granted=None if other is None else granted.get(at),
                dropped=tokens,
                from_cache=None if after is None else device,
                from_host=None if after is None else back - device,
                again=None if after is None else max(min(ever, reached) - back, 0),
                readmitted_round=None if after is None else after[0],
                waited_s=None if after is None else times[name, after[0]] - time,
                headroom_before=before[-1][1] if before else None,
                headroom_after=None if after is None else after[1],
            )
        )
    return _ended(rows, source)


def _ended(rows: list[RetractionRow], source: Source) -> list[RetractionRow]:
    """The rows, the last of each request with no more computed again than the request has in all: the run may
    have ended before it got back to where it was."""
    requests = source.table("requests")
    left = dict(requests.select("request_id", "computed_again").iter_rows())
    last = {row.request_id: at for at, row in enumerate(rows)}
    told = []
    for at, row in enumerate(rows):
        if row.again is not None:
            if last[row.request_id] == at:
                row = replace(row, again=min(row.again, max(left[row.request_id], 0)))
            left[row.request_id] -= row.again or 0
        told.append(row)
    return told


def _victims(rows: Sequence[RetractionRow], budgets: Mapping[str, int | None]) -> list[Victim]:
    by_request: dict[str, list[RetractionRow]] = defaultdict(list)
    for row in rows:
        by_request[row.request_id].append(row)
    victims = [
        Victim(
            name,
            len(mine),
            sum(row.dropped for row in mine),
            sum(row.again or 0 for row in mine),
            sum(row.waited_s or 0.0 for row in mine),
            budgets[name],
        )
        for name, mine in by_request.items()
    ]
    return sorted(victims, key=lambda victim: (-victim.retractions, -victim.again, victim.request_id))


def _storms(rows: Sequence[RetractionRow], budgets: Mapping[str, int | None]) -> list[Storm]:
    clusters: list[list[RetractionRow]] = []
    for row in rows:
        if not clusters or row.round - clusters[-1][-1].round > GAP_ROUNDS:
            clusters.append([])
        clusters[-1].append(row)
    return [_storm(cluster, budgets) for cluster in clusters if len(cluster) >= STORM]


def _storm(rows: Sequence[RetractionRow], budgets: Mapping[str, int | None]) -> Storm:
    names = {row.request_id for row in rows}
    undeclared = {name for name in names if not budgets[name]}
    return Storm(
        first_round=rows[0].round,
        last_round=rows[-1].round,
        start_s=rows[0].time_s,
        end_s=rows[-1].time_s,
        retractions=len(rows),
        requests=len(names),
        again=sum(row.again or 0 for row in rows),
        cycles=cycles((row.granted or row.for_request, row.request_id) for row in rows),
        undeclared=len(undeclared),
        partly_covered=len(names - undeclared),
        by_runtime=sum(1 for row in rows if row.for_request is None),
    )


def cycles(edges: Iterable[tuple[str | None, str]]) -> list[list[str]]:
    """Of (for whom, victim): groups of requests that evict each other, directly or in turn; largest first."""
    targets: dict[str, set[str]] = defaultdict(set)
    sources: dict[str, set[str]] = defaultdict(set)
    for grant, victim in edges:
        if grant is not None and grant != victim:
            targets[grant].add(victim)
            sources[victim].add(grant)
    found: list[list[str]] = []
    left = set(targets) & set(sources)
    while left:
        start = min(left)
        ring = _reach(start, targets) & _reach(start, sources)
        left -= ring | {start}
        if len(ring) > 1:
            found.append(sorted(ring))
    return sorted(found, key=lambda ring: (-len(ring), ring))


def _reach(start: str, steps: Mapping[str, set[str]]) -> set[str]:
    """What can be reached from ``start``, itself included if it can come back."""
    seen: set[str] = set()
    todo = [start]
    while todo:
        for name in steps.get(todo.pop(), ()):
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen
