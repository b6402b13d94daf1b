"""No two pages that a request has filled can be mistaken for each other, in any of the engine's own runs."""

from random import Random
from typing import Any

import pytest

from kvplan.backends.errors import Violation
from kvplan.scheduler import ExecutionPlan
from kvplan.scheduler.config import GroupKind
from tests.backends.carrying import CarriedRun
from tests.support.scenario import load_recording, recording_names

pytest.importorskip("torch", reason="carrying plans out needs the extra kvplan-toolkit[torch]")

NAMES = [name for name in recording_names() if not name.startswith("real-")][::5]


class Swap:
    """Swaps two filled pages of a full group in the table of one decode, once, from a round on."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._from = rng.randrange(40)
        self.done: tuple[int, str, str] | None = None

    def __call__(self, plan: ExecutionPlan, run: CarriedRun) -> None:
        rounds = run.backend.counts.rounds
        if self.done is not None or rounds < self._from:
            return
        full = [group for group in run.config.cache_groups if group.kind == GroupKind.FULL]
        if not full:
            return
        for batch in plan.forward:
            for at in range(batch.num_extends(), len(batch.request_ids)):
                name = batch.request_ids[at]
                group = self._rng.choice(full)
                filled = (run.backend.roll.history(name).length - 1) // group.block_granularity
                if filled < 2:
                    continue
                row = batch.block_tables[group.group_id][at]
                one, other = self._rng.sample(range(filled), 2)
                row[one], row[other] = row[other], row[one]
                self.done = (rounds, name, group.group_id)
                return


@pytest.mark.parametrize("name", NAMES)
def test_a_swap_is_noticed_in_its_round(name: str) -> None:
    scenario = load_recording(name)["scenario"]
    run = CarriedRun(scenario)
    swap = Swap(Random(name))
    carry_out = run.backend.carry_out

    def swapped(plan: ExecutionPlan, scheduler: Any) -> None:
        swap(plan, run)
        carry_out(plan, scheduler)

    run.backend.carry_out = swapped  # type: ignore[method-assign, assignment]
    caught: Violation | None = None
    try:
        for _ in run.rounds():
            pass
    except Violation as error:
        caught = error
    if swap.done is None:
        assert caught is None
        return
    assert caught is not None
    assert (caught.round, caught.request_id, caught.group) == swap.done
    assert "and finds position" in caught.what


def test_swaps_were_there_to_be_noticed() -> None:
    done = 0
    for name in NAMES[:10]:
        run = CarriedRun(load_recording(name)["scenario"])
        swap = Swap(Random(name))
        for plan in run.rounds():
            swap(plan, run)
        done += swap.done is not None
    assert done >= 5
