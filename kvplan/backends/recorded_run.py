"""The engine around a scheduler as a recorded scenario describes it: it submits, and answers each plan in rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from kvplan.backends.recorded import Scenario, prompt_of, sampled
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


class RecordedScript:
    """What a scenario's requests turn out to be."""

    def __init__(self, scenario: Scenario) -> None:
        self.prompts = {request.id: prompt_of(request.prompt) for request in scenario.requests}
        self._outputs = {request.id: request.output for request in scenario.requests}
        self._index = {request.id: at for at, request in enumerate(scenario.requests)}
        self._accept = scenario.accept

    def output(self, request_id: str, at: int) -> int:
        """The request's output token of index ``at``."""
        return sampled(self._index[request_id], at)

    def tokens(self, request_id: str) -> list[int]:
        """The prompt and every token that the request generates."""
        output = [self.output(request_id, at) for at in range(self._outputs[request_id])]
        return self.prompts[request_id] + output

    def accepted(self, request_id: str, step: int) -> int:
        """How many tokens a decode step accepts."""
        return self._accept[(step + self._index[request_id]) % len(self._accept)]


@dataclass(frozen=True, slots=True)
class _Step:
    """A request's part of a forward: how many tokens it brings at most."""

    request_id: str
    tokens: int
    decode: bool


@dataclass(slots=True)
class _Known:
    """How far a request has come."""

    output: int
    generated: int = 0
    steps: int = 0


