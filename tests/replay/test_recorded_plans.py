"""The loop does what engine.md §13 says: the engine's own scenarios get the engine's own plans out of it."""

from typing import Any

import pytest

from kvplan.replay.play import Ending, play
from kvplan.scheduler import ExecutionPlan
from tests.replay.scenario import engine_of, on_device_only, playable
from tests.support.scenario import load_recording, recording_names

Forward = tuple[list[str], list[int], list[int], list[int]]


def recorded(result: dict[str, Any]) -> list[Forward]:
    """What each forward of a recording held: requests, inputs, prefixes and replayed rows."""
    forwards = [played["forward"] for played in result["rounds"] if "forward" in played]
    return [(each["requests"], each["inputs"], each["prefix"], each["replay"]) for each in forwards]


NAMES = [
    name
    for name in recording_names()
    if name.startswith(("fused-", "verify-fused-", "real-azure-conv-undeclared"))
    and playable(load_recording(name)["scenario"])
]


@pytest.mark.parametrize("name", NAMES)
def test_the_loop_gets_the_engine_s_plans(name: str) -> None:
    recording = load_recording(name)
    scenario, result = recording["scenario"], recording["result"]
    engine, arrivals = engine_of(scenario)
    planned: list[Forward] = []
    plan = engine.scheduler.next_execution_plan

    def planning() -> ExecutionPlan:
        made = plan()
        planned.extend(
            (batch.request_ids, batch.input_lengths, batch.extend_prefix_lens, batch.extend_replay_lens)
            for batch in made.forward
        )
        return made

    engine.scheduler.next_execution_plan = planning  # type: ignore[method-assign]
    ending, _ = play(engine, arrivals, max_rounds=scenario.get("max_rounds"))
    expected = recorded(result)
    if result["unfinished"]:  # a dead end is left when it is noticed; the engine went round it for 400 rounds
        assert ending is not Ending.COMPLETE
        shared = min(len(planned), len(expected))
        assert planned[:shared] == expected[:shared]
        assert shared > len(expected) // 20
    else:
        assert ending is Ending.COMPLETE
        assert planned == expected
    assert sorted(flight.request_id for flight in engine.refused) == result["rejected"]
    if ending is not Ending.ROUND_LIMIT:
        assert sorted(engine.live) == result["unfinished"]


def test_the_recordings_hold_every_kind_of_engine_that_a_replay_plays() -> None:
    scenarios = [load_recording(name)["scenario"] for name in NAMES]
    assert len(NAMES) > 90
    assert sum(map(on_device_only, scenarios)) > 55
    assert {scenario["config"].get("overlap_schedule_depth", 0) for scenario in scenarios} == {0, 1}
    assert any(scenario.get("update_reserve") for scenario in scenarios)
