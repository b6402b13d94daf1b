"""What a run's prompts found cached, what the rest missed for, and what an infinite cache would have found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from kvplan.explain.history import Source
from kvplan.explain.misses import CAUSES
from kvplan.explain.tables import column_of
from kvplan.scheduler import SchedulerConfig
from kvplan.scheduler.config import GroupKind
from kvplan.scheduler.request import Request, RequestSpec
from kvplan.traces import Trace

TOP = 10
PROMPT_END = "below one page"


@dataclass(frozen=True, slots=True)
class Misses:
    """Tokens of prompts that missed, by cause, and the requests that lost any to it.

    never seen: no page of the kind was ever published. evicted: it was, and made way. behind a gap: it was
    there, and of no use without one before it. broken window, state not on a boundary: full groups could serve
    it, a sliding or state group could not. below one page: the prompt's end, which fills no page or is computed
    always. Anything else is the rule that kept the admission from matching further.
    """

    cause: str
    tokens: int
    requests: int


@dataclass(frozen=True, slots=True)
class GroupMisses:
    """The admissions whose hit a group ended, and why."""

    group_id: str
    cause: str
    admissions: int


@dataclass(frozen=True, slots=True)
class GroupHits:
    """Pages of a group that hits took over on a tier, and the tokens of the prompts that these pages hold.

    A full group holds every token of a hit, a sliding one its window, a state group a snapshot at its end:
    ``tokens`` is None for it.
    """

    tier: str
    group_id: str
    pages: int
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Evictor:
    """A request for whose pages others' cache made way, and how often that ended a hit."""

    request_id: str
    hits_ended: int
    pages_evicted: int


@dataclass(frozen=True, slots=True)
class GroupEvictions:
    """Pages of a group that left an index."""

    tier: str
    group_id: str
    pages: int


@dataclass(frozen=True, slots=True)
class PrefixStory:
    """The first admissions of requests, tokens of their prompts. Readmissions are counted apart.

    ``device_tokens`` and ``host_tokens`` are hits by tier; ``infinite_tokens`` what each prompt would have hit
    had every prompt before it in the trace been computed and nothing evicted. None: the trace does not say
    what its prompts share.
    """

    known: bool
    admissions: int
    prompt_tokens: int
    device_tokens: int
    host_tokens: int
    full_groups_tokens: int
    """What the full groups alone could have served: a hit ends where every group can serve it."""
    group_hits: list[GroupHits] | None
    """By group and tier; None: the run was kept by a build that did not note it."""
    misses: list[Misses]
    groups: list[GroupMisses]
    evictions: list[GroupEvictions]
    evictors: list[Evictor]
    infinite_tokens: int
    median_absence_rounds: float | None
    """Rounds between an eviction and the admission whose hit it ended, in the middle."""
    readmissions: int
    readmission_tokens: int
    readmission_device_tokens: int
    readmission_host_tokens: int


def prefix_story(source: Source, trace: Trace, config: SchedulerConfig) -> PrefixStory:
    """The story of a run of this trace with this configuration."""
    table = source.table("admissions")
    new = table.filter(~pl.col("again"))
    again = table.filter(pl.col("again"))
    evictions = source.table("evictions")
    names = source.request_ids
    return PrefixStory(
        known=trace.has_prefixes,
        admissions=len(new),
        prompt_tokens=_sum(new, "prompt_tokens"),
        device_tokens=_sum(new, "device_hit"),
        host_tokens=_sum(new, "hit") - _sum(new, "device_hit"),
        full_groups_tokens=_sum(new.select(reach=pl.max_horizontal("closed_hit", "hit")), "reach"),
        group_hits=_group_hits(new, config),
        misses=_misses(new, config.prefix_granularity),
        groups=[
            GroupMisses(group, cause, count)
            for group, cause, count in new.filter(pl.col("cause").is_not_null())
            .group_by("cause_group", "cause", maintain_order=True)
            .len()
            .sort(["len", "cause_group", "cause"], descending=[True, False, False])
            .iter_rows()
        ],
        evictions=_evictions(evictions, config),
        evictors=_evictors(new, evictions, names),
        infinite_tokens=infinite_cache(
            trace, names, config.prefix_granularity, dict(new.select("request_id", "limit").iter_rows())
        ),
        median_absence_rounds=_median(new),
        readmissions=len(again),
        readmission_tokens=_sum(again, "prefill_tokens"),
        readmission_device_tokens=_sum(again, "device_hit"),
        readmission_host_tokens=_sum(again, "hit") - _sum(again, "device_hit"),
    )


