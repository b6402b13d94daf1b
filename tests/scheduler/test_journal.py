"""The journal tells of every request's turn, and the reason it states follows the rule's own inputs."""

from __future__ import annotations

from random import Random

import pytest
from support.drive import Run
from support.scenarios import ROLES, TIERS, scenario_of

from kvplan.scheduler.journal import Attempt, Held, Journal

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
