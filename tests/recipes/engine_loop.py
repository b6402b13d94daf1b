"""The engine's loop (engine.md §13) around a scheduler: requests in, what became of them out."""

import random
from collections import deque

from kvplan.scheduler import (
    ExecutionEvent,
    ExecutionPlan,
    ForwardEvent,
    RequestSpec,
    Scheduler,
    SchedulerConfig,
)
from kvplan.scheduler.journal import Attempt, Journal

MOST_ROUNDS = 5_000


class EngineLoop:
    """Plays ``requests`` requests of ``prompt`` and ``output`` tokens, submitted together, to their end.

    A decode step accepts 1 to its width tokens, as ``rng`` has it. ``retracted`` are the requests that were ever
    seen retracted, ``stalled`` whether the scheduler stopped, or went on for
    ``MOST_ROUNDS``, before all had finished. With ``watched``, ``waited`` are those that an admission was
    refused to for want of pages, however short the wait.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        requests: int,
        prompt: int,
        output: int,
        declared: bool,
        rng: random.Random,
        watched: bool = False,
    ) -> None:
        self._scheduler = Scheduler(config, check=True)
        self._overlap, self._width = config.overlap_schedule_depth, config.decode_input_tokens
        self._output, self._rng = output, rng
        self._generated = {f"r{at}": 0 for at in range(requests)}
        self.finished: set[str] = set()
        self.retracted: set[str] = set()
        self.waited: set[str] = set()
        self.stalled = False
        self._journal = Journal() if watched else None
        self._scheduler.journal = self._journal
        self._scheduler.submit_requests(
            [
                RequestSpec(rid, [1_000 * at + token for token in range(prompt)], output if declared else 0)
                for at, rid in enumerate(self._generated)
            ]
        )
        self._play()

    def _play(self) -> None:
        in_flight: deque[ExecutionPlan] = deque()
        rounds = 0
        while len(self.finished) < len(self._generated):
            rounds += 1
            if rounds > MOST_ROUNDS:
                self.stalled = True
                return
            plan = self._scheduler.next_execution_plan()
            self._note_waits()
            live = self._generated.keys() - self.finished
            self.retracted |= {rid for rid in live if self._scheduler.request_state(rid) == "Retracted"}
            if not plan.forward and not in_flight:
                self.stalled = True
                return
            in_flight.append(plan)
            if len(in_flight) > self._overlap or not plan.forward:
                self._land(in_flight.popleft())

    def _note_waits(self) -> None:
        if self._journal is not None and self._journal.round is not None:
            self.waited |= {
                entry.request_id
                for entry in self._journal.round.entries
                if isinstance(entry, Attempt) and entry.outcome == "no_capacity"
            }

    def _land(self, plan: ExecutionPlan) -> None:
        for batch in plan.forward:
            for at, rid in enumerate(batch.request_ids):
                if rid in self.finished:
                    continue
                if at >= batch.num_extends():
                    self._result(rid, self._rng.randint(1, self._width), decoded=True)
                elif batch.extend_prefix_lens[at] + batch.input_lengths[at] == batch.prefill_lengths[at]:
                    self._result(rid, 1, decoded=False)
                else:
                    self._tell(ForwardEvent.ExtendResult(rid, []))

    def _result(self, rid: str, accepted: int, decoded: bool) -> None:
        accepted = min(accepted, self._output - self._generated[rid])
        self._generated[rid] += accepted
        self._tell(ForwardEvent.ExtendResult(rid, list(range(accepted))))
        if self._generated[rid] == self._output:
            self._tell(ForwardEvent.Finish(rid))
            self.finished.add(rid)
        elif decoded:
            self._tell(ForwardEvent.UpdateReserveNumTokens(rid, accepted))

    def _tell(self, event: object) -> None:
        self._scheduler.advance(ExecutionEvent([event]))