def _group_hits(new: pl.DataFrame, config: SchedulerConfig) -> list[GroupHits] | None:
    if "device_pages" not in new.columns:
        return None
    tiers = ("device", "host") if config.has_host_cache else ("device",)
    hits = []
    for at, group in enumerate(config.cache_groups):
        for tier in tiers:
            pages = int(new[f"{tier}_pages"].list.get(at).sum()) if len(new) else 0
            tokens = None if group.kind == GroupKind.STATE else pages * group.block_granularity
            hits.append(GroupHits(tier, group.group_id, pages, tokens))
    return hits


def _sum(table: pl.DataFrame, column: str) -> int:
    return int(table[column].sum())


def _median(new: pl.DataFrame) -> float | None:
    middle = new.filter(pl.col("evicted_round").is_not_null()).select(
        (pl.col("round") - pl.col("evicted_round")).median()
    )
    value = middle.item()
    return None if value is None else float(value)


def _misses(new: pl.DataFrame, page: int) -> list[Misses]:
    rows = [
        Misses(cause, _sum(new, column_of(cause)), int((new[column_of(cause)] > 0).sum())) for cause in CAUSES
    ]
    for rule, rest, requests in (
        new.with_columns(rest=pl.col("prompt_tokens") - pl.col("limit"))
        .with_columns(
            rule=pl.when(pl.col("rest") <= page).then(pl.lit(PROMPT_END)).otherwise(pl.col("limit_rule"))
        )
        .filter(pl.col("rest") > 0)
        .group_by("rule")
        .agg(pl.col("rest").sum(), pl.len())
        .sort("rule")
        .iter_rows()
    ):
        rows.append(Misses(rule, rest, requests))
    return [row for row in rows if row.tokens]


def _evictions(evictions: pl.DataFrame, config: SchedulerConfig) -> list[GroupEvictions]:
    ids = [group.group_id for group in config.cache_groups]
    counts = evictions.group_by("tier", "group").len().sort("tier", "group")
    return [
        GroupEvictions(("device", "host")[tier], ids[group], count)
        for tier, group, count in counts.iter_rows()
    ]


def _evictors(new: pl.DataFrame, evictions: pl.DataFrame, names: Sequence[str]) -> list[Evictor]:
    """The requests whose pages ended most hits."""
    ended = new.filter(pl.col("evicted_by").is_not_null()).group_by("evicted_by").len("ended")
    pages = evictions.group_by("by").len("pages").with_columns(by=pl.col("by").cast(pl.Int64))
    rows = (
        ended.join(pages, left_on="evicted_by", right_on="by")
        .sort(["ended", "pages", "evicted_by"], descending=[True, True, False])
        .head(TOP)
    )
    return [Evictor(names[by], ended, pages) for by, ended, pages in rows.iter_rows()]


def infinite_cache(trace: Trace, names: Sequence[str], page: int, limits: Mapping[str, int]) -> int:
    """Tokens that these requests' prompts would hit if nothing were ever evicted.

    Each prompt, in the trace's order, hits its longest leading run of prefix pages that any prompt before it
    has, up to what it was allowed to match when it was admitted: ``limits``, in tokens. ``names`` are the
    requests' ids, ``page`` is the prefix page in tokens.
    """
    seen: set[bytes] = set()
    hits = 0
    for row, name in enumerate(names):
        prompt = trace.prompt(row)
        request = Request(RequestSpec(name), prompt, row)
        request.hash_to(len(prompt) // page, page)
        digests = request.keys.digests
        limit = limits.get(name)
        if limit is not None:
            at, end = 0, limit // page
            while at < end and digests[at] in seen:
                at += 1
            hits += at * page
        seen.update(digests)
    return hits
