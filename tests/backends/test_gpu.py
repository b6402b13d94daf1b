"""The same on a GPU, where there is one: real streams, real events, a real allocator."""

import gc
from pathlib import Path

import pytest

from kvplan.backends.allocator import allocator_report, find_max_blocks
from kvplan.backends.backend import Backend
from kvplan.backends.bandwidth import measure_device
from kvplan.backends.carried import CarriedScheduler
from kvplan.backends.device_file import load_costs
from kvplan.backends.layout import Field, GroupSpec
from kvplan.backends.memory import Memory
from kvplan.scheduler import SchedulerConfig
from tests.backends.carrying import CarriedRun
from tests.backends.small import request, scenario
from tests.support.scenario import load_recording, recording_names

torch = pytest.importorskip("torch", reason="carrying plans out needs the extra kvplan-toolkit[torch]")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is there")

ARENA_BYTES = 40 * 2**30
NAMES = [name for name in recording_names() if not name.startswith("real-")][::12]


class GpuRun(CarriedRun):
    """A scenario on the first GPU."""

    device = "cuda:0"
    memory: Memory | None = None

    def carried(self, config: SchedulerConfig, backend: Backend) -> CarriedScheduler:  # type: ignore[override]
        script = backend.roll.script
        self.backend = Backend(
            config, script, device=self.device, memory=self.memory, failing_loads=self.failing_loads
        )
        return CarriedScheduler(config, self.backend)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_is_safe_on_a_gpu(name: str) -> None:
    recording = load_recording(name)
    run = GpuRun(recording["scenario"])
    for _ in run.rounds():
        pass
    assert run.backend.counts.rounds == len(recording["result"]["rounds"])


def soak(run: type[GpuRun], arena_bytes: int, rounds: int) -> tuple[int, set[int | None]]:
    """Drive an arena of one group for so many rounds; the rounds, and what was allocated every hundred."""
    requests = [
        request(at, (at % 7, 0, 200), (100 + at, 0, 60), output=160, submit=40 * at)
        for at in range(rounds // 40)
    ]
    one = scenario(*requests, num_device_pages=1025, max_scheduled_tokens=256) | {"max_rounds": rounds + 200}
    memory = Memory([GroupSpec("full", 4, 1, (Field("kv", arena_bytes // 1024 // 4),))])
    driven = type("Soak", (run,), {"memory": memory})(one)
    assert driven.backend.arena.layout.bytes == arena_bytes
    allocated = set()
    for _ in driven.rounds():
        if driven.backend.counts.rounds % 100 == 0:
            allocated.add(allocator_report(driven.backend.device).allocated)
    return driven.backend.counts.rounds, allocated


def test_ten_thousand_rounds_in_forty_gib_take_no_more_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < ARENA_BYTES + 2**30:
        pytest.skip("40 GiB are not free on the device")
    rounds, allocated = soak(GpuRun, ARENA_BYTES, 10_000)
    assert rounds >= 10_000
    assert len(allocated) == 1


def test_blocks_are_found_beside_a_reserve() -> None:
    device = torch.device("cuda:0")
    gc.collect()
    torch.cuda.empty_cache()  # an arena that a test has left is free
    free = torch.cuda.mem_get_info(device)[0]
    block = 64 * 2**20
    found = find_max_blocks(block, device, reserve_bytes=free // 2)
    assert 0.4 * free < found * block <= free // 2
    assert allocator_report(device).fragmentation is not None


def test_a_gpu_is_measured_with_events(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    costs = measure_device("cuda:0", sizes=(1 << 16, 1 << 26), repeats=3)
    path.write_text(costs.to_toml())
    assert "CUDA events" in costs.basis
    assert load_costs(path)["zeroing"].bytes_per_s > load_costs(path)["write_back"].bytes_per_s > 1e9
