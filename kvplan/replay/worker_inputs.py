"""What a replay through prefill and decode workers is made of: enough to play it, and to play it again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvplan.replay.accept import AcceptLengths
from kvplan.replay.disaggregated import ROUTINGS, Disaggregated, disaggregate
from kvplan.replay.hand_off import TransferLink
from kvplan.replay.step_time import StepTime
from kvplan.replay.storage import Storage
from kvplan.replay.transfers import TransferTimes
from kvplan.replay.workload import Workload, workload_of
from kvplan.scheduler import Scheduler, SchedulerConfig
from kvplan.traces import Trace


@dataclass(frozen=True, slots=True)
class WorkerInputs:
    """A trace, the workers, and what is assumed of time. The arguments are those of ``disaggregate``; ``budget``
    is what requests declare, see ``workload.workload_of``, and ``speed`` divides all intervals."""

    trace: Trace
    config: SchedulerConfig
    prefill_workers: int
    decode_workers: int
    accept: AcceptLengths
    prefill_config: SchedulerConfig | None = None
    routing: str = ROUTINGS[0]
    step_time: StepTime | None = None
    link: TransferLink = field(default_factory=TransferLink)
    page_bytes: Mapping[str, float] = field(default_factory=dict)
    transfer_times: TransferTimes = field(default_factory=TransferTimes)
    budget: str | int = "trace"
    speed: float = 1.0
    concurrency: int | None = None
    max_rounds: int | None = None
    force_retract_every: int | None = None
    storage: Storage | None = None

    def workload(self) -> Workload:
        """Return what the workers are asked for. Raises ``ValueError`` as ``workload_of`` does."""
        return workload_of(self.trace.scaled(speed=self.speed), self.budget)

    def replay(
        self,
        *,
        check: bool = False,
        scheduler_of: Callable[[SchedulerConfig, Workload, AcceptLengths], Scheduler] | None = None,
    ) -> Disaggregated:
        """Return the replay before its first round; the same inputs give the same replay each time.

        ``check`` verifies the schedulers' invariants in every round; ``scheduler_of`` makes them, where a backend
        is to carry their plans out. Raises ``ValueError`` as ``disaggregate`` does.
        """
        # A backend asks the storage itself, so there it is this very one; else each replay draws anew.
        storage = self.storage if scheduler_of is not None else copy.deepcopy(self.storage)
        return disaggregate(
            self.workload(),
            self.config,
            prefill_workers=self.prefill_workers,
            decode_workers=self.decode_workers,
            prefill_config=self.prefill_config,
            routing=self.routing,
            step_time=self.step_time,
            accept=self.accept,
            link=self.link,
            page_bytes=self.page_bytes,
            transfer_times=self.transfer_times,
            concurrency=self.concurrency,
            max_rounds=self.max_rounds,
            force_retract_every=self.force_retract_every,
            storage=storage,
            check=check,
            scheduler_of=scheduler_of,
        )
