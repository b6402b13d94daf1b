"""The engine around the scheduler, as a scenario describes it: it submits, carries out plans, answers."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvplan.scheduler import (
    PD,
    Cache,
    ExecutionEvent,
    ExecutionPlan,
    ForwardEvent,
    RequestSpec,
    Scheduler,
)
from kvplan.scheduler.plan import Batch
from tests.support.record import Record, counters, extras_record, plan_record, shrunk
from tests.support.scenario import TIMING, Scenario, config_of, prompt_tokens, sampled_token


@dataclass(frozen=True)
class Step:
    """One request's part of a forward that is out: how many tokens it may bring."""

    request_id: str
    tokens: int
    decode: bool


@dataclass(frozen=True)
class RemoteDone:
    """A peer's answer that is due: its prefill is done, or it has the pages."""

    request_id: str
    prefill: bool


@dataclass(frozen=True)
class Lost:
    """A forward that could not run because a load-back failed."""

    request_ids: list[str]


class Run:
    """One scenario in flight. ``head`` is what happens before a round's plan, ``tail`` what does after it."""

    def __init__(self, scenario: Scenario, *, check: bool = True, **settings: Any) -> None:
        """``settings`` are fields of the configuration that differ from the scenario's."""
        self.scenario = scenario
        self.timing = TIMING | scenario.get("timing", {})
        self.config = config_of(scenario["config"] | settings)
        self.role = self.config.role.name
        self.group_ids = [group.group_id for group in self.config.cache_groups]
        self.scheduler = Scheduler(self.config, check=check)
        for prompt in scenario.get("storage", []):
            hashes = self.scheduler.prefix_hashes_for_tokens(prompt_tokens(prompt))
            self.scheduler.register_storage_keys(*self.scheduler.expand_prefix_keys(hashes))
        self.failing_loads = set(scenario.get("failing_loads", []))
        self.requests: dict[str, Any] = {r["id"]: r for r in scenario["requests"]}
        self.index_of = {request_id: index for index, request_id in enumerate(self.requests)}
        self.prompts = {rid: prompt_tokens(request["prompt"]) for rid, request in self.requests.items()}
        self.outputs: dict[str, list[int]] = defaultdict(list)
        self.steps: dict[str, int] = defaultdict(int)
        self.live: set[str] = set()
        self.rejected: dict[str, str] = {}
        self.head: dict[int, list[Any]] = defaultdict(list)
        self.tail: dict[int, list[Any]] = defaultdict(list)
        self.cleared: dict[str, bool] = {}

    def rounds(self) -> Iterator[ExecutionPlan]:
        """Each round's plan, as soon as it is made; its answers follow when the next one is asked for."""
        last_submit = max((request.get("submit", 0) for request in self.requests.values()), default=0)
        for round_index in range(self.scenario.get("max_rounds", 4000)):
            self.advance(self.head.pop(round_index, []))
            self.submit(round_index)
            self.advance(self.head.pop(round_index, []))  # handshakes that take no round
            self.cleared = {
                clear["what"]: getattr(self.scheduler, clear["what"])()
                for clear in self.scenario.get("clears", [])
                if clear["round"] == round_index
            }
            self.before_plan()
            plan = self.scheduler.next_execution_plan()
            self.carry_out(round_index, plan)
            yield plan
            self.advance(self.answers(round_index))
            if round_index >= last_submit and not (self.live or self.head or self.tail):
                return

    def before_plan(self) -> None:
        """Called when everything has come in and the plan is about to be made."""

    def advance(self, events: list[Any]) -> None:
        if events:
            self.scheduler.advance(ExecutionEvent(events))

    def submit(self, round_index: int) -> None:
        for rid, request in self.requests.items():
            if request.get("submit", 0) != round_index:
                continue
            spec = RequestSpec(rid, self.prompts[rid], request.get("max_new_tokens", 0))
            if "max_cached_prefix_tokens" in request:
                spec.max_cached_prefix_tokens = request["max_cached_prefix_tokens"]
            try:
                self.scheduler.submit_requests([spec])
            except ValueError as error:
                self.rejected[rid] = str(error)
                continue
            self.live.add(rid)
            if self.role != "Fused":
                self.head[round_index + self.timing["bootstrap"]].append(PD.BootstrappedEvent(rid))

    def carry_out(self, round_index: int, plan: ExecutionPlan) -> None:
        """Note when everything that the plan starts will be answered."""
        lost = {
            op_id
            for op in plan.cache
            if isinstance(op, Cache.LoadBackOp)
            for op_id in op.op_ids
            if op_id in self.failing_loads
        }
        if lost:
            request_ids = [rid for batch in plan.forward for rid in batch.request_ids]
            if plan.remote_prefill is not None:
                request_ids += plan.remote_prefill.request_ids
            self.tail[round_index].append(Lost(request_ids))
        else:
            for batch in plan.forward:
                self.tail[round_index + self.timing["result"]].append(self.steps_of(batch))
            if plan.remote_prefill is not None:
                self.remote(round_index, "remote_prefill", plan.remote_prefill)
        if plan.remote_decode is not None:
            self.remote(round_index, "remote_decode", plan.remote_decode)
        for op in plan.cache:
            for op_id in op.op_ids:
                if isinstance(op, Cache.WriteBackOp):
                    self.head[round_index + self.timing["write_back"]].append(Cache.WriteBackDoneEvent(op_id))
                else:
                    done = Cache.LoadBackDoneEvent(op_id, op_id not in lost)
                    self.head[round_index + self.timing["load_back"]].append(done)

    def remote(self, round_index: int, kind: str, batch: Batch) -> None:
        due = self.tail[round_index + self.timing[kind]]
        due += [RemoteDone(rid, kind == "remote_prefill") for rid in batch.request_ids]

    def steps_of(self, batch: Batch) -> list[Step]:
        steps = []
        extends = batch.num_extends()
        for at, rid in enumerate(batch.request_ids):
            if at < extends:
                end = batch.extend_prefix_lens[at] + batch.input_lengths[at]
                steps.append(Step(rid, 1 if end >= batch.prefill_lengths[at] else 0, False))
            else:
                steps.append(Step(rid, self.accepted(rid), True))
        return steps

    def accepted(self, rid: str) -> int:
        pattern = self.scenario.get("accept", [1])
        step = self.steps[rid]
        self.steps[rid] += 1
        count: int = pattern[(step + self.index_of[rid]) % len(pattern)]
        return count

    def sample(self, rid: str, count: int) -> list[int]:
        """The request's next output tokens, at most as many as it still has to give."""
        first = len(self.outputs[rid])
        count = min(count, self.requests[rid]["output"] - first)
        tokens = [sampled_token(self.index_of[rid], first + at) for at in range(count)]
        self.outputs[rid] += tokens
        return tokens

    def land(self, step: Step) -> list[Any]:
        rid = step.request_id
        tokens = self.sample(rid, step.tokens) if step.tokens else []
        events: list[Any] = [ForwardEvent.ExtendResult(rid, tokens)]
        if step.tokens and len(self.outputs[rid]) >= self.requests[rid]["output"] and self.role != "P":
            events.append(ForwardEvent.Finish(rid))
            self.live.discard(rid)
        elif step.decode and self.scenario.get("update_reserve"):
            events.append(ForwardEvent.UpdateReserveNumTokens(rid, len(tokens)))
        return events

    def answers(self, round_index: int) -> list[Any]:
        """The events that have come by the end of a round."""
        events: list[Any] = []
        for answer in self.tail.pop(round_index, []):
            if isinstance(answer, Lost):
                events += [ForwardEvent.Retract(rid) for rid in answer.request_ids if rid in self.live]
            elif isinstance(answer, RemoteDone):
                if answer.request_id not in self.live:
                    continue
                if answer.prefill:
                    (token,) = self.sample(answer.request_id, 1)
                    events.append(PD.RemotePrefillDoneEvent(answer.request_id, token))
                else:
                    events.append(PD.SucceededEvent(answer.request_id))
                    self.live.discard(answer.request_id)
            else:
                for step in answer:
                    if step.request_id in self.live:
                        events += self.land(step)
        for abort in self.scenario.get("aborts", []):
            if abort["round"] == round_index and abort["id"] in self.live:
                events.append(ForwardEvent.Abort(abort["id"]))
                self.live.discard(abort["id"])
        return events

    def record(self, plan: ExecutionPlan) -> Record:
        """The round just planned, as the recordings have it."""
        record = plan_record(plan)
        record["state"] = counters(self.scheduler, self.group_ids)
        if self.cleared:
            record["cleared"] = self.cleared
        if self.scenario.get("extras"):
            record |= extras_record(self.scheduler)
        return shrunk(record) if self.scenario.get("digest") else record

    def close(self) -> None:
        """End what still lives, and let every transfer that is out come in."""
        self.advance([ForwardEvent.Abort(rid) for rid in sorted(self.live)])
        self.live.clear()
        transfers = (Cache.WriteBackDoneEvent, Cache.LoadBackDoneEvent)
        plan = self.scheduler.next_execution_plan()
        for op in plan.cache:
            done = Cache.WriteBackDoneEvent if isinstance(op, Cache.WriteBackOp) else Cache.LoadBackDoneEvent
            self.advance([done(op_id) for op_id in op.op_ids])
        for due in sorted(self.head):
            self.advance([event for event in self.head[due] if isinstance(event, transfers)])
        self.head.clear()
        self.tail.clear()


def play(scenario: Scenario, *, check: bool = True) -> Iterator[Record]:
    """Each round's record."""
    run = Run(scenario, check=check)
    for plan in run.rounds():
        yield run.record(plan)
