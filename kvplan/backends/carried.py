"""A scheduler whose plans are carried out as they are made, for whatever drives a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.backends.backend import Backend
from kvplan.scheduler import Cache, ExecutionEvent, ExecutionPlan, Scheduler, SchedulerConfig


class CarriedScheduler(Scheduler):
    """The engine's scheduler in front of a backend: the same plans, each carried out; acks wait for copies."""

    def __init__(self, config: SchedulerConfig, backend: Backend, *, check: bool = False) -> None:
        super().__init__(config, check=check)
        self.backend = backend

    def next_execution_plan(self) -> ExecutionPlan:
        """Make the next plan and carry it out. Raises ``Violation`` if it is not safe."""
        plan = super().next_execution_plan()
        self.backend.carry_out(plan, self)
        return plan

    def advance(self, event: ExecutionEvent) -> None:
        """Take what has happened; a store's ack is taken when its copy is complete."""
        for one in event.events:
            if isinstance(one, Cache.WriteBackDoneEvent):
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
