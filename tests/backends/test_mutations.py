"""Seventeen things that a broken scheduler would do, each at random places of every role and tier: all are caught.

Where one is not, nothing has come to harm: the request was given up before it read the page.
"""

from random import Random

import pytest

from tests.support.scenarios import ROLES, TIERS, scenario_of

pytest.importorskip("torch", reason="carrying plans out needs the extra kvplan-toolkit[torch]")

from kvplan.backends.errors import Violation
from tests.backends.mutations import (
    MUTATIONS,
    Mutation,
    mutated,
    store_of_another_page,
    store_to_another_page,
)
from tests.backends.test_violations import BACK

SEEDS = 12
ROLES_OF = {
    "drop_a_page_of_the_window": ("Fused", "D"),  # it is a decode's
    "landing_behind_a_longer_hit": ("D",),
    "landing_in_swapped_pages": ("D",),
    "send_of_another_page": ("P",),
    "load_back_to_another_page": ("Fused", "D"),  # on P too few of the scenarios have two such pages
    "load_back_from_another_page": ("Fused", "D"),
}
# What may come to no harm: a prompt that is given up before its first decode.
MAY_PASS = {"landing_behind_a_longer_hit": 0.2}
EVERYWHERE = [one for one in MUTATIONS if one is not store_to_another_page]


PLACES = [
    pytest.param(role, mutation, id=f"{mutation.__name__}-{role}")
    for mutation in EVERYWHERE
    for role in ROLES_OF.get(mutation.__name__, ROLES)
]


@pytest.mark.parametrize(("role", "mutation"), PLACES)
def test_a_mutation_is_caught_wherever_it_happens(role: str, mutation: Mutation) -> None:
    name = mutation.__name__
    missed, caught = [], 0
    for tier in TIERS:
        for seed in range(SEEDS):
            one = scenario_of(Random(f"{role} {tier} {seed}"), role, tier)
            done, error = mutated(one, mutation, Random(f"{name} {role} {tier} {seed}"))
            if done is None:
                continue  # there was no place for it
            if error is None:
                missed.append((tier, seed, done))
                continue
            caught += 1
            told(error, done, one["requests"])
    assert caught >= 3
    assert len(missed) <= MAY_PASS.get(name, 0) * caught, missed


def told(error: Violation, done: int, requests: list[dict[str, object]]) -> None:
    """Round, request, group, page and who wrote it last."""
    assert error.round >= done
    assert error.request_id in [request["id"] for request in requests]
    assert error.group
    assert error.page > 0 or "of its table is null" in error.what or "is not there" in error.what
    text = str(error)
    assert text.startswith(f"round {error.round}, request {error.request_id}, ")
    assert f"page {error.page} of {error.group}: " in text
    assert f"; last written by {error.writer}" in text
    assert error.writer == "nobody" or " in round " in error.writer


@pytest.mark.parametrize("mutation", [store_to_another_page, store_of_another_page])
def test_a_page_stored_under_another_s_name_is_found_when_it_comes_back(mutation: Mutation) -> None:
    """Two of a store's host pages are swapped: nothing is wrong on the device until they are loaded back."""
    for seed in range(5):
        done, error = mutated(BACK, mutation, Random(seed), wait=0)
        assert done is not None
        assert error is not None
        told(error, done, BACK["requests"])
