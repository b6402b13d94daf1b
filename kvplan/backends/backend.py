"""A backend: it carries out plan after plan, in the engine's order, and proves each of them safe."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvplan.backends.accesses import Groups, Job
from kvplan.backends.arena import Arena
from kvplan.backends.forward import Forward
from kvplan.backends.ledger import Counts, Ledger
from kvplan.backends.memory import Memory
from kvplan.backends.passes import Passes
from kvplan.backends.peers import Peers
from kvplan.backends.roll import Roll, Script
from kvplan.backends.storage import Storage
from kvplan.backends.streams import copy_stream
from kvplan.backends.torch_module import device_named
from kvplan.backends.transfers import Transfers
from kvplan.scheduler import Cache, ExecutionPlan, Scheduler, SchedulerConfig

SWEEP_ROUNDS = 16  # how often requests that have ended are looked for


class Backend:
    """Carries out the plans of one scheduler on one device.

    ``carry_out`` takes each plan right after it is made. ``settle`` is called before a transfer's ack is
    given to the scheduler (or ``settled`` tells which acks may be given): with ``copy_delay`` None copies beside the
    forward happen only then, with a number so many rounds after their plan; a GPU does them when it does.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        script: Script,
        *,
        device: str = "cpu",
        memory: Memory | None = None,
        copy_delay: int | None = 0,
        failing_loads: Collection[int] = (),
    ) -> None:
        """Allocate the arenas. ``failing_loads`` are ops that storage will not fill.

        Raises ``BackendError`` without torch, the device or the memory.
        """
        memory = memory or Memory.of(config)
        self.device = device_named(device)
        self.memory = memory
        self.arena = Arena(memory.layout(config.num_device_pages - 1), self.device)
        self.storage = Storage(_known_keys(config)) if config.enable_l3_storage else None
        self.failing_loads = failing_loads
        self._depth = config.overlap_schedule_depth
        groups = Groups(config.cache_groups, config.prefix_granularity)
        self._index = {group_id: at for at, group_id in enumerate(groups.ids)}
        host = config.has_host_cache
        self.roll = Roll(script, config.prefix_granularity if host else None)
        self.ledger = Ledger(groups, self.roll)
        passes = Passes(self.arena, self.ledger)
        self._forward = Forward(groups, passes, self.ledger, config.decode_input_tokens)
        self._peers = Peers(groups, passes, self.ledger)
        self._stream = copy_stream(self.device, copy_delay)
        self.host: Arena | None = None
        self._transfers: Transfers | None = None
        if host:
            layout = memory.layout(config.num_host_pages - 1)
            self.host = Arena(layout, device_named("cpu"), pinned=self.device.type == "cuda")
            self._transfers = Transfers(self.arena, self.host, self._stream, self.ledger, self.storage)

    @property
    def counts(self) -> Counts:
        """What was carried out so far."""
        return self.ledger.counts

    # --- a round ------------------------------------------------------------------------------------

    def carry_out(
        self, plan: ExecutionPlan, scheduler: Scheduler, failed_loads: Collection[int] = ()
    ) -> None:
        """Carry a plan out: write-backs, zeroing, load-backs, the forward (design note §2); what the peers do.

        ``failed_loads`` are ops of the plan that storage does not fill, beside those known before; a plan with
        one has no forward. Raises ``Violation`` where the plan is not safe.
        """
        for batch in (*plan.forward, plan.remote_prefill):
            for request_id in batch.request_ids if batch is not None else ():
                self.roll.history(request_id)  # so that pages are known by their keys before they move
        self._write_back(plan)
        self._zero(plan)
        lost = self._load_back(plan, {*failed_loads})
        if not lost:
            self._compute(plan, scheduler)
            if plan.remote_prefill is not None:
                self._peers.receive(plan.remote_prefill, self.roll)
        if plan.remote_decode is not None:
            self._peers.send(plan.remote_decode, self.roll)
        self._peers.keep_sending(lambda one: scheduler.request_state(one) == "Decoding")
        self._stream.end_of_round()
        if self.ledger.round % SWEEP_ROUNDS == 0:
            self.roll.forget(lambda one: scheduler.request_token_size(one) < 0)
        self.ledger.round += 1
        self.counts.rounds += 1

    def _write_back(self, plan: ExecutionPlan) -> None:
        for op in plan.cache:
            if isinstance(op, Cache.WriteBackOp):
                self._tiers().store(op)

    def _zero(self, plan: ExecutionPlan) -> None:
        writer = self.ledger.writer("zeroing")
        for group_id, pages in plan.pages_to_zero.items():
            if not pages:
                continue
            group = self._index[group_id]
            if self._transfers is not None:
                self._transfers.guard(group, pages, "is zeroed for another use")
            self.arena.zero(group, pages)
            self.ledger.device.note(group, pages, writer)
            self.counts.pages_zeroed += len(pages)

    def _load_back(self, plan: ExecutionPlan, failed: set[int]) -> bool:
        for op in plan.cache:
            if isinstance(op, Cache.LoadBackOp):
                failed |= {op_id for op_id in op.op_ids if op_id in self.failing_loads}
                self._tiers().load(op, failed)
        return bool(failed)

    def _compute(self, plan: ExecutionPlan, scheduler: Scheduler) -> None:
        for batch in plan.forward:
            jobs = self._forward.jobs(batch, self.roll)
            if not self._depth:
                self._in_step(jobs, scheduler)
            self._forward.run(jobs)
            self.counts.forwards += 1

    def _in_step(self, jobs: Sequence[Job], scheduler: Scheduler) -> None:
        """Without overlap every result has landed, so the scheduler knows as many tokens as the device."""
        for job in jobs:
            known = scheduler.request_token_size(job.history.request_id)
            if job.decode and known != job.begin + 1:
                raise RuntimeError(
                    f"request {job.history.request_id}: the scheduler counts {known} tokens, the device "
                    f"{job.begin + 1}: the script is not what the driver answers"
                )

    def _tiers(self) -> Transfers:
        if self._transfers is None:
            raise ValueError(
                "the plan moves pages to or from a host tier that the configuration does not have"
            )
        return self._transfers

    # --- acks ---------------------------------------------------------------------------------------

    def done(self, op_id: int) -> bool:
        """Whether a transfer's copies are complete, so that its ack may be given."""
        return self._transfers is None or self._transfers.done(op_id)

    def settle(self, op_id: int) -> None:
        """A transfer's ack is about to be given: wait for its copies. Raises ``Violation`` if they went wrong."""
        if self._transfers is not None:
            self._transfers.settle(op_id)

    def finish(self) -> None:
        """Nothing comes any more: wait for the copies that are still out. Raises ``Violation`` if they went
        wrong."""
        if self._transfers is not None:
            self._transfers.finish()

    def settled(self) -> list[int]:
        """The transfers whose copies are complete, oldest first: their acks may be given."""
        return self._transfers.settled() if self._transfers is not None else []


def _known_keys(config: SchedulerConfig) -> int:
    """Keys that a scheduler knows to be stored at most: one for every page the host has room for (§11)."""
    return (config.num_host_pages - 1) * sum(
        group.cache_blocks_per_lcm_block for group in config.cache_groups
    )
