"""Why a prefix hit was not longer: for each prefix page behind it, what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvplan.scheduler.cache.coordinator import Coordinator, MatchSteps, PageKeys, Probe
from kvplan.scheduler.cache.groups import Group
from kvplan.scheduler.config import GroupKind

NEVER_SEEN = "never seen"
EVICTED = "evicted"
BEHIND_GAP = "behind a gap"
WINDOW = "broken window"
STATE = "state not on a boundary"
CAUSES = (NEVER_SEEN, EVICTED, BEHIND_GAP, WINDOW, STATE)

Gone = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class MissedPages:
    """The pages between a hit and its limit, in tokens by cause, and the first one: what ended the hit.

    ``cause``: never seen; evicted; behind a gap (there, but of no use without a page before it); broken window
    (full groups could serve it, a sliding group could not); state not on a boundary (the same of a state
    group). ``eviction`` is the place of the first missing page's eviction in the log, −1 for none.
    """

    tokens: dict[str, int]
    cause: str = ""
    group_id: str = ""
    page: int = -1
    eviction: int = -1


def short_key(key: bytes) -> int:
    """A page key as a number of 64 bits: the digest's first 8 bytes, mixed with the page's offset."""
    short = int.from_bytes(key[:8], "little")
    if len(key) == 32:
        return short
    return short ^ (int.from_bytes(key[32:], "little") * 0x9E3779B97F4A7C15 & (1 << 64) - 1)


def missed_pages(
    cache: Coordinator, keys: PageKeys, probe: Probe, steps: MatchSteps, limit: int, gone: Gone, mark: int
) -> MissedPages:
    """What became of the prefix pages from a probe's hit up to ``limit``.

    ``gone`` has the newest eviction of each key that left the device; those from ``mark`` on came later.
    """
    hit, page = probe.hit, cache.prefix
    if hit >= limit:
        return MissedPages({})
    tokens: dict[str, int] = {}
    first: MissedPages | None = None
    closed = [group for group in cache.groups if group.closed]
    others = [group for group in cache.groups if not group.closed and not group.replayable]
    reached = max(probe.closed, hit) if closed else hit
    if reached > hit:
        group = _ending_group(steps, others)
        cause = STATE if group.kind == GroupKind.STATE else WINDOW
        tokens[cause] = (reached - hit) * page
        m = group.pages_per_prefix
        by_slot = keys.of(m)
        known = (_gone(gone, group, by_slot[slot], mark) for slot in range(hit * m, reached * m))
        first = MissedPages(tokens, cause, group.id, hit, next((at for at in known if at >= 0), -1))
    for at in range(reached, limit):
        cause, group_id, eviction = _page(cache, keys, closed or others, at, gone, mark)
        tokens[cause] = tokens.get(cause, 0) + page
        if first is None:
            first = MissedPages(tokens, cause, group_id, at, eviction)
    assert first is not None
    return first


def _ending_group(steps: MatchSteps, others: list[Group]) -> Group:
    """The group whose match brought the boundary down to where it ended up."""
    device, host = steps
    for group, bound, extent in reversed(host or device):
        if not group.closed and extent // group.pages_per_prefix < bound:
            return group
    return others[0]


def _page(
    cache: Coordinator, keys: PageKeys, groups: list[Group], at: int, gone: Gone, mark: int
) -> tuple[str, str, int]:
    """What became of one prefix page: the cause, the group that lacks it, and its eviction."""
    missing: tuple[str, str, int] | None = None
    for group in groups:
        m = group.pages_per_prefix
        by_slot = keys.of(m)
        pages = cache.index.pages[group.index]
        for slot in range(at * m, at * m + m):
            key = by_slot[slot]
            if key in pages or (cache.host is not None and key in cache.host.presence[group.index]):
                continue
            eviction = _gone(gone, group, key, mark)
            if eviction >= 0:
                return EVICTED, group.id, eviction
            missing = missing or (NEVER_SEEN, group.id, -1)
    return missing or (BEHIND_GAP, groups[0].id, -1)


def _gone(gone: Gone, group: Group, key: bytes, mark: int) -> int:
    eviction = gone.get((group.index, short_key(key)), -1)
    return eviction if eviction < mark else -1
