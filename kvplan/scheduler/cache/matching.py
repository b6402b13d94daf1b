"""How long a prefix hit is: each group's policy, and the boundary that all groups share (engine.md §6)."""

from __future__ import annotations

from collections.abc import Container, Sequence

from kvplan.scheduler.cache.groups import Group

Keys = Sequence[bytes]
Step = tuple[
    Group, int, int
]  # a group's match: the bound so far in prefix pages, its extent in its own pages


def match_closed(keys: Keys, present: Container[bytes], begin: int, end: int) -> int:
    """A full group's extent in pages: contiguous hits from the left."""
    at = begin
    while at < end and keys[at] in present:
        at += 1
    return at


def match_window(keys: Keys, present: Container[bytes], lookback: int, begin: int, end: int) -> int:
    """A sliding or state group's extent in pages.

    The highest boundary with ``lookback`` consecutive hits right below it, or with fewer if the run reaches
    ``begin``; with no lookback every boundary will do.
    """
    if not lookback:
        return end
    boundary = end
    for at in range(end - 1, begin - 1, -1):
        if keys[at] not in present:
            boundary = at
        elif boundary - at == lookback:
            return boundary
    return boundary


def common_boundary(
    closed: Sequence[Group],
    others: Sequence[Group],
    keys: Sequence[Keys],
    present: Sequence[Container[bytes]],
    begin: int,
    end: int,
    steps: list[Step] | None = None,
) -> tuple[int, int]:
    """The boundary that every group can serve and the one that the closed groups can, in prefix pages (§6).

    ``keys`` and ``present`` are by group index; ``begin`` and ``end`` are prefix pages. Each match is added
    to ``steps`` if given.
    """
    bound = end
    for group in closed:
        m = group.pages_per_prefix
        extent = match_closed(keys[group.index], present[group.index], begin * m, bound * m)
        if steps is not None:
            steps.append((group, bound, extent))
        bound = extent // m
    closed_bound = bound if closed else 0
    if not others:
        return (bound if closed else begin), closed_bound
    extents = {group.index: end * group.pages_per_prefix + 1 for group in others}
    changed = True
    while changed:
        changed = False
        for group in others:
            m = group.pages_per_prefix
            if extents[group.index] > bound * m:
                extent = match_window(
                    keys[group.index], present[group.index], group.lookback, begin * m, bound * m
                )
                extents[group.index] = extent
                if steps is not None:
                    steps.append((group, bound, extent))
                if extent // m < bound:
                    bound = extent // m
                    changed = True
    return bound, closed_bound
