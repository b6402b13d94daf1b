"""What `replay-trace`'s flags for tiers and workers mean, and its replay through prefill and decode workers."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kvplan.backends.errors import Violation
from kvplan.commands.errors import FINDING, INTERRUPTED
from kvplan.commands.options import OutputFormat
from kvplan.commands.printing import print_json, print_text
from kvplan.deployment import Deployment, load_deployment
from kvplan.explain.kept_workers import write_inputs
from kvplan.replay.accept import AcceptLengths
from kvplan.replay.disaggregated import ROUTINGS
from kvplan.replay.hand_off import TransferLink
from kvplan.replay.play import Progress
from kvplan.replay.step_time import StepTime, nanoseconds, parse_seconds
from kvplan.replay.storage import Storage
from kvplan.replay.store import write_files
from kvplan.replay.transfers import Link, TransferTimes
from kvplan.replay.worker_inputs import WorkerInputs
from kvplan.replay.workers_run import workers_tables
from kvplan.replay.workers_summary import figures
from kvplan.replay.workload import Workload
from kvplan.reports.disaggregated import workers_json, workers_text
from kvplan.scheduler import Scheduler, SchedulerConfig
from kvplan.scheduler.config import Role
from kvplan.traces import Trace

if TYPE_CHECKING:
    from kvplan.recipes import MemoryPlan

GB = 1e9


def bandwidth(gbps: float | None, flag: str, page_bytes: Mapping[str, int | None]) -> float:
    """Return the bytes a second of a flag in GB/s, unlimited without it.

    Raises ValueError for one that is no positive number, or where the pages have no bytes.
    """
    if gbps is None:
        return math.inf
    if not (math.isfinite(gbps) and gbps > 0):
        raise ValueError(f"{flag} {gbps} is given; a number of GB/s above 0 is expected")
    for group, size in page_bytes.items():
        if size is None:
            raise ValueError(
                f"{flag} is given; it needs bytes_per_page of cache group {group!r} in the deployment"
            )
    return gbps * GB


def _latency(text: str | None, flag: str) -> int:
    return 0 if text is None else nanoseconds(parse_seconds(text, flag))


SchedulerOf = Callable[[SchedulerConfig, Workload, AcceptLengths], Scheduler]


@contextmanager
def violations() -> Iterator[None]:
    """Turn a plan that was found to be unsafe while it was carried out into the finding that it is."""
    try:
        yield
    except Violation as violation:
        print(f"RESULT      violation: {violation}")
        raise typer.Exit(FINDING) from None


def carrier(
    backend: str,
    device: str | None,
    scale_down: int | None,
    deployment: Deployment,
    plan: MemoryPlan | None,
    storage: Storage | None,
    *,
    check: bool,
) -> tuple[SchedulerOf | None, Storage | None]:
    """Return what makes a scheduler whose plans are carried out (None where nobody does), and the storage to
    replay with.

    Raises ValueError for a backend that is not known, or without torch or the device.
    """
    if backend == "none":
        for flag, value in (("--device", device), ("--scale-down", scale_down)):
            if value is not None:
                raise ValueError(f"{flag} {value} is given; it goes with --backend torch")
        return None, storage
    if backend != "torch":
        raise ValueError(f"--backend {backend!r} is given; none or torch is expected")
    from kvplan.backends.carried import carried_scheduler
    from kvplan.backends.foretold import Foretold
    from kvplan.backends.memory import deployed_memory
    from kvplan.backends.torch_module import device_named

    where = "cpu" if device is None else device
    memory = deployed_memory(deployment, plan, scale_down, on_gpu=device_named(where).type == "cuda")
    foretold = None if storage is None else Foretold.of(storage)

    def carried(config: SchedulerConfig, workload: Workload, accept: AcceptLengths) -> Scheduler:
        return carried_scheduler(
            config, workload, accept, device=where, memory=memory, check=check, storage=foretold
        )

    return carried, foretold


def storage_of(text: str | None, failure_rate: float, seed: int) -> Storage | None:
    """Return what `--storage` says: a share from 0 to 1, or a file with a request id a line; None without it.

    Raises ValueError for anything else.
    """
    if text is None:
        return Storage(failure_rate=failure_rate, seed=seed) if failure_rate else None
    try:
        return Storage(float(text), failure_rate, seed)
    except ValueError:
        if not Path(text).is_file():
            raise ValueError(
                f"--storage {text!r} is given; a share from 0 to 1, or a file of request ids, is expected"
            ) from None
    try:
        lines = Path(text).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--storage {text!r} cannot be read: {error}") from None
    return Storage(0.0, failure_rate, seed, frozenset(line.strip() for line in lines if line.strip()))


@dataclass(frozen=True, slots=True)
class TierFlags:
    """How fast the host tier is."""

    write_back_gbps: float | None
    load_back_gbps: float | None
    write_back_latency: str | None
    load_back_latency: str | None
    device_costs: Path | None = None

    def transfer_times(self, deployment: Deployment) -> TransferTimes:
        """Return the links of the host tier. Raises ValueError naming the flag that is wrong."""
        sizes = {at: float(size or 0) for at, size in enumerate(deployment.group_bytes.values())}
        given = {
            "--write-back-gbps": self.write_back_gbps,
            "--load-back-gbps": self.load_back_gbps,
            "--write-back-latency": self.write_back_latency,
            "--load-back-latency": self.load_back_latency,
            "--device-costs": self.device_costs,
        }
        if not deployment.config.has_host_cache:
            for flag, value in given.items():
                if value is not None:
                    raise ValueError(
                        f"{flag} is given without a host pool; --host-blocks or --host-gib gives one"
                    )
        if self.device_costs is not None:
            return self._measured(given, deployment, sizes)
        links = [
            Link(
                _latency(latency, f"--{name}-latency"),
                bandwidth(gbps, f"--{name}-gbps", deployment.group_bytes),
                sizes,
            )
            for name, gbps, latency in (
                ("write-back", self.write_back_gbps, self.write_back_latency),
                ("load-back", self.load_back_gbps, self.load_back_latency),
            )
        ]
        return TransferTimes(*links)

    def _measured(
        self, given: Mapping[str, object], deployment: Deployment, sizes: Mapping[int, float]
    ) -> TransferTimes:
        """Return the links of a measured device."""
        from kvplan.backends.device_file import load_costs

        for flag, value in given.items():
            if value is not None and flag != "--device-costs":
                raise ValueError(f"{flag} and --device-costs are given; one of them is expected")
        assert self.device_costs is not None
        bandwidth(1.0, "--device-costs", deployment.group_bytes)
        costs = load_costs(self.device_costs)
        links = [
            Link(nanoseconds(costs[kind].latency_s), costs[kind].bytes_per_s, sizes)
            for kind in ("write_back", "load_back")
        ]
        return TransferTimes(*links)


@dataclass(frozen=True, slots=True)
class WorkerFlags:
    """How many workers of each role there are, and the way between them."""

    prefill_workers: int | None
    decode_workers: int | None
    routing: str | None
    transfer_gbps: float | None
    transfer_latency: str | None
    prefill_deployment: Path | None = None

    def workers(self, role: Role) -> tuple[int, int] | None:
        """Return the prefill and decode workers to replay through; None for one fused engine.

        A deployment of role P or D alone is one worker of it. Raises ValueError for a count below 0, none at
        all, or a flag that only workers have.
        """
        if self.prefill_workers is None and self.decode_workers is None:
            if role is Role.P:
                return 1, 0
            if role is Role.D:
                return 0, 1
            for flag, value in (
                ("--routing", self.routing),
                ("--transfer-gbps", self.transfer_gbps),
                ("--transfer-latency", self.transfer_latency),
                ("--prefill-deployment", self.prefill_deployment),
            ):
                if value is not None:
                    raise ValueError(f"{flag} is given; it needs --prefill-workers or --decode-workers")
            return None
        counts = (
            1 if self.prefill_workers is None else self.prefill_workers,
            1 if self.decode_workers is None else self.decode_workers,
        )
        for flag, count in zip(("--prefill-workers", "--decode-workers"), counts, strict=True):
            if not 0 <= count <= 1024:
                raise ValueError(f"{flag} {count} is given; a number from 0 to 1024 is expected")
        if not any(counts):
            raise ValueError("--prefill-workers 0 and --decode-workers 0 are given; one worker is the least")
        if self.routing is not None and self.routing not in ROUTINGS:
            raise ValueError(f"--routing {self.routing!r} is given; {' or '.join(ROUTINGS)} is expected")
        return counts

    def prefill_config(self, counts: tuple[int, int]) -> SchedulerConfig | None:
        """Return the prefill workers' own configuration; None where it is the decode workers'.

        Raises ValueError where there are no workers of both roles, or for a file that is wrong.
        """
        if self.prefill_deployment is None:
            return None
        if not all(counts):
            raise ValueError(
                f"--prefill-deployment {self.prefill_deployment} is given with {counts[0]} prefill and "
                f"{counts[1]} decode workers; it goes with workers of both roles, else --deployment is the one"
            )
        loaded = load_deployment(self.prefill_deployment)
        if loaded.usable_blocks is None:
            raise ValueError(
                f"{self.prefill_deployment}: it has no pool size; pool_blocks, pool_tokens or pool_gib is expected"
            )
        return loaded.config

    def link(self, deployment: Deployment) -> TransferLink:
        """Return the link into each decode worker."""
        return TransferLink(
            _latency(self.transfer_latency, "--transfer-latency"),
            bandwidth(self.transfer_gbps, "--transfer-gbps", deployment.group_bytes),
        )


def inputs_of(
    trace: Trace,
    deployment: Deployment,
    counts: tuple[int, int],
    flags: WorkerFlags,
    *,
    budget: str | int,
    step_time: StepTime | None,
    accept: AcceptLengths,
    transfer_times: TransferTimes,
    speed: float,
    concurrency: int | None,
    max_rounds: int | None,
    force_retract_every: int | None,
    storage: Storage | None,
) -> WorkerInputs:
    """Return what a replay through ``counts`` prefill and decode workers is made of. Raises ValueError."""
    return WorkerInputs(
        trace=trace,
        config=deployment.config,
        prefill_workers=counts[0],
        decode_workers=counts[1],
        accept=accept,
        prefill_config=flags.prefill_config(counts),
        routing=flags.routing or ROUTINGS[0],
        step_time=step_time,
        link=flags.link(deployment),
        page_bytes={group: float(size) for group, size in deployment.group_bytes.items() if size is not None},
        transfer_times=transfer_times,
        budget=budget,
        speed=speed,
        concurrency=concurrency,
        max_rounds=max_rounds,
        force_retract_every=force_retract_every,
        storage=storage,
    )


def disaggregated(
    inputs: WorkerInputs,
    flags: WorkerFlags,
    *,
    source: str,
    check: bool,
    scheduler_of: SchedulerOf | None,
    progress: Callable[[Progress], None] | None,
    stop: Callable[[], bool],
    output: Path | None,
    force: bool,
    format: OutputFormat,
) -> int:
    """Replay through workers, print what came of it, and return the exit status.

    ``source`` says where the deployment is from.
    """
    replay = inputs.replay(check=check, scheduler_of=scheduler_of)
    replay.progress, replay.stop = progress, stop
    with violations():
        replay.play()
    own = flags.prefill_deployment
    summary = figures(
        replay,
        inputs.trace,
        inputs.accept,
        inputs.step_time is not None,
        deployment=source,
        prefill_deployment=None if own is None else str(own),
    )
    if output is not None:
        write_files(
            output,
            workers_tables(replay),
            workers_json(summary).encode(),
            force=force,
            # What a backend drew of the storage is gone; what was played besides is the same without it.
            more=lambda directory: write_inputs(inputs, directory),
        )
        print(f"kvplan: the run is in {output}", file=sys.stderr)
    if format is OutputFormat.json:
        print_json(workers_json(summary))
    else:
        print_text(lambda width: workers_text(summary, width))
    if replay.ending == "interrupted":
        return INTERRUPTED
    return 0 if replay.ending == "complete" else FINDING
