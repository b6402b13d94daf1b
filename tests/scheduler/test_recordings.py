"""The engine's own runs: every plan, page and counter the same, every round."""

import pytest
from support.drive import Run
from support.scenario import load_recording, recording_names

NAMES = recording_names()


def test_all_247_recordings_are_there() -> None:
    assert len(NAMES) == 247


@pytest.mark.parametrize("name", NAMES)
def test_recording_plays_identically(name: str) -> None:
    recording = load_recording(name)
    expected = recording["result"]
    run = Run(recording["scenario"])
    assert run.scheduler.max_single_request_tokens() == expected["max_single_request_tokens"]
    rounds = 0
    for rounds, plan in enumerate(run.rounds(), 1):
        assert rounds <= len(expected["rounds"]), "the engine was done before this round"
        assert run.record(plan) == expected["rounds"][rounds - 1], f"round {rounds - 1}"
    assert rounds == len(expected["rounds"])
    assert sorted(run.rejected) == expected["rejected"]
    assert sorted(run.live) == expected["unfinished"]
