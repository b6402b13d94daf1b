"""What an observer noted, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import polars as pl

from kvplan.explain.misses import CAUSES
from kvplan.explain.observer import Admission, Evictions, Observer

LISTS = ("device_pages", "host_pages")
PLAIN = [field.name for field in fields(Admission) if field.name != "pages"]


def column_of(cause: str) -> str:
    """The column that has a cause's tokens: ``missed_never_seen``."""
    return "missed_" + cause.replace(" ", "_")


def evictions_table(evictions: Evictions) -> pl.DataFrame:
    """A row for each page that left an index: round, tier (0 device, 1 host), group index, the key's number
    (``misses.short_key``), and the row of the request it made way for (−1: none)."""
    names = ("round", "tier", "group", "key", "by")
    return pl.DataFrame(
        {name: np.array(column) for name, column in zip(names, evictions.columns, strict=True)}
    )


def admissions_table(admissions: Sequence[Admission], evictions: Evictions) -> pl.DataFrame:
    """A row for each first chunk that was scheduled: what it hit, and what ended the hit, in tokens.

    ``device_pages`` and ``host_pages`` are those that the hit took over or loads, by group.

    ``evicted_round`` and ``evicted_by`` (the row of a request) are of the first missing page; null: none was.
    """
    columns: dict[str, list[object]] = {name: [getattr(one, name) for one in admissions] for name in PLAIN}
    for name in LISTS:
        columns[name] = [list(getattr(one, name)) for one in admissions]
    for cause in CAUSES:
        columns[column_of(cause)] = [one.pages.tokens.get(cause, 0) for one in admissions]
    columns["cause"] = [one.pages.cause or None for one in admissions]
    columns["cause_group"] = [one.pages.group_id or None for one in admissions]
    columns["cause_page"] = [one.pages.page if one.pages.cause else None for one in admissions]
    at = [one.pages.eviction for one in admissions]
    columns["evicted_round"] = [evictions.rounds[i] if i >= 0 else None for i in at]
    columns["evicted_by"] = [evictions.by[i] if i >= 0 and evictions.by[i] >= 0 else None for i in at]
    kinds: dict[str, type[pl.DataType] | pl.DataType] = {"again": pl.Boolean}
    kinds |= dict.fromkeys(LISTS, pl.List(pl.Int64))
    kinds |= dict.fromkeys(("request_id", "limit_rule", "cause", "cause_group"), pl.String)
    schema = {name: kinds.get(name, pl.Int64) for name in columns}
    return pl.DataFrame(columns, schema=schema)


def notes(observer: Observer, rounds: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """All that an observer noted, by table: admissions, evictions, plans."""
    return {
        "admissions": admissions_table(observer.admissions, observer.evictions),
        "evictions": evictions_table(observer.evictions),
        "plans": pl.DataFrame({"round": rounds["round"], "plan": np.array(observer.plans)}),
    }
