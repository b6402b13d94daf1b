"""Prefill and decode workers: engines of roles P and D, whose requests come from, or go on to, a peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from kvplan.replay.engine import Engine
from kvplan.replay.flight import Flight
from kvplan.scheduler import PD, CacheGroupConfig, ExecutionEvent, ExecutionPlan
from kvplan.scheduler.plan import Batch


@dataclass(slots=True)
class Worker(Engine):
    """One engine of a disaggregated deployment. `on_hand_off` is told what its plans ask of the peer:
    request id, time in ns, and the batch with the request's place in it."""

    on_hand_off: Callable[[str, int, Batch, int], None] = lambda *_: None
    bootstrap_ns: int = 0
    groups: Sequence[CacheGroupConfig] = ()
    _answers: list[tuple[int, int, str, bool]] = field(default_factory=list)
    _posted: int = 0

    def answer(self, due_ns: int, request_id: str, bootstraps: bool = False) -> None:
        """Let the peer's answer to a request arrive at `due_ns`."""
        self._posted += 1
        heappush(self._answers, (due_ns, self._posted, request_id, bootstraps))

    def next_ns(self) -> int | None:
        """Return when the next answer or tier transfer is due; None: none is."""
        due = [heap[0][0] for heap in (self._answers, self._transfers) if heap]
        return min(due, default=None)

    @property
    def handed_off_now(self) -> bool:
        """Whether the last plan handed something over, and its forward ran."""
        return self.handed_now and not self._lost

    @property
    def awaits_answer(self) -> bool:
        """Whether an answer of the peer is under way."""
        return bool(self._answers)

    def key(self) -> tuple[object, ...]:
        """What decides the worker's future while no request and no new answer comes."""
        answers = tuple((due - self.now_ns, name, kind) for due, _, name, kind in sorted(self._answers))
        return (*Engine.key(self), answers)

    def skip(self, rounds: int, by_ns: int) -> None:
        """Move the clock and everything in flight later, by rounds that repeat those before exactly."""
        Engine.skip(self, rounds, by_ns)
        self._answers = [(due + by_ns, order, name, kind) for due, order, name, kind in self._answers]

    def _submitted(self, request_ids: Sequence[str]) -> None:
        if self.bootstrap_ns:
            for name in request_ids:
                self.answer(self.now_ns + self.bootstrap_ns, name, bootstraps=True)
        else:
            self.scheduler.advance(ExecutionEvent([PD.BootstrappedEvent(name) for name in request_ids]))

    def _deliver_transfers(self) -> None:
        # What came since the last plan comes before the tiers' acks of this one (engine.md §13).
        events: list[Any] = []
        while self._answers and self._answers[0][0] <= self.now_ns:
            _, _, name, bootstraps = heappop(self._answers)
            flight = self.live.get(name)
            if bootstraps:
                events.append(PD.BootstrappedEvent(name))
            elif flight is not None:
                self._answered(flight, events)
        if events:
            self.scheduler.advance(ExecutionEvent(events))
        Engine._deliver_transfers(self)

    def _answered(self, flight: Flight, events: list[Any]) -> None:
        raise NotImplementedError

    def _has_due(self) -> bool:
        return bool(self._answers or self._transfers)

    def _tell(self, batch: Batch | None) -> bool:
        if batch is None:
            return False
        for at, name in enumerate(batch.request_ids):
            self.on_hand_off(name, self.now_ns, batch, at)
        return True


@dataclass(slots=True)
class PrefillWorker(Worker):
    """Role P: a request is over here when the peer has its pages."""

    def needed_tokens(self, row: int) -> int:
        """Return the tokens that a submission holds against the limit of one request: the prompt (§2)."""
        return self.workload.prompt_tokens[row]

    def _ends(self, flight: Flight) -> bool:
        return False

    def _retractable(self, flight: Flight) -> bool:
        return False  # the transfer to the peer holds its pages

    def _hand_off(self, plan: ExecutionPlan) -> bool:
        return self._tell(plan.remote_decode)

    def _answered(self, flight: Flight, events: list[Any]) -> None:
        events.append(PD.SucceededEvent(flight.request_id))
        self._leave(flight)


@dataclass(slots=True)
class DecodeWorker(Worker):
    """Role D: the peer's prefill gives a request its prompt's KV and its first token."""

    landed_tokens: int = 0
    landing: set[str] = field(default_factory=set)
    """Requests whose pages the peer is writing."""

    def _retractable(self, flight: Flight) -> bool:
        return flight.request_id not in self.landing

    def _hand_off(self, plan: ExecutionPlan) -> bool:
        batch = plan.remote_prefill
        if batch is None or self._lost:  # with a load that failed, the runtime retracts them (engine.md §11)
            return False
        for at, name in enumerate(batch.request_ids):
            flight = self.live[name]
            self.landing.add(name)
            flight.resident = True
            self.resident += 1
            flight.prefill_size = batch.prefill_lengths[at]
            flight.hit(batch.extend_prefix_lens[at])
            if flight.admitted_ns < 0:
                flight.admitted_ns = self.now_ns
            self.events.append(self.round_index, self.now_ns, "admitted", name, batch.extend_prefix_lens[at])
        return self._tell(batch)

    def _answered(self, flight: Flight, events: list[Any]) -> None:
        self.landing.discard(flight.request_id)
        first = flight.generated == 0
        if first:
            flight.ids = self.workload.output(flight.row)
        self.landed_tokens += flight.prefill_size - flight.computed
        flight.computed = flight.frontier = flight.prefill_size
        # After a retraction by the runtime the whole sequence lands again: its token is then the next one.
        events.append(PD.RemotePrefillDoneEvent(flight.request_id, flight.ids[flight.generated]))
        flight.generated += 1
        self.gained_now += 1
        if first:
            flight.first_token_ns = self.now_ns
            self.events.append(self.round_index, self.now_ns, "first_token", flight.request_id)
        if self._ends(flight):
            self._finish(flight, events)
