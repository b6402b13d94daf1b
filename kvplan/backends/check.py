"""A trace replayed with every plan carried out: are the plans safe?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvplan.backends.allocator import AllocatorReport, allocator_report
from kvplan.backends.backend import Backend
from kvplan.backends.carried import CarriedScheduler, carried_scheduler
from kvplan.backends.errors import Violation
from kvplan.backends.foretold import Foretold
from kvplan.backends.ledger import Counts
from kvplan.backends.memory import Memory
from kvplan.backends.recorded import Scenario
from kvplan.backends.recorded_run import RecordedRun, RecordedScript
from kvplan.backends.torch_module import device_named, device_title, one_thread
from kvplan.replay.accept import AcceptLengths
from kvplan.replay.arrivals import Arrivals
from kvplan.replay.disaggregated import disaggregate
from kvplan.replay.engine import Engine
from kvplan.replay.play import play
from kvplan.replay.step_time import StepTime
from kvplan.replay.workload import Workload
from kvplan.scheduler import SchedulerConfig


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What carrying a trace out came to. ``violation`` is None where every read found its own.

    ``scale_down`` is by how much the memory is smaller than deployed, ``memory_source`` where its sizes are from,
    ``memory_layout`` how a block lies, ``scaled`` what was made smaller, and ``deployed_bytes`` what both arenas
    would take as deployed. ``acks`` says when transfers were answered. ``before`` and ``after`` are the allocator
    before the arena was made and at the end; ``arena_bytes`` and ``host_bytes`` are what the plan promised to take.
    """

    device: str
    role: str
    acks: str
    ending: str
    violation: Violation | None
    counts: Counts
    requests: int
    finished: int
    refused: int
    scale_down: int
    memory_source: str
    memory_layout: str
    scaled: str
    deployed_bytes: int
    device_blocks: int
    arena_bytes: int
    host_bytes: int
    before: AllocatorReport
    after: AllocatorReport

    @property
    def safe(self) -> bool:
        """Whether no plan was found to be unsafe."""
        return self.violation is None


def check_plan(
    workload: Workload,
    config: SchedulerConfig,
    accept: AcceptLengths,
    *,
    memory: Memory | None = None,
    device: str = "cpu",
    copy_delay: int | None = None,
    concurrency: int | None = None,
    max_rounds: int | None = None,
    storage: Foretold | None = None,
) -> CheckResult:
    """Replay a workload on one engine of the configuration's role and carry out every plan.

    On roles P and D the peer is played. ``storage`` is what the storage tier holds and how often it fails.
    Transfers are acknowledged when their copies have come to their end: on a GPU by its own events, on a CPU after
    ``copy_delay`` rounds; None there: at once, where copies happen as late as they may, right before the ack.
    Raises ``ValueError`` for a bad configuration and ``BackendError`` without torch or the device.
    """
    config.validate()

    def of(scheduler: CarriedScheduler) -> _Play:
        playing = _fused if config.role is SchedulerConfig.Role.Fused else _one_role
        return playing(workload, config, accept, scheduler, concurrency, max_rounds, storage)

    def made() -> CarriedScheduler:
        return carried_scheduler(
            config,
            workload,
            accept,
            device=device,
            memory=memory,
            copy_delay=copy_delay,
            storage=storage,
            acks_by_device=_acks_by_device(device, copy_delay),
        )

    acks = _BY_COPIES if _acks_by_device(device, copy_delay) else "at once, right after the copies"
    return _carried_out(config, device, len(workload), acks, made, of)


