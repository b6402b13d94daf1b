"""The replay of a trace on one fused engine: a trace and a deployment in, a run out."""

from collections.abc import Callable

from kvplan.replay.accept import AcceptLengths
from kvplan.replay.play import Progress
from kvplan.replay.run import Run
from kvplan.replay.session import begin
from kvplan.replay.step_time import StepTime
from kvplan.replay.storage import Storage
from kvplan.replay.transfers import TransferTimes
from kvplan.replay.workload import Workload
from kvplan.scheduler import Scheduler, SchedulerConfig
from kvplan.traces import Trace


def replay(
    trace: Trace,
    config: SchedulerConfig,
    *,
    deployment: str = "",
    step_time: StepTime | None = None,
    accept: AcceptLengths | None = None,
    max_new_tokens: str | int = "trace",
    speed: float = 1.0,
    concurrency: int | None = None,
    max_rounds: int | None = None,
    seed: int = 0,
    transfer_times: TransferTimes | None = None,
    storage: Storage | None = None,
    force_retract_every: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    check: bool = False,
    scheduler_of: Callable[[SchedulerConfig, Workload, AcceptLengths], Scheduler] | None = None,
) -> Run:
    """Play `trace` through the scheduler of `config` and return what came of it (engine.md §13).

    `step_time` and `accept` are assumed when absent; `max_new_tokens` is what requests declare, see
    `workload.workload_of`; `speed` divides all intervals; `concurrency` is a closed loop of that many
    requests; `max_rounds` bounds the rounds, and `stop` ends the replay after the round in which it says so.
    `storage` is what the storage tier holds and how often its loads fail; `force_retract_every` retracts a
    running request every so many rounds. `progress` is told now and then how far it is. `check` verifies the
    scheduler's invariants in every round. `scheduler_of` makes the scheduler, where a backend is to carry its
    plans out. The same arguments give the same run. Raises ValueError for a bad argument or configuration.
    """
    session = begin(
        trace,
        config,
        deployment=deployment,
        step_time=step_time,
        accept=accept,
        max_new_tokens=max_new_tokens,
        speed=speed,
        concurrency=concurrency,
        seed=seed,
        transfer_times=transfer_times,
        storage=storage,
        force_retract_every=force_retract_every,
        check=check,
        scheduler_of=scheduler_of,
    )
    return session.run(*session.play(max_rounds, progress=progress, stop=stop))