class RecordedRun:
    """One scenario in flight, on a scheduler of its configuration."""

    def __init__(
        self,
        scenario: Scenario,
        scheduler: Scheduler,
        script: RecordedScript,
        copied: Callable[[], Collection[int]] | None = None,
    ) -> None:
        """``copied`` tells which transfers' copies have come to their end since it was last asked: their answers
        come then, and not after the rounds that the scenario says."""
        self._copied = copied
        self._copying: dict[int, Any] = {}
        self._scenario = scenario
        self._timing = scenario.timing
        self._scheduler = scheduler
        self._script = script
        self._role = scenario.scheduler_config().role
        self._known = {request.id: _Known(request.output) for request in scenario.requests}
        self._live: set[str] = set()
        self.finished: list[str] = []
        self.refused: list[str] = []
        # Events by the round before whose plan they come in, and those by the round at whose end they are made.
        self._before: dict[int, list[Any]] = defaultdict(list)
        self._after: dict[int, list[Any]] = defaultdict(list)
        for prompt in scenario.storage:
            hashes = scheduler.prefix_hashes_for_tokens(prompt_of(prompt))
            scheduler.register_storage_keys(*scheduler.expand_prefix_keys(hashes))

    def play(self, max_rounds: int | None = None, go_on: Callable[[], bool] = lambda: True) -> str:
        """Play to the end; ``complete``, ``round limit``, or ``interrupted`` once ``go_on``, asked after every
        round, says no. Raises what the scheduler does."""
        last = max((request.submit for request in self._scenario.requests), default=0)
        limit = min(self._scenario.max_rounds, max_rounds or self._scenario.max_rounds)
        for at in range(limit):
            if self._copied is not None:
                self._advance([self._copying.pop(op_id) for op_id in self._copied()])
            self._advance(self._before.pop(at, []))
            self._submit(at)
            self._advance(self._before.pop(at, []))  # handshakes that take no round
            for clear in self._scenario.clears:
                if clear.round == at:
                    getattr(self._scheduler, clear.what)()
            plan = self._scheduler.next_execution_plan()
            self._answer(at, plan)
            self._advance(self._landed(at))
            if at >= last and not (self._live or self._before or self._after or self._copying):
                return "complete"
            if not go_on():
                return "interrupted"
        return "complete" if not self._live else "round limit"

    def _advance(self, events: list[Any]) -> None:
        if events:
            self._scheduler.advance(ExecutionEvent(events))

    def _submit(self, at: int) -> None:
        for request in self._scenario.requests:
            if request.submit != at:
                continue
            spec = RequestSpec(request.id, self._script.prompts[request.id], request.max_new_tokens)
            if request.max_cached_prefix_tokens is not None:
                spec.max_cached_prefix_tokens = request.max_cached_prefix_tokens
            try:
                self._scheduler.submit_requests([spec])
            except ValueError:
                self.refused.append(request.id)
                continue
            self._live.add(request.id)
            if self._role is not SchedulerConfig.Role.Fused:
                self._before[at + self._timing.bootstrap].append(PD.BootstrappedEvent(request.id))

    def _answer(self, at: int, plan: ExecutionPlan) -> None:
        """Note when everything that the plan starts comes in."""
        failing = set(self._scenario.failing_loads)
        lost = False
        for op in plan.cache:
            for op_id in op.op_ids:
                done: Any = Cache.WriteBackDoneEvent(op_id)
                rounds = self._timing.write_back
                if isinstance(op, Cache.LoadBackOp):
                    lost |= op_id in failing
                    done = Cache.LoadBackDoneEvent(op_id, op_id not in failing)
                    rounds = self._timing.load_back
                if self._copied is not None:
                    self._copying[op_id] = done
                else:
                    self._before[at + rounds].append(done)
        if lost:  # the forward does not run, and the runtime retracts its requests (engine.md §11)
            batches = [*plan.forward, *([plan.remote_prefill] if plan.remote_prefill is not None else [])]
            self._after[at] += [ForwardEvent.Retract(name) for batch in batches for name in batch.request_ids]
        else:
            for batch in plan.forward:
                self._after[at + self._timing.result] += self._steps(batch)
            if plan.remote_prefill is not None:
                due = self._after[at + self._timing.remote_prefill]
                due += [PD.RemotePrefillDoneEvent(name, 0) for name in plan.remote_prefill.request_ids]
        if plan.remote_decode is not None:
            due = self._after[at + self._timing.remote_decode]
            due += [PD.SucceededEvent(name) for name in plan.remote_decode.request_ids]

    def _steps(self, batch: Batch) -> Iterable[_Step]:
        extends = batch.num_extends()
        for at, name in enumerate(batch.request_ids):
            if at < extends:
                end = batch.extend_prefix_lens[at] + batch.input_lengths[at]
                yield _Step(name, int(end >= batch.prefill_lengths[at]), False)
                continue
            known = self._known[name]
            yield _Step(name, self._script.accepted(name, known.steps), True)
            known.steps += 1

    def _landed(self, at: int) -> list[Any]:
        """The events that have come by the end of a round."""
        events: list[Any] = []
        for one in self._after.pop(at, []):
            name = (
                one.id if isinstance(one, PD.RemotePrefillDoneEvent | PD.SucceededEvent) else one.request_id
            )
            if name not in self._live:
                continue
            if isinstance(one, _Step):
                events += self._land(one)
            elif isinstance(one, PD.RemotePrefillDoneEvent):
                events.append(PD.RemotePrefillDoneEvent(name, *self._sample(name, 1)))
            else:
                events.append(one)
                if isinstance(one, PD.SucceededEvent):
                    self._end(name)
        for abort in self._scenario.aborts:
            if abort.round == at and abort.id in self._live:
                events.append(ForwardEvent.Abort(abort.id))
                self._live.discard(abort.id)
        return events

    def _land(self, step: _Step) -> list[Any]:
        name = step.request_id
        tokens = self._sample(name, step.tokens)
        events: list[Any] = [ForwardEvent.ExtendResult(name, tokens)]
        known = self._known[name]
        if step.tokens and known.generated >= known.output and self._role is not SchedulerConfig.Role.P:
            events.append(ForwardEvent.Finish(name))
            self._end(name)
        elif step.decode and self._scenario.update_reserve:
            events.append(ForwardEvent.UpdateReserveNumTokens(name, len(tokens)))
        return events

    def _end(self, name: str) -> None:
        self._live.discard(name)
        self.finished.append(name)

    def _sample(self, name: str, count: int) -> list[int]:
        """The request's next tokens, as many as it still has to give at most."""
        known = self._known[name]
        first, known.generated = known.generated, min(known.generated + count, known.output)
        return [self._script.output(name, at) for at in range(first, known.generated)]
