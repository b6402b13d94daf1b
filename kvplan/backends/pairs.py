"""The pages that a store or a load-back moves, and whether they hold what their keys say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvplan.backends.arena import Arena
from kvplan.backends.errors import Place
from kvplan.backends.ledger import Ledger
from kvplan.scheduler import Cache


@dataclass(frozen=True, slots=True)
class Pair:
    """One page that moves, with its key; the digest is empty where the plan does not tell it."""

    group: int
    source: int
    destination: int
    digest: str
    offset: int
    from_storage: bool = False


def pairs_of(op: Cache.WriteBackOp | Cache.LoadBackOp, at: int) -> list[Pair]:
    """The pages that an operation's part of that index moves."""
    stored = isinstance(op, Cache.WriteBackOp)
    count = len(op.group_ids[at])
    fills = [False] * count if stored else op.prefetch_from_storage[at]  # type: ignore[union-attr]
    columns = (
        op.group_ids[at],
        op.src_pages[at],
        op.dst_pages[at],
        op.content_hashes[at],
        op.page_offsets[at],
    )
    return [Pair(*row) for row in zip(*columns, fills, strict=True)]


def check_moved(
    arena: Arena, ledger: Ledger, who: str, pairs: Sequence[Pair], tier: str, *, source: bool = False
) -> None:
    """Check the pages that ``who`` moves in the arena of ``tier``: where they have come to, or with ``source``
    where they come from. Nothing needs to read them for that.

    Raises ``Violation`` at the first that does not hold what its key says. Pages without a key, and keys of
    requests that are not known here, are left to who reads them.
    """
    for group in sorted({pair.group for pair in pairs}):
        keyed = [
            (pair, named)
            for pair in pairs
            if pair.group == group and (named := ledger.roll.keyed(pair.digest)) is not None
        ]
        if not keyed:
            continue
        held = [ledger.groups.keyed(group, *named, pair.offset) for pair, named in keyed]
        places = [pair.source if source else pair.destination for pair, _ in keyed]
        owner = np.repeat(np.arange(len(keyed)), [len(rows) for rows, _ in held])
        rows, marks = (np.concatenate(parts) for parts in zip(*held, strict=True))
        wrong = arena.differing(group, np.asarray(places)[owner], rows, marks)
        if wrong is None:
            continue
        at = int(owner[wrong[0]])
        pair, (history, number) = keyed[at]
        what = f"prefix page {number}" + (f", part {pair.offset}," if pair.offset else "")
        way = f"{'from' if source else 'to'} {Place(ledger.groups.ids[group], places[at], tier)}"
        what = f"{who} brings {what} {way}, and it holds {ledger.found(group, wrong[1])}"
        if tier == "host" and not source:  # a store: what went wrong is at the page that it was made of
            raise ledger.violation(history.request_id, "device", group, pair.source, what)
        raise ledger.violation(history.request_id, tier, group, places[at], what)
