"""When transfers are acknowledged: as the copies end, where a device or a delay says when that is."""

import pytest

from kvplan.backends.backend import Backend
from kvplan.backends.carried import CarriedScheduler
from kvplan.backends.check import CheckResult, check_plan
from kvplan.backends.random_workload import random_workload
from kvplan.backends.streams import CpuStream, CudaStream
from kvplan.backends.transfers import Transfers
from kvplan.replay.accept import parse_accept
from kvplan.scheduler import (
    Cache,
    CacheGroupConfig,
    CacheRetention,
    CacheTransferPolicy,
    ExecutionEvent,
    SchedulerConfig,
)

pytest.importorskip("torch", reason="carrying plans out needs the extra kvplan-toolkit[torch]")

from tests.backends.fake_cuda import FakeCuda, as_torch

Role = SchedulerConfig.Role


def config(role: SchedulerConfig.Role = Role.Fused) -> SchedulerConfig:
    """A pool of 24 blocks of four tokens beside a host pool of 200, full and sliding."""
    policy = CacheTransferPolicy.FullSuffix
    return SchedulerConfig(
        role=role,
        prefix_granularity=4,
        num_device_pages=25,
        num_host_pages=201,
        max_scheduled_tokens=32,
        max_batch_size=3,
        enable_mixed_prefill_decode=role is Role.Fused,
        cache_groups=[
            CacheGroupConfig("full", 4, total_pages=25, transfer_policy=policy),
            CacheGroupConfig(
                "sliding",
                4,
                retention=CacheRetention.SlidingWindow,
                sliding_window_tokens=6,
                total_pages=25,
                transfer_policy=policy,
            ),
        ],
    )


def check(role: SchedulerConfig.Role, delay: int | None, seed: int = 0) -> CheckResult:
    made = config(role)
    made.validate()
    workload = random_workload(made, 30, seed)
    return check_plan(workload, made, parse_accept(None, 1, 0), copy_delay=delay, max_rounds=20_000)


@pytest.mark.parametrize("role", Role)
def test_copies_that_take_rounds_are_acknowledged_after_them(role: SchedulerConfig.Role) -> None:
    at_once = check(role, None)
    later = [check(role, delay) for delay in (0, 3, 500)]
    assert all(result.safe and result.ending == "complete" for result in [at_once, *later])
    assert all(result.finished == 30 for result in later)
    assert at_once.acks.startswith("at once")
    assert all(result.acks == "when the device has copied" for result in later)
    if role is not Role.D:
        assert all(result.counts.pages_stored > 20 for result in later)
        assert later[-1].counts.rounds > at_once.counts.rounds  # pages stay pinned, so requests wait for them


@pytest.mark.parametrize("role", Role)
def test_a_device_s_own_timing_ends_no_replay_too_early(
    role: SchedulerConfig.Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvplan.backends.backend.copy_stream", lambda device, delay: CudaStream(device))
    for seed in (0, 1, 2, 3, 5, 6, 7, 8):  # the fourth ends in a real stall without any delay
        cuda = FakeCuda(seed)
        monkeypatch.setattr("kvplan.backends.streams.load_torch", lambda cuda=cuda: as_torch(cuda))
        result = check(role, 0, seed)
        assert result.safe, str(result.violation)
        assert (result.ending, result.finished) == ("complete", 30)


def test_an_ack_is_kept_while_rounds_go_on() -> None:
    made = config()
    workload = random_workload(made, 1, 0)
    from kvplan.backends.workload_script import WorkloadScript

    backend = Backend(made, WorkloadScript(workload, parse_accept(None, 1, 0)), copy_delay=3)
    scheduler = CarriedScheduler(made, backend, acks_by_device=True)
    taken: list[int] = []
    backend.done = lambda op_id: bool(taken)  # type: ignore[method-assign]
    backend.settle = lambda op_id: None  # type: ignore[method-assign]
    before = scheduler.state_signature()
    scheduler.advance(ExecutionEvent([Cache.WriteBackDoneEvent(7)]))
    assert [one.op_id for one in scheduler._kept] == [7]
    assert (
        scheduler.state_signature() != before
    )  # two rounds with an ack that may still come are never the same
    taken.append(7)
    scheduler._take(scheduler._kept)
    assert scheduler._kept == []
    assert scheduler.state_signature() == before


def test_an_ack_before_its_copy_is_caught_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that says that it has copied, and has not."""
    monkeypatch.setattr(Transfers, "done", lambda self, op_id: True)
    monkeypatch.setattr(CpuStream, "end_of_round", lambda self: None)
    settle = Transfers.settle

    def hasty(self: Transfers, op_id: int) -> None:
        store = self._stores.get(op_id)
        if store is not None:
            store.ticket = type("Done", (), {"wait": lambda self: None, "done": lambda self: True})()
        settle(self, op_id)

    monkeypatch.setattr(Transfers, "settle", hasty)
    result = check(Role.Fused, 5)
    assert not result.safe
    assert "to host page" in str(result.violation)
    assert "and it holds " in str(result.violation)
