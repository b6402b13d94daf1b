"""The engine's own runs are safe: every plan of every recording is carried out, and every read finds its own."""

import pytest

from tests.backends.carrying import carry_out
from tests.support.scenario import load_recording, recording_names

pytest.importorskip("torch", reason="carrying plans out needs the extra kvplan-toolkit[torch]")

NAMES = recording_names()


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
    counts = [carry_out(load_recording(name)["scenario"]).backend.counts for name in names]
    assert counts[0].rows_sent > 0
    assert counts[1].rows_received > 0
    assert counts[1].pages_stored > 0
    assert counts[1].pages_loaded > 0