def check_scenario(
    scenario: Scenario,
    *,
    memory: Memory | None = None,
    device: str = "cpu",
    copy_delay: int | None = None,
    max_rounds: int | None = None,
) -> CheckResult:
    """Play a recorded scenario and carry out every plan.

    A transfer is acknowledged when its copies have come to their end: on a GPU by its own events, on a CPU after
    ``copy_delay`` rounds; None there: after the rounds that the scenario says. Raises ``BackendError`` without
    torch or the device.
    """
    config = scenario.scheduler_config()
    script = RecordedScript(scenario)

    def made() -> CarriedScheduler:
        failing = set(scenario.failing_loads)
        backend = Backend(
            config, script, device=device, memory=memory, copy_delay=copy_delay, failing_loads=failing
        )
        return CarriedScheduler(config, backend)

    def of(scheduler: CarriedScheduler) -> _Play:
        by_device = _acks_by_device(device, copy_delay)
        run = RecordedRun(scenario, scheduler, script, scheduler.backend.settled if by_device else None)
        return _Play(lambda: run.play(max_rounds), lambda: (len(run.finished), len(run.refused)))

    acks = _BY_COPIES if _acks_by_device(device, copy_delay) else "after the scenario's rounds"
    return _carried_out(config, device, len(scenario.requests), acks, made, of)


def _carried_out(
    config: SchedulerConfig,
    device: str,
    requests: int,
    acks: str,
    made: Callable[[], CarriedScheduler],
    of: Callable[[CarriedScheduler], _Play],
) -> CheckResult:
    where = device_named(device)
    before = allocator_report(where)
    scheduler = made()
    backend = scheduler.backend
    run = of(scheduler)
    violation: Violation | None = None
    ending = "violation"
    try:
        with one_thread():
            played = run.play()
            backend.finish()
        ending = played
    except Violation as error:
        violation = error
    finished, refused = run.ended()
    arenas = [backend.arena.layout, *([backend.host.layout] if backend.host is not None else [])]
    deployed = sum(one.blocks * (backend.memory.deployed_bytes or one.block_bytes) for one in arenas)
    return CheckResult(
        device_title(where),
        config.role.name,
        acks,
        ending,
        violation,
        backend.counts,
        requests,
        finished,
        refused,
        backend.memory.scale,
        backend.memory.source,
        backend.memory.lies,
        backend.memory.shrunk,
        deployed,
        config.num_device_pages - 1,
        backend.arena.layout.bytes,
        backend.host.layout.bytes if backend.host is not None else 0,
        before,
        allocator_report(where),
    )


_BY_COPIES = "when the device has copied"


def _acks_by_device(device: str, copy_delay: int | None) -> bool:
    """Whether there is a time at which copies are complete: a GPU has its own, a CPU that of ``copy_delay``."""
    return copy_delay is not None or device_named(device).type == "cuda"


@dataclass(slots=True)
class _Play:
    """A replay that is ready: ``play`` says how it ended, ``ended`` counts requests finished and refused."""

    play: Callable[[], str]
    ended: Callable[[], tuple[int, int]]


def _fused(
    workload: Workload,
    config: SchedulerConfig,
    accept: AcceptLengths,
    scheduler: CarriedScheduler,
    concurrency: int | None,
    max_rounds: int | None,
    storage: Foretold | None,
) -> _Play:
    engine = Engine(
        scheduler=scheduler,
        workload=workload,
        step_time=StepTime(),
        accept=accept,
        decode_width=config.decode_input_tokens,
        overlap=config.overlap_schedule_depth,
        storage=storage,
    )
    if storage is not None:
        storage.fill(scheduler, workload)

    def run() -> str:
        ending, _ = play(engine, Arrivals(workload, concurrency), max_rounds=max_rounds)
        return str(ending)

    return _Play(run, lambda: (len(engine.finished), len(engine.refused)))


def _one_role(
    workload: Workload,
    config: SchedulerConfig,
    accept: AcceptLengths,
    scheduler: CarriedScheduler,
    concurrency: int | None,
    max_rounds: int | None,
    storage: Foretold | None,
) -> _Play:
    prefill = config.role is SchedulerConfig.Role.P
    replay = disaggregate(
        workload,
        config,
        prefill_workers=int(prefill),
        decode_workers=int(not prefill),
        accept=accept,
        concurrency=concurrency,
        max_rounds=max_rounds,
        storage=storage,
        scheduler_of=lambda *_: scheduler,
    )

    def run() -> str:
        replay.play()
        return replay.ending

    return _Play(run, lambda: (len(replay.finished), len(replay.refused)))
