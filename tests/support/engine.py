"""A scheduler with just enough of an engine around it for tests of a few rounds, all told by hand."""

from collections.abc import Sequence
from typing import Any

from kvplan.scheduler import (
    PD,
    Cache,
    ExecutionEvent,
    ExecutionPlan,
    ForwardEvent,
    RequestSpec,
    Scheduler,
    SchedulerConfig,
)
from kvplan.scheduler.plan import Batch


def tokens(count: int, seed: int = 0, shared: int = 0) -> list[int]:
    """``count`` token ids; the first ``shared`` are those of every other such prompt, the rest the seed's own."""
    return [at if at < shared else 1_000_000 * (seed + 1) + at for at in range(count)]


class Engine:
    """Submits, plans and answers. ``results`` of a plan land with ``land`` unless a test tells otherwise."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.scheduler = Scheduler(config, check=True)
        self.role = config.role.name
        self.next_token = 7_000_000

    def submit(self, rid: str, prompt: int | Sequence[int], max_new: int = 0, **fields: Any) -> None:
        """Submit a prompt, of its own tokens if a length is given; on P and D the handshake follows."""
        words = tokens(prompt, seed=hash_of(rid)) if isinstance(prompt, int) else prompt
        self.scheduler.submit_requests([RequestSpec(rid, words, max_new, **fields)])
        if self.role != "Fused":
            self.tell(PD.BootstrappedEvent(rid))

    def tell(self, *events: Any) -> None:
        self.scheduler.advance(ExecutionEvent(list(events)))

    def plan(self) -> ExecutionPlan:
        return self.scheduler.next_execution_plan()

    def land(self, plan: ExecutionPlan, accepted: int = 1) -> None:
        """The results of a plan's forward: a token for a completed prompt, ``accepted`` for a decode step."""
        for batch in plan.forward:
            for at, rid in enumerate(batch.request_ids):
                if at < batch.num_extends():
                    end = batch.extend_prefix_lens[at] + batch.input_lengths[at]
                    self.result(rid, 1 if end == batch.prefill_lengths[at] else 0)
                else:
                    self.result(rid, accepted)

    def result(self, rid: str, count: int) -> None:
        first = self.next_token
        self.next_token += count
        self.tell(ForwardEvent.ExtendResult(rid, list(range(first, first + count))))

    def step(self, accepted: int = 1) -> ExecutionPlan:
        """A plan, and its results."""
        plan = self.plan()
        self.land(plan, accepted)
        return plan

    def steps(self, count: int) -> list[ExecutionPlan]:
        return [self.step() for _ in range(count)]

    def finish(self, *rids: str) -> None:
        self.tell(*(ForwardEvent.Finish(rid) for rid in rids))

    def abort(self, *rids: str) -> None:
        self.tell(*(ForwardEvent.Abort(rid) for rid in rids))

    def ack(self, plan: ExecutionPlan, success: bool = True) -> None:
        """The ends of a plan's transfers."""
        for op in plan.cache:
            for op_id in op.op_ids:
                if isinstance(op, Cache.WriteBackOp):
                    self.tell(Cache.WriteBackDoneEvent(op_id))
                else:
                    self.tell(Cache.LoadBackDoneEvent(op_id, success))

    def run(self, rid: str, prompt: int | Sequence[int], outputs: int = 1, **fields: Any) -> None:
        """A request from its submission to its Finish, with transfers acked at once."""
        self.submit(rid, prompt, **fields)
        size = self.scheduler.request_token_size(rid)
        while self.scheduler.request_token_size(rid) < size + outputs:
            plan = self.step()
            self.ack(plan)
        self.finish(rid)

    def state(self, rid: str) -> str:
        return self.scheduler.request_state(rid)

    def states(self, *rids: str) -> list[str]:
        return [self.state(rid) for rid in rids]


def hash_of(rid: str) -> int:
    """A small number of a request's own."""
    number: int = sum(ord(letter) * 31**at for at, letter in enumerate(rid))
    return number % 1_000


def inputs(plan: ExecutionPlan) -> dict[str, int]:
    """What a plan's forward computes: input tokens by request, in batch order."""
    return {
        rid: length
        for batch in plan.forward
        for rid, length in zip(batch.request_ids, batch.input_lengths, strict=True)
    }


def table(batch: Batch, rid: str, group: str = "full") -> list[int]:
    """One request's block table in a batch, without its padding."""
    row = batch.block_tables[group][batch.request_ids.index(rid)]
    return [page for page in row if page >= 0]


def page_table(plan: ExecutionPlan, rid: str, group: str = "full") -> list[int]:
    """The same of a plan's forward."""
    (batch,) = plan.forward
    return table(batch, rid, group)


def hits(plan: ExecutionPlan) -> dict[str, int]:
    """Tokens that each prefill of a forward did not have to compute."""
    (batch,) = plan.forward
    extends = range(batch.num_extends())
    return {
        batch.request_ids[at]: batch.extend_prefix_lens[at] + batch.extend_replay_lens[at] for at in extends
    }


def write_back(plan: ExecutionPlan) -> Cache.WriteBackOp:
    """The plan's stores."""
    (op,) = [op for op in plan.cache if isinstance(op, Cache.WriteBackOp)]
    return op


def load_back(plan: ExecutionPlan) -> Cache.LoadBackOp:
    """The plan's load-backs."""
    (op,) = [op for op in plan.cache if isinstance(op, Cache.LoadBackOp)]
    return op


def has(plan: ExecutionPlan, kind: type[Any]) -> bool:
    """Whether a plan has a transfer of the kind."""
    return any(isinstance(op, kind) for op in plan.cache)
