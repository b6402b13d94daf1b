"""What became of the pages behind a hit, one by one."""

from __future__ import annotations

from kvplan.explain.misses import BEHIND_GAP, EVICTED, NEVER_SEEN, MissedPages, missed_pages, short_key
from kvplan.scheduler.cache.coordinator import Coordinator, MatchSteps, PageKeys
from tests.support.groups import config, full

KEYS = [bytes([number]) * 32 for number in range(4)]


def missed(present: list[int], gone: dict[int, int], mark: int) -> MissedPages:
    """Four pages of 4 tokens, some ``present``, some ``gone`` with an eviction's place in the log."""
    cache = Coordinator(config(full(4), pages=8))
    keys = PageKeys()
    keys.digests = list(KEYS)
    for slot, page in zip(present, cache.pool.take(0, len(present), None), strict=True):
        cache.index.register(0, KEYS[slot], page, slot, 0, 1)
    steps: MatchSteps = ([], [])
    probe = cache.probe(keys, 4, steps=steps)
    known = {(0, short_key(KEYS[slot])): place for slot, place in gone.items()}
    return missed_pages(cache, keys, probe, steps, 4, known, mark)


def test_each_page_behind_the_hit_has_its_own_cause() -> None:
    told = missed(present=[0, 2], gone={1: 5}, mark=9)
    assert told.tokens == {EVICTED: 4, BEHIND_GAP: 4, NEVER_SEEN: 4}
    assert (told.cause, told.page, told.eviction) == (EVICTED, 1, 5)


def test_an_eviction_after_the_probe_is_none_yet() -> None:
    told = missed(present=[0, 2], gone={1: 5}, mark=5)
    assert told.tokens == {NEVER_SEEN: 8, BEHIND_GAP: 4}
    assert (told.cause, told.eviction) == (NEVER_SEEN, -1)


def test_a_hit_up_to_its_limit_misses_nothing() -> None:
    assert missed(present=[0, 1, 2, 3], gone={}, mark=0).tokens == {}
