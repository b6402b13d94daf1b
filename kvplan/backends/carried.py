"""A scheduler whose plans are carried out as they are made, for whatever drives a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.backends.backend import Backend
from kvplan.backends.foretold import Foretold
from kvplan.backends.memory import Memory
from kvplan.backends.workload_script import WorkloadScript
from kvplan.replay.accept import AcceptLengths
from kvplan.replay.workload import Workload
from kvplan.scheduler import Cache, ExecutionEvent, ExecutionPlan, Scheduler, SchedulerConfig


def carried_scheduler(
    config: SchedulerConfig,
    workload: Workload,
    accept: AcceptLengths,
    *,
    device: str = "cpu",
    memory: Memory | None = None,
    copy_delay: int | None = None,
    check: bool = False,
    storage: Foretold | None = None,
) -> CarriedScheduler:
    """A scheduler for a replay's engine in place of its own: its plans are carried out on ``device``.

    ``storage`` is the replay's own, if its loads may fail.

    Raises ``BackendError`` without torch, the device or the memory; ``next_execution_plan`` and ``advance``
    raise ``Violation``.
    """
    script = WorkloadScript(workload, accept)
    backend = Backend(config, script, device=device, memory=memory, copy_delay=copy_delay)
    return CarriedScheduler(config, backend, check=check, storage=storage)


class CarriedScheduler(Scheduler):
    """The engine's scheduler in front of a backend: the same plans, each carried out; acks wait for copies."""

    def __init__(
        self,
        config: SchedulerConfig,
        backend: Backend,
        *,
        check: bool = False,
        storage: Foretold | None = None,
    ) -> None:
        super().__init__(config, check=check)
        self.backend = backend
        self._storage_of_replay = storage

    def next_execution_plan(self) -> ExecutionPlan:
        """Make the next plan and carry it out. Raises ``Violation`` if it is not safe."""
        plan = super().next_execution_plan()
        if self._storage_of_replay is None:
            self.backend.carry_out(plan, self)
        else:
            self.backend.carry_out(plan, self, self._storage_of_replay.failing(plan))
        return plan

    def advance(self, event: ExecutionEvent) -> None:
        """Take what has happened; a transfer's ack is taken when its copies are complete."""
        for one in event.events:
            if isinstance(one, Cache.WriteBackDoneEvent | Cache.LoadBackDoneEvent):
                self.backend.settle(one.op_id)
        super().advance(event)

    def register_storage_keys(
        self, groups: Sequence[int], hashes: Sequence[str], offsets: Sequence[int]
    ) -> None:
        """Note page keys that storage holds."""
        super().register_storage_keys(groups, hashes, offsets)
        if self.backend.storage is not None:
            self.backend.storage.register(zip(groups, hashes, offsets, strict=True))

    def unregister_storage_keys(
        self, groups: Sequence[int], hashes: Sequence[str], offsets: Sequence[int]
    ) -> None:
        """Forget page keys that storage held."""
        super().unregister_storage_keys(groups, hashes, offsets)
        if self.backend.storage is not None:
            self.backend.storage.unregister(zip(groups, hashes, offsets, strict=True))
