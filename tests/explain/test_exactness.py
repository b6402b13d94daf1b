"""The figures of an attempt that failed are those that decide it; and so is what would have let a request in.

Random scenarios of every role and tier, every kind of group, packed and sharded: each failed attempt is made
again on copies of its state, with exactly what it says was short, and with one unit less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from random import Random

import pytest

from kvplan.explain.remedies import Trials, scheduled
from kvplan.scheduler import Scheduler
from kvplan.scheduler.journal import Attempt, Held, Journal, RoundJournal
from kvplan.scheduler.what_if import copy_of, with_batch, with_blocks, with_budget, with_max_new_tokens
from tests.support.drive import Run
from tests.support.scenarios import ROLES, TIERS, scenario_of

SEEDS = 12
CASES = [(role, tier) for role in ROLES for tier in TIERS]


class Looked(Run):
    """A run that keeps a copy of its scheduler from before each plan, and what the plan's journal told."""

    def __init__(self, seed: int, role: str, tier: str) -> None:
        super().__init__(scenario_of(Random(seed), role, tier), check=False)
        self.before: Scheduler = self.scheduler

    def before_plan(self) -> None:
        self.before = copy_of(self.scheduler)

    def looks(self) -> Iterator[tuple[Scheduler, RoundJournal, set[str]]]:
        """Before each plan, what was told of it, and who is in it."""
        self.scheduler.journal = journal = Journal()
        for plan in self.rounds():
            assert journal.round is not None
            yield self.before, journal.round, scheduled(plan)


@cache
def looked(role: str, tier: str) -> list[tuple[Looked, Scheduler, RoundJournal, set[str]]]:
    found = []
    for seed in range(SEEDS):
        run = Looked(seed, role, tier)
        found += [(run, *look) for look in run.looks()]
    return found


def outcome(scheduler: Scheduler, like: Attempt) -> str:
    """What becomes of the first turn of the request in that phase when a copy makes its plan."""
    scheduler.journal = journal = Journal()
    scheduler.next_execution_plan()
    assert journal.round is not None
    turns = attempts(journal.round)
    return next(one.outcome for one in turns if (one.phase, one.request_id) == (like.phase, like.request_id))


def attempts(told: RoundJournal) -> list[Attempt]:
    return [one for one in told.entries if isinstance(one, Attempt)]


@pytest.mark.parametrize(("role", "tier"), CASES)
def test_an_attempt_fails_exactly_while_it_needs_more_than_could_be_had(role: str, tier: str) -> None:
    tried = Counter[str]()
    for _, _, told, _ in looked(role, tier):
        for one in attempts(told):
            if one.groups:
                lacks = one.blocks_short > one.blocks_reachable
                assert lacks == (one.outcome == "no_capacity"), one
                tried[one.outcome] += 1
    assert tried["no_capacity"] > 20
    assert tried["scheduled"] > 20


@pytest.mark.parametrize(("role", "tier"), CASES)
def test_what_an_attempt_says_is_short_admits_it_and_one_block_less_does_not(role: str, tier: str) -> None:
    tried = 0
    for _, before, told, _ in looked(role, tier):
        for one in attempts(told):
            if one.outcome == "no_capacity":
                short = one.blocks_short - one.blocks_reachable
                assert outcome(with_blocks(before, short), one) in ("scheduled", "incomplete")
                assert outcome(with_blocks(before, short - 1), one) == "no_capacity"
                tried += 1
            if one.evicted or one.outcome == "no_capacity":
                break  # with a larger pool those behind it would see another state
    assert tried > 20


