"""What the GPU's tests do, done on a CPU with small sizes, so that they are known to run where there is a GPU."""

import pytest

from tests.support.scenario import load_recording

pytest.importorskip("torch", reason="carrying plans out needs the extra kvplan-toolkit[torch]")

from tests.backends.test_gpu import NAMES, GpuRun, soak


class HereRun(GpuRun):
    device = "cpu"


def test_its_recordings_run() -> None:
    recording = load_recording(NAMES[3])
    run = HereRun(recording["scenario"])
    for _ in run.rounds():
        pass
    assert run.backend.counts.rounds == len(recording["result"]["rounds"])


def test_its_soak_runs_as_long_as_it_says() -> None:
    rounds, allocated = soak(HereRun, 1024 * 4 * 8, 400)
    assert rounds >= 400
    assert allocated == {None}  # torch keeps no account of a CPU
