"""The replay of a trace on one fused engine: a trace and a deployment in, a run out."""

from collections.abc import Callable

from kvplan.replay.accept import AcceptLengths, parse_accept
from kvplan.replay.arrivals import Arrivals
from kvplan.replay.engine import Engine
from kvplan.replay.play import Progress, play
from kvplan.replay.run import Assumptions, Run, run_of
from kvplan.replay.step_time import StepTime
from kvplan.replay.storage import Storage
from kvplan.replay.transfers import TransferTimes, loaded_group
from kvplan.replay.workload import Workload, workload_of
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
    plans out. The same arguments give the same run. Raises ValueError for a bad
    argument or configuration.
    """
    if config.role is not SchedulerConfig.Role.Fused:
        raise ValueError(f"role {config.role.name} is given; a replay plays one engine of role Fused")
    if force_retract_every is not None and force_retract_every < 1:
        raise ValueError(f"force-retract-every {force_retract_every} is given; 1 round or more is expected")
    if storage is not None and not config.enable_l3_storage:
        raise ValueError("storage is given; it needs enable_l3_storage and a host pool in the deployment")
    if max_rounds is not None and max_rounds < 1:
        raise ValueError(f"max_rounds {max_rounds} is given; 1 round or more is expected")
    accept = accept or parse_accept(None, config.decode_input_tokens)
    workload = workload_of(trace.scaled(speed=speed), max_new_tokens)
    engine = Engine(
        scheduler=(
            Scheduler(config, check=check) if scheduler_of is None else scheduler_of(config, workload, accept)
        ),
        workload=workload,
        step_time=step_time or StepTime(),
        accept=accept,
        decode_width=config.decode_input_tokens,
        overlap=config.overlap_schedule_depth,
        transfer_times=transfer_times or TransferTimes(),
        storage=storage,
        loaded_group=loaded_group(config),
        force_retract_every=force_retract_every,
    )
    if storage is not None:
        storage.fill(engine.scheduler, workload)
    ending, stuck = play(
        engine, Arrivals(workload, concurrency), max_rounds=max_rounds, progress=progress, stop=stop
    )
    assumptions = Assumptions(
        step_time=engine.step_time,
        step_time_given=step_time is not None,
        accept_length=accept.mean,
        accept_basis=accept.basis,
        speed=speed,
        concurrency=concurrency,
        max_new_tokens=str(max_new_tokens),
        undeclared_requests=sum(1 for budget in workload.budgets if not budget),
        seed=seed,
    )
    return run_of(engine, ending, stuck, trace, config, deployment, assumptions)
