"""Several values of a flag side by side."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from kvplan.reports.columns import Column, folded, table
from kvplan.reports.replay_units import grouped
from kvplan.reports.sizing import styled
from kvplan.reports.sizing_units import size
from kvplan.sizing import PoolSize, Verdict

WORDS = {
    Verdict.NO_POOL: "no pool",
    Verdict.FITS: "fits",
    Verdict.NOT_AT_ONCE: "not at once",
    Verdict.NEVER_FITS: "never fits",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One value, and what ``size_pool`` says with it. ``bytes_per_token`` is None without a model."""

    value: str
    result: PoolSize
    bytes_per_token: int | None


@dataclass(frozen=True, slots=True)
class Compared:
    """The values of a flag, in the order they were given."""

    flag: str
    rows: tuple[Row, ...]


def side_by_side_text(compared: Compared, width: int = 80) -> Text:
    """Return the table at ``width`` columns, and which values fit."""
    rows = compared.rows
    pools = [row.result.pool for row in rows]
    needed = [row.result.needed_blocks for row in rows]
    columns = [
        Column(compared.flag, [row.value for row in rows]),
        Column(
            "a token",
            [f"{grouped(row.bytes_per_token)} B" if row.bytes_per_token else "" for row in rows],
            True,
            4,
        ),
        Column("needs", [f"{grouped(count)} blocks" for count in needed], True),
        Column("", [size(row.result.needed_bytes) for row in rows], True, 3),
        Column("there", ["" if pool is None else grouped(pool.usable_blocks) for pool in pools], True),
        Column("", [WORDS[row.result.verdict] for row in rows]),
        Column(
            "at once",
            ["" if p is None or p.requests_at_once is None else grouped(p.requests_at_once) for p in pools],
            True,
            1,
        ),
        Column(
            "longest alone",
            [
                "" if p is None or p.longest_request is None else f"{grouped(p.longest_request)} t"
                for p in pools
            ],
            True,
            2,
        ),
    ]
    if not any(row.bytes_per_token for row in rows):
        del columns[1]
    good = [row.value for row in rows if row.result.verdict is Verdict.FITS]
    first = rows[0].result
    if first.pool is None:
        verdict = "no pool is given to compare with (--gpu, --pool-blocks, --pool-gib)"
    else:
        verdict = (
            f"fits with {compared.flag} {', '.join(good)}"
            if good
            else f"fits with no {compared.flag} of these"
        )
    return styled([*table(columns, width), "", *folded("RESULT", verdict, width)])
