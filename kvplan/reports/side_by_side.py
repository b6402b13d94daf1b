"""Several values of a flag, or of several flags, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.text import Text

from kvplan.reports.columns import Column, folded, table
from kvplan.reports.replay_units import counted, grouped
from kvplan.reports.sizing import styled
from kvplan.reports.sizing_units import pasted, size
from kvplan.sizing import Alternative, PoolFit, PoolSize, Verdict

WORDS = {
    Verdict.NO_POOL: "no pool",
    Verdict.FITS: "fits",
    Verdict.NOT_AT_ONCE: "not at once",
    Verdict.NEVER_FITS: "never fits",
}
MOST_NAMED = 6


@dataclass(frozen=True, slots=True)
class Row:
    """One value of each flag, as it was written, and what ``size_pool`` says with them.

    ``bytes_per_token`` is None without a model; ``result`` is that of one of ``replicas`` attention replicas,
    None where a GPU has no room for a cache, which ``problem`` says.
    """

    values: Mapping[str, str]
    result: PoolSize | None
    bytes_per_token: int | None
    replicas: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """The values of ``flags``, in the order they were given."""

    flags: tuple[str, ...]
    rows: tuple[Row, ...]


def side_by_side_text(compared: Compared, width: int = 80) -> Text:
    """Return the table at ``width`` columns, which values fit, and what would where none does."""
    rows = compared.rows
    pools = [_pool(row) for row in rows]
    there = [
        None if p is None or not r or r.bytes_per_block is None else p.usable_blocks * r.bytes_per_block
        for p, r in zip(pools, (row.result for row in rows), strict=True)
    ]
    known = all(row.result is None or row.result.needed_bytes is not None for row in rows)
    columns = [
        *(Column(flag, [row.values[flag] for row in rows]) for flag in compared.flags),
        Column(
            "a token",
            [f"{grouped(row.bytes_per_token)} B" if row.bytes_per_token else "" for row in rows],
            True,
            2,
        ),
        Column("needs", [size(row.result.needed_bytes) if row.result else "" for row in rows], True),
        Column("there", ["" if count is None else size(count) for count in there], True),
        Column("LCM blocks", [_blocks(row) for row in rows], True, 4 if known else 0),
        Column("", [WORDS[row.result.verdict] if row.result else "no room" for row in rows]),
        Column("at once", [_at_once(row) for row in rows], True, 1),
        Column(
            "longest alone",
            [
                "" if p is None or p.longest_request is None else f"{grouped(p.longest_request)} t"
                for p in pools
            ],
            True,
            3,
        ),
    ]
    absent = {"needs", "there"} if not known else set()
    absent |= set() if any(row.bytes_per_token for row in rows) else {"a token"}
    absent |= {"there", "at once", "longest alone"} if not any(pools) else set()
    shown = [column for column in columns if column.header not in absent]
    lines = table(shown, width)
    if any(row.replicas > 1 for row in rows):
        lines += folded(
            "", "memory and blocks are those of one attention replica, requests all together's", width, 2
        )
    problems: dict[str, list[str]] = {}
    for row in rows:
        if row.problem is not None:
            problems.setdefault(row.problem, []).append(pasted(row.values))
    for problem, named in problems.items():
        lines += folded("", f"{', '.join(named)}: {problem}", width, 2)
    return styled([*lines, "", *folded("RESULT", _verdict(compared), width), *_tries(compared, width)])


def _pool(row: Row) -> PoolFit | None:
    return None if row.result is None else row.result.pool


def _blocks(row: Row) -> str:
    pool = _pool(row)
    if row.result is None:
        return ""
    there = "" if pool is None else f" of {grouped(pool.usable_blocks)}"
    return grouped(row.result.needed_blocks) + there


def _at_once(row: Row) -> str:
    pool = _pool(row)
    return (
        "" if pool is None or pool.requests_at_once is None else grouped(pool.requests_at_once * row.replicas)
    )


def _verdict(compared: Compared) -> str:
    rows = compared.rows
    if not any(row.result is None or row.result.pool for row in rows):
        return "no pool is given to compare with (--gpu, --pool-blocks, --pool-gib)"
    good = [row for row in rows if row.result and row.result.verdict is Verdict.FITS]
    names = compared.flags[0]
    if not good:
        return f"fits with no {names} of these" if len(compared.flags) == 1 else "fits with none of these"
    if len(compared.flags) == 1:
        return f"fits with {names} {', '.join(row.values[names] for row in good)}"
    shown = "; ".join(pasted(row.values).replace(" ", "\u00a0") for row in good[:MOST_NAMED])
    more = f"; and {len(good) - MOST_NAMED} more" if len(good) > MOST_NAMED else ""
    return f"fits with {shown}{more}"


def _tries(compared: Compared, width: int) -> list[str]:
    """What fits besides, where none of the values does: from the row that is nearest to it."""
    found = [(row, row.result) for row in compared.rows if row.result]
    if any(result.verdict is Verdict.FITS or result.pool is None for _, result in found):
        return []
    nearest, result = min(found, key=lambda entry: entry[1].pool.used_share if entry[1].pool else 0.0)
    return [line for one in result.alternatives[:2] for line in _try(nearest, one, width)]


def _try(row: Row, one: Alternative, width: int) -> list[str]:
    # A pasted flag must not be there twice, and some flags have several names.
    kept = {name: value for name, value in row.values.items() if name not in one.flags}
    flags = pasted({**kept, **one.flags}).replace(" ", "\u00a0")
    use = f"{grouped(one.needed_blocks)} of {counted(one.usable_blocks, 'LCM block')}"
    return folded("try", f"{flags}\u00a0\u00a0 fits: {use}", width)
