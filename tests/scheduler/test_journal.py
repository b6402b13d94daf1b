"""The journal tells of every request's turn, and the reason it states follows the rule's own inputs."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kvplan.scheduler.journal import Attempt, Held, Journal, RoundJournal
from tests.support.drive import Run
from tests.support.peek import device_pages, page_owners, page_references
from tests.support.scenarios import ROLES, TIERS, scenario_of

HAVE_A_TURN = {
    "Fused": {"Submitted", "Retracted", "Prefilling", "PrefillDone", "Decoding"},
    "P": {"Submitted", "Retracted", "Prefilling", "PrefillDone"},
    "D": {"Submitted", "Retracted", "Prefilling", "PrefillDone", "Decoding"},
}


class Told(Run):
    """A run that notes who could have a turn just before each plan."""

    def before_plan(self) -> None:
        states = {
            request.id: self.scheduler.request_state(request.id) for request in self.scheduler.requests()
        }
        self.could = {name for name, state in states.items() if state in HAVE_A_TURN[self.role]}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("tier", TIERS)
def test_every_request_that_could_go_on_has_its_turn_told(role: str, tier: str) -> None:
    seen = 0
    for seed in range(25):
        run = Told(scenario_of(Random(seed), role, tier), check=False)
        run.scheduler.journal = journal = Journal()
        for plan in run.rounds():
            assert journal.round is not None
            names: set[str] = set()
            for entry in journal.round.entries:
                if isinstance(entry, Attempt | Held):
                    assert entry.phase
                    names |= {entry.request_id} if isinstance(entry, Attempt) else set(entry.request_ids)
            assert names == run.could, (seed, run.could ^ names, plan)
            seen += len(run.could)
    assert seen > 500


class Before(Run):
    """A run that counts, just before each plan, the pages of each group by who has them."""

    def before_plan(self) -> None:
        scheduler = self.scheduler
        self.counted = {}
        for at, (name, refs, owners, cached) in enumerate(
            zip(
                self.group_ids,
                page_references(scheduler),
                page_owners(scheduler),
                device_pages(scheduler),
                strict=True,
            )
        ):
            used = {page for page, count in enumerate(refs) if count}
            loose = set(cached.values()) - used
            parents = {
                (page - 1) // self.config.cache_groups[at].cache_blocks_per_lcm_block for page in used | loose
            }
            self.counted[name] = (len(parents), len(loose), len(used - set(owners)), len(owners))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("tier", TIERS)
def test_the_rounds_own_figures_are_those_of_the_plan_and_the_pool(role: str, tier: str) -> None:
    blockers = pinned = 0
    for seed in range(25):
        run = Before(scenario_of(Random(seed), role, tier), check=False)
        run.scheduler.journal = journal = Journal()
        for plan in run.rounds():
            told = journal.round
            assert told is not None
            spent = ops = 0
            for batch in plan.forward:
                paid = batch.num_extends() if role == "D" else len(batch.request_ids)
                spent += sum(batch.input_lengths[:paid])
                ops += len(batch.request_ids)
            assert (told.budget_left, told.scheduled) == (told.budget - spent, ops)
            blocker = next((one.request_id for one in attempts(told) if blocks(one)), None)
            assert told.blocker == blocker
            blockers += blocker is not None
            empty = run.config.num_device_pages - 1 - sum(taken for taken, *_ in run.counted.values())
            assert told.before.free == empty
            for name, (_, evictable, only_transfers, held) in run.counted.items():
                group = told.before.groups[name]
                assert (group["evictable"], group["pinned"], group["held"]) == (
                    evictable,
                    only_transfers,
                    held,
                )
                pinned += only_transfers
    assert blockers > 20
    assert pinned or tier == "device" or role == "D"


def attempts(told: RoundJournal) -> list[Attempt]:
    return [one for one in told.entries if isinstance(one, Attempt)]


def blocks(one: Attempt) -> bool:
    """Whether a failed attempt can be what a round retracts for: a readmission or a hand-off never is (§10)."""
    return one.outcome == "no_capacity" and one.phase not in ("prefill, readmission", "hand-off")


class Heard:
    """Notes what a listener is told."""

    def __init__(self) -> None:
        self.serving: str | None = None
        self.hits: list[tuple[str, int]] = []
        self.plans: list[Any] = []

    def serves(self, request: Any) -> None:
        self.serving = None if request is None else request.id

    def admitted(self, request: Any, probe: Any, steps: Any, limit: int, rule: str) -> None:
        assert self.serving == request.id
        assert probe.hit <= limit
        assert rule
        assert steps[0]
        self.hits.append((request.id, probe.hit))

    def planned(self, plan: Any) -> None:
        assert self.serving is None
        self.plans.append(plan)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("tier", TIERS)
def test_a_listener_changes_no_plan_and_hears_of_each_first_chunk_once(role: str, tier: str) -> None:
    heard = 0
    for seed in range(12):
        scenario = scenario_of(Random(seed), role, tier)
        plain, told = Run(scenario, check=False), Run(scenario, check=False)
        told.scheduler.listener = ears = Heard()
        told.scheduler.journal = journal = Journal()
        for expected, plan in zip(plain.rounds(), told.rounds(), strict=True):
            assert told.record(plan) == plain.record(expected)
            assert ears.plans[-1] is plan
            assert journal.round is not None
            firsts = [
                (one.request_id, max(one.hit.device, one.hit.host) // told.config.prefix_granularity)
                for one in journal.round.entries
                if isinstance(one, Attempt) and one.hit and one.outcome in ("scheduled", "incomplete")
            ]
            assert ears.hits == firsts
            heard += len(firsts)
            ears.hits = []
    assert heard > 20
