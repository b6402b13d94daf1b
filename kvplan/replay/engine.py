"""The engine around one scheduler: what engine.md §13 says happens in a round, against a clock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from typing import Any

from kvplan.replay.accept import AcceptLengths
from kvplan.replay.flight import Flight
from kvplan.replay.rounds import EventLog, Round, RoundLog
from kvplan.replay.step_time import StepTime
from kvplan.replay.storage import Storage
from kvplan.replay.totals import Totals
from kvplan.replay.transfers import TransferTimes
from kvplan.replay.workload import UNBOUNDED, Workload
from kvplan.scheduler import Cache, ExecutionEvent, ExecutionPlan, ForwardEvent, RequestSpec, Scheduler
from kvplan.scheduler.plan import Batch


class Outcome(Enum):
    """What a round came to. IDLE: nothing was planned, landed or retracted, so the next plan is the same."""

    WORKED = 1
    IDLE = 2


@dataclass(slots=True)
class Step:
    """A forward whose results have not landed; they do at `end_ns`."""

    request_ids: Sequence[str]
    extends: int
    chunk_ends: Sequence[int]
    prefill_sizes: Sequence[int]
    end_ns: int
    lost: dict[str, None] = field(default_factory=dict)
    """Requests whose results are dropped, in order: a saved state is always the same."""

    def key(self, now_ns: int) -> tuple[object, ...]:
        """What of it decides the future."""
        return self.end_ns - now_ns, tuple(self.request_ids), self.extends, tuple(self.chunk_ends)


@dataclass(slots=True)
class Engine:
    """One worker: a scheduler, what is in flight on it, and the record of what it did.

    Its owner gives it requests with `receive`, calls `round` while there is something to do, and `wait` when
    a round was idle. `overlap` 1: the results of a round land after the next one was planned. With
    `update_reserve` the reserve follows what each decode accepted, as in a real engine. Times are in ns.
    """

    scheduler: Scheduler
    workload: Workload
    step_time: StepTime
    accept: AcceptLengths
    decode_width: int = 1
    overlap: int = 0
    update_reserve: bool = True
    transfer_times: TransferTimes = field(default_factory=TransferTimes)
    storage: Storage | None = None
    loaded_group: tuple[int, int] = (-1, 0)
    """The first full group's index and page size: what a load brings back is counted in its pages."""
    force_retract_every: int | None = None
    """Retract a running request every so many rounds, to try recovery on purpose."""

    now_ns: int = 0
    round_index: int = 0
    limit_tokens: int = field(init=False)
    live: dict[str, Flight] = field(default_factory=dict)
    resident: int = 0
    pending: Step | None = None
    device_free_ns: int = 0

    totals: Totals = field(default_factory=Totals)
    rounds: RoundLog = field(default_factory=RoundLog)
    events: EventLog = field(default_factory=EventLog)
    finished: list[Flight] = field(default_factory=list)
    refused: list[Flight] = field(default_factory=list)

    ended_now: list[Flight] = field(default_factory=list)
    """Requests that ended (finished or refused) in the last round."""
    gained_now: int = 0
    """Tokens that landed in the last round."""
    retracted_now: int = 0
    """Retractions in the last round."""
    recomputed_now: int = 0
    """Tokens of the last round's chunks that had been computed before."""

    handed_now: bool = False
    """Whether the last plan handed something to a peer, or asked something of it."""

    _lost: bool = False
    _to_retract: list[str] = field(default_factory=list)
    _inbox: list[tuple[int, int]] = field(default_factory=list)
    _transfers: list[tuple[int, int, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limit_tokens = self.scheduler.max_single_request_tokens()

    def receive(self, rows: Iterable[tuple[int, int]]) -> None:
        """Take requests, (row, arrival in ns) each, to be submitted in the next round."""
        self._inbox.extend(rows)

    def next_ns(self) -> int | None:
        """Return when the next tier transfer is done; None: none is in flight."""
        return self._transfers[0][0] if self._transfers else None

    def needed_tokens(self, row: int) -> int:
        """Return the tokens that a submission holds against the limit of one request (engine.md §2)."""
        workload = self.workload
        return workload.prompt_tokens[row] + max(workload.budgets[row], self.decode_width)

    def key(self) -> tuple[object, ...]:
        """Return what decides the engine's future while no request comes, with times relative to now."""
        now = self.now_ns
        step = self.pending
        links = (self.transfer_times.write_back, self.transfer_times.load_back)
        return (
            self.scheduler.state_signature(),
            None if step is None else step.key(now),
            tuple(due - now for due, _, _ in sorted(self._transfers, key=lambda transfer: transfer[1])),
            tuple(max(link.free_ns - now, 0) for link in links),
            0 if self.storage is None else self.storage.undecided,
            0 if self.force_retract_every is None else self.round_index % self.force_retract_every,
        )

    def wait(self, until_ns: int) -> None:
        """Let time pass, idle, until at least then; in lockstep by whole rounds, one or more."""
        if self.step_time.lockstep:
            unit = self.step_time.ns(0, 0)
            until_ns = max(-(-until_ns // unit) * unit, self.now_ns + unit)
        self.now_ns = max(self.now_ns, until_ns)

    def skip(self, rounds: int, by_ns: int) -> None:
        """Move the clock and everything in flight later, by rounds that repeat those before exactly."""
        self.round_index += rounds
        self.now_ns += by_ns
        self.device_free_ns += by_ns
        if self.pending is not None:
            self.pending.end_ns += by_ns
        self._transfers = [(due + by_ns, op, event) for due, op, event in self._transfers]
        for link in (self.transfer_times.write_back, self.transfer_times.load_back):
            link.free_ns += by_ns

    def round(self) -> Outcome:
        """Play one round, in the order of engine.md §13; `now_ns` is then when the next one is planned."""
        start_ns = self.now_ns
        self.ended_now = []
        self.gained_now = self.recomputed_now = 0
        if self._has_due():
            self._deliver_transfers()
        if self._inbox:
            self._submit()
        scheduler = self.scheduler
        plan = scheduler.next_execution_plan()
        self._note_retractions()
        self._lost = False
        loaded_ns = self._start_transfers(plan.cache) if plan.cache else 0
        self.handed_now = self._hand_off(plan) or self._lost
        step = None
        prefills = prefill_tokens = decodes = step_ns = 0
        for batch in plan.forward:
            ids = batch.request_ids
            if not ids:
                continue
            if self._lost:  # what the forward needed did not come: it does not run (engine.md §11)
                self._note_lost(batch)
                self._retract_by_runtime(ids)
                continue
            prefills = batch.num_extends()
            decodes = len(ids) - prefills
            ends: list[int] = []
            if prefills:
                prefill_tokens = sum(batch.input_lengths[:prefills])
                ends = self._note_chunks(batch, prefills)
            context = self._context_tokens(batch) if self.step_time.per_context_token_s else 0
            step_ns = self.step_time.ns(prefill_tokens, decodes, context)
            step = Step(ids, prefills, ends, batch.prefill_lengths, 0)
        if self._lost and plan.remote_prefill is not None:
            self._note_lost(plan.remote_prefill)
            self._retract_by_runtime(plan.remote_prefill.request_ids)
        pool = scheduler.pool_usage()
        waiting, running = len(self.live) - self.resident, self.resident
        if self.force_retract_every is not None and (self.round_index + 1) % self.force_retract_every == 0:
            self._force_retraction(step)
        outcome = self._pass(step, step_ns, loaded_ns)
        if self._to_retract:
            events = [ForwardEvent.Retract(name) for name in self._to_retract if name in self.live]
            self._to_retract = []
            scheduler.advance(ExecutionEvent(events))
            outcome = Outcome.WORKED
        totals = self.totals
        totals.add_round(prefills, decodes, step_ns)
        totals.prefill_tokens += prefill_tokens
        totals.generated_tokens += self.gained_now
        self.rounds.append(
            Round(
                self.round_index,
                start_ns,
                step_ns,
                prefills,
                prefill_tokens,
                self.recomputed_now,
                decodes,
                self.gained_now,
                pool.free,
                pool.cached,
                pool.held,
                waiting,
                running,
                self.retracted_now,
            )
        )
        self.round_index += 1
        return outcome

    def _submit(self) -> None:
        """Submit what has come; a request above the limit of one request is refused by name."""
        workload, limit, now = self.workload, self.limit_tokens, self.now_ns
        bounds = workload.prefix_bounds
        specs = []
        for row, arrived_ns in self._inbox:
            name = workload.request_ids[row]
            flight = Flight(row, name, workload.prompt_tokens[row], workload.output_tokens[row], arrived_ns)
            self.events.append(self.round_index, arrived_ns, "arrived", name, flight.prompt_tokens)
            needed = self.needed_tokens(row)
            if needed > limit:
                self.refused.append(flight)
                self.ended_now.append(flight)
                self.events.append(self.round_index, now, "refused", name, needed)
                continue
            self.live[name] = flight
            specs.append(
                RequestSpec(
                    request_id=name,
                    tokens=workload.prompt(row),
                    max_new_tokens=workload.budgets[row],
                    max_cached_prefix_tokens=UNBOUNDED if bounds is None else bounds[row],
                )
            )
        self._inbox = []
        if specs:
            self.scheduler.submit_requests(specs)
            self._submitted([spec.request_id for spec in specs])

    def _submitted(self, request_ids: Sequence[str]) -> None:
        """What follows a submission: nothing on a fused engine."""

    def _hand_off(self, plan: ExecutionPlan) -> bool:
        """Carry out what a plan asks of a peer and return whether there was anything: never on a fused engine."""
        return False

    def _ends(self, flight: Flight) -> bool:
        """Return whether a request ends with the token that has just landed."""
        return flight.generated == flight.output_tokens

    def _retract_by_runtime(self, names: Iterable[str]) -> None:
        """Retract requests, without a snapshot, once this round's results have landed."""
        self._to_retract += names

    def _force_retraction(self, step: Step | None) -> None:
        """Choose the request that has run longest; what is out of it is lost."""
        for name, flight in self.live.items():
            if flight.resident and self._retractable(flight):
                for out in (step, self.pending):
                    if out is not None:
                        out.lost[name] = None
                self._retract_by_runtime([name])
                return

    def _retractable(self, flight: Flight) -> bool:
        """Return whether the runtime may retract a running request."""
        return True

    def _note_retractions(self) -> None:
        retractions = self.scheduler.take_retractions()
        self.retracted_now = len(retractions)
        for retraction in retractions:
            flight = self.live[retraction.request_id]
            flight.retracted()
            self.resident -= 1
            self.totals.retractions[retraction.state] += 1
            self.totals.runtime_retractions += retraction.for_request is None
            self.events.append(
                self.round_index,
                self.now_ns,
                "retracted",
                flight.request_id,
                retraction.tokens,
                retraction.state,
                retraction.for_request,
            )

    def _note_chunks(self, batch: Batch, prefills: int) -> list[int]:
        """Account for the batch's prefill chunks; return the position at which each ends."""
        ends = []
        for i in range(prefills):
            flight = self.live[batch.request_ids[i]]
            prefix, replayed = batch.extend_prefix_lens[i], batch.extend_replay_lens[i]
            begin, end = prefix + replayed, prefix + batch.input_lengths[i]
            if not flight.resident:
                flight.resident = True
                self.resident += 1
                flight.prefill_size = batch.prefill_lengths[i]
                flight.hit(begin)
                if flight.admitted_ns < 0:
                    flight.admitted_ns = self.now_ns
                self.events.append(self.round_index, self.now_ns, "admitted", flight.request_id, begin)
            again = flight.computed_again
            flight.prefill(begin, end)
            self.recomputed_now += flight.computed_again - again
            self.totals.replayed_tokens += replayed
            ends.append(end)
        return ends

    def _note_lost(self, batch: Batch) -> None:
        """Account for a batch that does not run: its requests hold their pages until they are retracted."""
        for name, prefill_size in zip(batch.request_ids, batch.prefill_lengths, strict=True):
            flight = self.live.get(name)
            if flight is None:
                continue
            if not flight.resident:
                flight.resident = True
                self.resident += 1
                flight.prefill_size = prefill_size
            self.events.append(self.round_index, self.now_ns, "lost", name)

    def _context_tokens(self, batch: Batch) -> int:
        """Return the tokens whose KV the forward reads: before each chunk, and before each decode."""
        prefills = batch.num_extends()
        tokens = sum(batch.extend_prefix_lens) + sum(batch.extend_replay_lens)
        for name in batch.request_ids[prefills:]:
            flight = self.live.get(name)
            if flight is not None:
                tokens += flight.prompt_tokens + flight.generated
        return tokens

    def _pass(self, step: Step | None, step_ns: int, loaded_ns: int) -> Outcome:
        """Let the round's time pass and land what is due at its end.

        Without overlap that is the step itself. With it, it is the step before: the device goes from step
        to step without a pause while the next plan is being made, so the next plan comes when this step
        begins. In lockstep each round takes one unit whatever is in it.
        """
        landing, self.pending = (self.pending, step) if self.overlap else (step, None)
        if landing is None and step is None:
            if not self.retracted_now and not self.handed_now:
                return Outcome.IDLE
            self.now_ns += max(self.step_time.ns(0, 0), 1)
            return Outcome.WORKED
        if self.step_time.lockstep:
            if step is not None:
                step.end_ns = self.now_ns + step_ns * (1 + self.overlap)
            self.now_ns += self.step_time.ns(0, 0)
        else:
            if step is not None:
                step.end_ns = max(max(self.now_ns, self.device_free_ns) + step_ns, loaded_ns)
                self.device_free_ns = step.end_ns
            if landing is not None:
                self.now_ns = max(self.now_ns, landing.end_ns)
        if landing is not None:
            self._land(landing)
        return Outcome.WORKED

    def _land(self, step: Step) -> None:
        """Give the scheduler the results of a forward (engine.md §13)."""
        live = self.live
        if step.lost:
            live = {name: flight for name, flight in live.items() if name not in step.lost}
        events: list[Any] = []
        append, extend_result = events.append, ForwardEvent.ExtendResult
        gained = 0
        for i in range(step.extends):
            flight = live.get(step.request_ids[i])
            if flight is None:
                continue
            if step.chunk_ends[i] < step.prefill_sizes[i]:
                append(extend_result(flight.request_id, ()))
                continue
            first = flight.generated
            if first == 0:
                flight.ids = self.workload.output(flight.row)
                flight.first_token_ns = self.now_ns
                self.events.append(self.round_index, self.now_ns, "first_token", flight.request_id)
            flight.generated = first + 1
            gained += 1
            append(extend_result(flight.request_id, flight.ids[first : first + 1]))
            if self._ends(flight):
                self._finish(flight, events)
        width = self.decode_width
        table, stride, size = self.accept.table, self.accept.stride, len(self.accept.table)
        names = step.request_ids[step.extends :] if step.extends else step.request_ids
        if width == 1:
            for name in names:
                flight = live.get(name)
                if flight is None:
                    continue
                first = flight.generated
                flight.generated = last = first + 1
                gained += 1
                append(extend_result(name, flight.ids[first:last]))
                if last == flight.output_tokens:
                    self._finish(flight, events)
        else:
            update_reserve = ForwardEvent.UpdateReserveNumTokens if self.update_reserve else None
            for name in names:
                flight = live.get(name)
                if flight is None:
                    continue
                accepted = table[(flight.row * stride + flight.steps) % size]
                flight.steps += 1
                first = flight.generated
                last = min(first + accepted, flight.output_tokens)
                flight.generated = last
                gained += last - first
                append(extend_result(name, flight.ids[first:last]))
                if last == flight.output_tokens:
                    self._finish(flight, events)
                elif accepted != width and update_reserve is not None:
                    append(update_reserve(name, accepted))
        self.gained_now += gained
        if events:
            self.scheduler.advance(ExecutionEvent(events))

    def _has_due(self) -> bool:
        """Return whether anything may have come since the last plan."""
        return bool(self._transfers)

    def _finish(self, flight: Flight, events: list[Any]) -> None:
        events.append(ForwardEvent.Finish(flight.request_id))
        self._leave(flight)

    def _leave(self, flight: Flight) -> None:
        """Account for a request that has left this engine."""
        flight.finished_ns = self.now_ns
        flight.ids = []
        del self.live[flight.request_id]
        self.resident -= 1
        self.finished.append(flight)
        self.ended_now.append(flight)
        self.events.append(self.round_index, self.now_ns, "finished", flight.request_id, flight.generated)

    def _deliver_transfers(self) -> None:
        """Give the scheduler the transfers that are done by now, oldest op first."""
        done = []
        while self._transfers and self._transfers[0][0] <= self.now_ns:
            done.append(heappop(self._transfers)[1:])
        if done:
            done.sort(key=lambda entry: entry[0])
            self.scheduler.advance(ExecutionEvent([event for _, event in done]))

    def _start_transfers(self, ops: Sequence[Any]) -> int:
        """Start the plan's tier transfers; return when its load-backs are done (0: there are none)."""
        loaded_ns = 0
        for op in ops:
            stores = isinstance(op, Cache.WriteBackOp)
            link = self.transfer_times.write_back if stores else self.transfer_times.load_back
            for at, (op_id, groups) in enumerate(zip(op.op_ids, op.group_ids, strict=True)):
                due = link.due_ns(self.now_ns, groups)
                if stores:
                    event: Any = Cache.WriteBackDoneEvent(op_id)
                    self.totals.pages_written += len(groups)
                else:
                    fetched = sum(op.prefetch_from_storage[at])
                    failed = bool(fetched) and self.storage is not None and self.storage.fails()
                    event = Cache.LoadBackDoneEvent(op_id, not failed)
                    loaded_ns = max(loaded_ns, due)
                    self._count_load(groups, fetched, failed)
                heappush(self._transfers, (due, op_id, event))
        return loaded_ns

    def _count_load(self, groups: Sequence[int], fetched: int, failed: bool) -> None:
        totals = self.totals
        if failed:
            self._lost = True
            totals.loads_failed += 1
            return
        totals.pages_loaded += len(groups)
        totals.pages_prefetched += fetched
        index, granularity = self.loaded_group
        totals.tokens_loaded += groups.count(index) * granularity