@pytest.mark.parametrize(("role", "tier"), CASES)
def test_the_pages_that_a_group_needs_are_those_of_the_tokens_told(role: str, tier: str) -> None:
    parts = Counter[str]()
    for run, _, told, _ in looked(role, tier):
        by_id = {group.group_id: group.block_granularity for group in run.config.cache_groups}
        for one in attempts(told):
            for ask in one.groups:
                tokens = ask.growth_tokens + ask.reserve_tokens - ask.room_tokens
                assert ask.needed == max(0, -(-tokens // by_id[ask.group_id])) + ask.host_loads
                assert bool(ask.reserve_rule) == bool(ask.reserve_tokens)
                parts["room"] += ask.room_tokens > 0
                parts["reserve"] += ask.reserve_tokens > 0
                parts["loads"] += ask.host_loads > 0
    assert parts["room"] > 20
    assert parts["reserve"] > 20
    assert tier == "device" or role == "D" or parts["loads"]


@pytest.mark.parametrize(("role", "tier"), CASES)
def test_evictions_are_told_in_their_order_with_the_numbers_that_decided(role: str, tier: str) -> None:
    ranks = {"uncached": 0, "probationary": 1, "established": 2, "closed": 3}
    told_of = spared = 0
    for run, _, told, _ in looked(role, tier):
        one_page_blocks = all(group.cache_blocks_per_lcm_block == 1 for group in run.config.cache_groups)
        for one in attempts(told):
            order = [
                (min(ranks[page.tier], 2), page.epoch, ranks[page.tier], page.position)
                for page in one.evicted
            ]
            assert order == sorted(order)
            assert not one.spared or not one_page_blocks or len(run.config.cache_groups) > 1
            told_of += len(order) > 1
            spared += one.spared
    assert told_of > 5
    assert spared


@pytest.mark.parametrize(("role", "tier"), CASES)
def test_each_group_is_told_what_it_has(role: str, tier: str) -> None:
    """Where one group is all there is, its pages decide alone."""
    tried = 0
    for run, _, told, _ in looked(role, tier):
        for one in attempts(told):
            if not one.groups or len(run.config.cache_groups) > 1:
                continue
            [ask] = one.groups
            if ask.pages_per_block == 1:
                has = ask.free + ask.evictable + ask.own_expired
                assert (one.outcome == "no_capacity") == (ask.needed > has)
                tried += 1
    assert tried > 0


@pytest.mark.parametrize(("role", "tier"), CASES)
def test_granting_what_it_says_admits_and_one_unit_less_does_not(role: str, tier: str) -> None:
    tried, found = 0, Counter[str]()
    for at, (run, before, told, inside) in enumerate(looked(role, tier)):
        if at % 7:
            continue
        config = run.config
        trials = Trials(before, config)
        for who in left_out(told, inside)[:2]:
            ways = trials.remedies(who, short_of(told, who))
            tried += 1

            def enters(changed: Scheduler, who: str = who) -> bool:
                return who in scheduled(changed.next_execution_plan())

            assert not enters(copy_of(before))
            if (blocks := ways.extra_blocks) is not None:
                found["blocks"] += 1
                assert enters(with_blocks(before, blocks))
                assert not enters(with_blocks(before, blocks - 1))
            else:
                assert not any(enters(with_blocks(before, more)) for more in (1, 2, 4, 8, 16))
            if (budget := ways.max_scheduled_tokens) is not None:
                found["budget"] += 1
                assert budget > config.max_scheduled_tokens
                assert enters(with_budget(before, budget))
                assert not enters(with_budget(before, budget - 1))
            else:
                more = (config.max_scheduled_tokens + step for step in (1, 2, 4, 8, 16))
                assert not any(enters(with_budget(before, budget)) for budget in more)
            if (batch := ways.max_batch_size) is not None:
                found["batch"] += 1
                assert batch > config.max_batch_size
                assert enters(with_batch(before, batch))
                assert not enters(with_batch(before, batch - 1))
            if (declared := ways.max_new_tokens) is not None:
                found["declared"] += 1
                assert enters(with_max_new_tokens(before, who, declared))
                assert not enters(with_max_new_tokens(before, who, declared + 1))
    assert tried > 40
    assert found["blocks"] > 10


def short_of(told: RoundJournal, who: str) -> int:
    """LCM blocks that the request's last turn lacked."""
    last = [one for one in attempts(told) if one.request_id == who][-1:]
    return sum(one.blocks_short - one.blocks_reachable for one in last)


def left_out(told: RoundJournal, inside: set[str]) -> list[str]:
    """Whom the round has told of and not scheduled."""
    names: dict[str, None] = {}
    for one in told.entries:
        if isinstance(one, Attempt):
            names.setdefault(one.request_id)
        elif isinstance(one, Held):
            names.update(dict.fromkeys(one.request_ids))
    return [name for name in names if name not in inside]
