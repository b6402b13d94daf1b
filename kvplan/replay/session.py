"""A replay that can be stopped, kept and taken up again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvplan.replay.accept import AcceptLengths, parse_accept
from kvplan.replay.arrivals import Arrivals
from kvplan.replay.dead_end import DeadEnd
from kvplan.replay.engine import Engine
from kvplan.replay.play import Ending, Progress, play
from kvplan.replay.run import Assumptions, Run, run_of, tier_assumptions
from kvplan.replay.step_time import StepTime
from kvplan.replay.storage import Storage
from kvplan.replay.transfers import TransferTimes, loaded_group
from kvplan.replay.workload import Workload, parse_budget, workload_of
from kvplan.scheduler import Scheduler, SchedulerConfig
from kvplan.traces import Trace


@dataclass(slots=True)
class Session:
    """One engine in the middle of a trace, and everything that its run is made of."""

    trace: Trace
    config: SchedulerConfig
    deployment: str
    assumptions: Assumptions
    engine: Engine
    arrivals: Arrivals

    @property
    def round(self) -> int:
        """The round that is played next."""
        return self.engine.round_index

    def play(
        self,
        until: int | None = None,
        *,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> tuple[Ending, DeadEnd | None]:
        """Play on until round ``until`` is the next one, or ``stop`` says so; how it ended.

        Raises ValueError for a limit below 1 round.
        """
        if until is not None and until < 1:
            raise ValueError(f"max_rounds {until} is given; 1 round or more is expected")
        if until is not None and self.round >= until:
            return Ending.ROUND_LIMIT, None
        return play(self.engine, self.arrivals, max_rounds=until, progress=progress, stop=stop)

    def changed(
        self, config: SchedulerConfig | None = None, max_new_tokens: str | int | None = None
    ) -> Session:
        """A session from the first round on with another configuration or declared budget, all else the same.

        Only of a session that has not played a round yet.
        """
        engine, given = self.engine, self.assumptions
        again = begin(
            self.trace,
            config or self.config,
            deployment=self.deployment,
            step_time=engine.step_time,
            accept=engine.accept,
            max_new_tokens=parse_budget(given.max_new_tokens) if max_new_tokens is None else max_new_tokens,
            speed=given.speed,
            concurrency=given.concurrency,
            seed=given.seed,
            transfer_times=engine.transfer_times.fresh(),
            storage=copy.deepcopy(engine.storage),
            force_retract_every=engine.force_retract_every,
        )
        again.assumptions = replace(again.assumptions, step_time_given=given.step_time_given)
        return again

    def run(self, ending: Ending, dead_end: DeadEnd | None = None) -> Run:
        """The record of what was played; the engine's logs must reach back to round 0."""
        return run_of(
            self.engine, ending, dead_end, self.trace, self.config, self.deployment, self.assumptions
        )


def begin(
    trace: Trace,
    config: SchedulerConfig,
    *,
    deployment: str = "",
    step_time: StepTime | None = None,
    accept: AcceptLengths | None = None,
    max_new_tokens: str | int = "trace",
    speed: float = 1.0,
    concurrency: int | None = None,
    seed: int = 0,
    transfer_times: TransferTimes | None = None,
    storage: Storage | None = None,
    force_retract_every: int | None = None,
    check: bool = False,
    scheduler_of: Callable[[SchedulerConfig, Workload, AcceptLengths], Scheduler] | None = None,
) -> Session:
    """A session before its first round; the arguments are those of ``replay.replay``."""
    if config.role is not SchedulerConfig.Role.Fused:
        raise ValueError(f"role {config.role.name} is given; a replay plays one engine of role Fused")
    if force_retract_every is not None and force_retract_every < 1:
        raise ValueError(f"force-retract-every {force_retract_every} is given; 1 round or more is expected")
    if storage is not None and not config.enable_l3_storage:
        raise ValueError("storage is given; it needs enable_l3_storage and a host pool in the deployment")
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
        tiers=tier_assumptions(engine.transfer_times, storage) if config.has_host_cache else None,
        force_retract_every=force_retract_every,
    )
    return Session(trace, config, deployment, assumptions, engine, Arrivals(workload, concurrency))


def workload_again(trace: Trace, assumptions: Assumptions) -> Workload:
    """The workload that a run played, made again of its trace."""
    return workload_of(trace.scaled(speed=assumptions.speed), parse_budget(assumptions.max_new_tokens))
