"""The engine's own runs are safe: every plan of every recording is carried out, and every read finds its own."""

import pytest

pytest.importorskip("torch", reason="carrying plans out needs the extra kvplan-toolkit[torch]")

from support.scenario import load_recording, recording_names

from backends.carrying import carry_out

# The long ones are read row by row in seconds each; one of each kind is enough here.
LONG = ("real-azure-conv-fused-mixed", "real-azure-conv-undeclared-retracts", "real-mooncake-conversation-l2")
NAMES = [name for name in recording_names() if name not in LONG[1:]]


@pytest.mark.parametrize("name", NAMES)
def test_every_read_of_a_recording_finds_its_own_history(name: str) -> None:
    recording = load_recording(name)
    run = carry_out(recording["scenario"])
    assert run.backend.counts.rounds == len(recording["result"]["rounds"])
    assert sorted(run.live) == recording["result"]["unfinished"]
    if any("forward" in played for played in recording["result"]["rounds"]):
        assert run.backend.counts.rows_read >= run.backend.counts.rows_written > 0


def test_the_recordings_exercise_every_kind_of_access() -> None:
    names = (
        "p-full+swa+state-loadback-s1616",
        "d-full+swa+replay-retractdecode-loadback-streamordered-replay-s1607",
    )
    there = recording_names()
    for name in names:
        if name not in there:
            pytest.skip(f"{name} is not among the recordings")
    counts = [carry_out(load_recording(name)["scenario"]).backend.counts for name in names]
    assert counts[0].rows_sent > 0
    assert counts[1].rows_received > 0
    assert counts[1].pages_stored > 0
    assert counts[1].pages_loaded > 0
