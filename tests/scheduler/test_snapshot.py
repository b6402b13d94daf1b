"""A scheduler that is saved and brought back, and what is taken for one."""

from __future__ import annotations

import os
import pickle
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kvplan.scheduler import Scheduler
from kvplan.scheduler.reading import StateError
from kvplan.scheduler.snapshot import copy_of, load, save
from tests.support.drive import Run
from tests.support.groups import config
from tests.support.peek import state_of
from tests.support.scenarios import ROLES, TIERS, scenario_of


def no_prompts(request_id: str) -> Any:
    raise KeyError(request_id)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("tier", TIERS)
def test_a_copy_goes_on_as_the_original_does(role: str, tier: str) -> None:
    for seed in range(6):
        scenario = scenario_of(Random(seed), role, tier, events=seed % 2 == 0)
        plain, copied = Run(scenario), Run(scenario)
        for plan, same in zip(plain.rounds(), copied.rounds(), strict=True):
            assert copied.record(same) == plain.record(plan)
            assert state_of(copied.scheduler) == state_of(plain.scheduler)
            copied.scheduler = copy_of(copied.scheduler)


def foreign(reduced: Any) -> bytes:
    """A pickle that has ``reduced`` called when it is read."""

    class Foreign:
        def __reduce__(self) -> Any:
            return reduced

    return pickle.dumps(Foreign(), pickle.HIGHEST_PROTOCOL)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (pickle.dumps(print), "builtins.print, which no state"),
        (foreign((os.system, ("true",))), "system, which no state"),
        (pickle.dumps(partial(os.getenv, "PATH")), "os.getenv, which no state"),
        (pickle.dumps(SimpleNamespace()), "SimpleNamespace, which no state"),
        (foreign((getattr, (Scheduler(config()), "__init__"))), "__init__ of Scheduler, which no state"),
        (foreign((getattr, ("text", "upper"))), "upper of str, which no state"),
        (b"ckvplan.scheduler.snapshot\npickle.loads\n.", "pickle.loads, which no state"),
        (b"ckvplan.scheduler.snapshot\nload\n.", "snapshot.load, which no state"),
        (b"ckvplan.nowhere\nThing\n.", "kvplan.nowhere.Thing, which no state"),
        (b"", "cannot be read: EOFError"),
        (b"nothing of ours", "cannot be read"),
        (save(Scheduler(config()))[:200], "cannot be read"),
        (pickle.dumps([1]), "a saved scheduler is expected; this is a saved list"),
    ],
)
def test_what_is_no_saved_scheduler_is_refused_in_one_sentence(data: bytes, said: str) -> None:
    with pytest.raises(StateError) as told:
        load(data, no_prompts)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_a_prompt_that_is_not_there_is_said() -> None:
    run = Run(scenario_of(Random(1), "Fused", "device"))
    next(run.rounds())
    with pytest.raises(StateError, match="cannot be read: KeyError"):
        load(save(run.scheduler), no_prompts)
