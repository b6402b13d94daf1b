"""Real streams' code on a device whose copies are late by a seed: nothing is acknowledged or reused too early."""

from random import Random
from typing import Any

import msgspec
import pytest

from kvplan.backends.backend import Backend
from kvplan.backends.carried import CarriedScheduler
from kvplan.backends.errors import Violation
from kvplan.backends.ledger import Counts
from kvplan.backends.recorded import Scenario as Recorded
from kvplan.backends.recorded_run import RecordedRun, RecordedScript
from kvplan.backends.streams import CudaStream
from kvplan.backends.transfers import Transfers
from tests.backends.small import request, scenario
from tests.support.scenario import Scenario
from tests.support.scenarios import ROLES, TIERS, scenario_of

pytest.importorskip("torch", reason="carrying plans out needs the extra kvplan-toolkit[torch]")

from tests.backends.fake_cuda import FakeCuda, as_torch


def late(
    one: Scenario, seed: object, monkeypatch: pytest.MonkeyPatch, fences: bool = True, by_device: bool = True
) -> tuple[Counts, FakeCuda]:
    """Carry a scenario out with late copies. Acks come when the device has copied, or after the rounds that the
    scenario says, waiting for the copies then."""
    cuda = FakeCuda(seed, fences)
    monkeypatch.setattr("kvplan.backends.streams.load_torch", lambda: as_torch(cuda))
    monkeypatch.setattr("kvplan.backends.backend.copy_stream", lambda device, delay: CudaStream(device))
    recorded = msgspec.convert(one, Recorded)
    script = RecordedScript(recorded)
    config = recorded.scheduler_config()
    backend = Backend(config, script, failing_loads=set(recorded.failing_loads))
    for arena in (backend.arena, backend.host):
        if arena is not None:
            arena._in_parts = True  # as beside a GPU
    run = RecordedRun(
        recorded, CarriedScheduler(config, backend), script, backend.settled if by_device else None
    )
    run.play()
    return backend.counts, cuda


def short_landing(error: Violation, one: Scenario) -> bool:
    """The one gap that the engine's own rules leave (``test_remote_landings``)."""
    replayable = [g["group_id"] for g in one["config"]["cache_groups"] if g.get("replayable")]
    return one["config"]["role"] == "D" and error.group in replayable and "is null" in error.what


@pytest.mark.parametrize("by_device", [True, False], ids=["acks by the device", "acks by the round"])
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("role", ROLES)
def test_random_scenarios_are_safe_however_late_copies_are(
    role: str, tier: str, by_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = 0
    for seed in range(25):
        one = scenario_of(Random(f"late {role} {tier} {seed}"), role, tier)
        try:
            counts, cuda = late(one, f"{role} {tier} {seed}", monkeypatch, by_device=by_device)
        except Violation as error:
            if not short_landing(error, one):
                raise
        else:
            moved += sum(stream.given for stream in cuda.streams)
            assert moved >= counts.pages_stored
    assert (moved > 50) == (tier != "device")


CROWDED = scenario(
    request(0, (1, 0, 8), output=40),
    request(1, (2, 0, 8), output=40),
    num_device_pages=14,
    num_host_pages=65,
)


def test_a_fence_that_nobody_waits_at_is_caught_for_most_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of a retracted request's pages, which are given away in the same round."""
    late(CROWDED, "sound", monkeypatch)
    caught = []
    for seed in range(20):
        try:
            late(CROWDED, seed, monkeypatch, fences=False)
        except Violation as error:
            caught.append(error)
    assert len(caught) > 10
    for found in caught:
        assert found.group == "full"
        assert found.request_id in ("r0", "r1")
        assert found.page > 0
        assert "and it holds " in found.what or " finds " in found.what or "before store" in found.what


def test_a_fence_that_nobody_waits_at_is_caught_in_random_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    caught: dict[str, int] = dict.fromkeys(ROLES, 0)
    for role in ROLES:
        for seed in range(60):
            one = scenario_of(Random(f"late {role} {TIERS[1]} {seed}"), role, TIERS[1])
            try:
                late(one, seed, monkeypatch, fences=False)
            except Violation as error:
                caught[role] += not short_landing(error, one)
    assert all(caught.values()), caught


def test_an_ack_that_does_not_ask_the_device_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """All copies are told to be done, and nobody waits for them."""

    def hasty(transfers: Transfers) -> list[int]:
        ready = sorted((*transfers._stores, *transfers._loads))
        for op_id in ready:
            transfers._loads.pop(op_id, None)
            store = transfers._stores.pop(op_id, None)
            for pair in store.pairs if store is not None else ():
                transfers._arriving.pop((pair.group, pair.destination), None)
                transfers._sources.pop((pair.group, pair.source), None)
        return ready

    back = scenario(
        request(0, (1, 0, 22), output=2),
        request(1, (2, 0, 30), output=2, submit=8),
        request(2, (1, 0, 22), (3, 0, 4), output=4, submit=16),
        num_device_pages=10,
        num_host_pages=65,
    )
    assert late(back, 0, monkeypatch)[0].pages_loaded > 0
    monkeypatch.setattr(Transfers, "settled", hasty)
    caught: list[Any] = []
    for seed in range(20):
        try:
            late(back, seed, monkeypatch)
        except Violation as error:
            caught.append(error)
    assert caught
    assert all(error.request_id == "r2" and " finds " in error.what for error in caught)
