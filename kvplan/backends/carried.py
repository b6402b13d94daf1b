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

Ack = Cache.WriteBackDoneEvent | Cache.LoadBackDoneEvent


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
    acks_by_device: bool = False,
) -> CarriedScheduler:
    """A scheduler for a replay's engine in place of its own: its plans are carried out on ``device``.

    ``storage`` is the replay's own, if its loads may fail; ``acks_by_device`` as for ``CarriedScheduler``.

    Raises ``BackendError`` without torch, the device or the memory; ``next_execution_plan`` and ``advance``
    raise ``Violation``.
    """
    script = WorkloadScript(workload, accept)
    backend = Backend(config, script, device=device, memory=memory, copy_delay=copy_delay)
    return CarriedScheduler(config, backend, check=check, storage=storage, acks_by_device=acks_by_device)


class CarriedScheduler(Scheduler):
    """The engine's scheduler in front of a backend: the same plans, each carried out; acks wait for copies.

    An ack that comes before its copies are complete either makes the round wait for them, so that a clock's
    replay is the same each time, or with ``acks_by_device`` is kept until they are, while rounds go on.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        backend: Backend,
        *,
        check: bool = False,
        storage: Foretold | None = None,
        acks_by_device: bool = False,
    ) -> None:
        super().__init__(config, check=check)
        self.backend = backend
        self._storage_of_replay = storage
        self._acks_by_device = acks_by_device
        self._kept: list[Ack] = []

    def next_execution_plan(self) -> ExecutionPlan:
        """Make the next plan and carry it out. Raises ``Violation`` if it is not safe.

        While acks are kept no plan is empty: an engine could take an empty one for the end.
        """
        self._take([one for one in self._kept if self.backend.done(one.op_id)])
        plan = self._carried_out()
        while self._kept and not (plan.forward or plan.cache or plan.remote_prefill or plan.remote_decode):
            self._take(self._kept[:1])
            plan = self._carried_out()
        return plan

    def _carried_out(self) -> ExecutionPlan:
        plan = super().next_execution_plan()
        if self._storage_of_replay is None:
            self.backend.carry_out(plan, self)
        else:
            self.backend.carry_out(plan, self, self._storage_of_replay.failing(plan))
        return plan

    def advance(self, event: ExecutionEvent) -> None:
        """Take what has happened; a transfer's ack is taken when its copies are complete."""
        events = []
        for one in event.events:
            if isinstance(one, Cache.WriteBackDoneEvent | Cache.LoadBackDoneEvent):
                if self._acks_by_device and not self.backend.done(one.op_id):
                    self._kept.append(one)
                    continue
                self.backend.settle(one.op_id)
            events.append(one)
        super().advance(ExecutionEvent(events))

    def _take(self, acks: Sequence[Ack]) -> None:
        """Wait for the copies of kept acks and take them."""
        if not acks:
            return
        self._kept = [one for one in self._kept if one not in acks]
        for one in acks:
            self.backend.settle(one.op_id)
        super().advance(ExecutionEvent([*acks]))

    def state_signature(self) -> bytes:
        """A digest of all that decides the plans to come; of this round alone while copies may still end."""
        state = super().state_signature()
        return state + self.backend.counts.rounds.to_bytes(8, "big") if self._kept else state

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
