"""One trace through prefill and decode workers, each an exact scheduler of its role (engine.md §10, §13).

With no prefill worker the prompts are computed elsewhere, in the step time of a forward of their own; with no
decode worker there is always room where the pages go. Each worker has its own clock; the one that is furthest
behind plays next, so that nothing happens before its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from kvplan.replay.accept import AcceptLengths
from kvplan.replay.arrivals import Arrivals
from kvplan.replay.dead_end import Watch
from kvplan.replay.engine import Outcome
from kvplan.replay.flight import Flight
from kvplan.replay.hand_off import HandOff, TransferLink
from kvplan.replay.play import PROGRESS_ROUNDS, Progress
from kvplan.replay.step_time import StepTime
from kvplan.replay.storage import Storage
from kvplan.replay.transfers import TransferTimes, loaded_group
from kvplan.replay.workers import DecodeWorker, PrefillWorker, Worker
from kvplan.replay.workload import Workload
from kvplan.scheduler import CacheTransferPolicy, Scheduler, SchedulerConfig
from kvplan.scheduler.config import GroupKind, Role
from kvplan.scheduler.plan import Batch

ROUTINGS = ("round-robin", "least-loaded")


def role_config(config: SchedulerConfig, role: Role) -> SchedulerConfig:
    """``config`` for a worker of ``role``: on P and D each group's transfer policy is the only one allowed (§2)."""
    groups = [
        replace(
            group,
            transfer_policy=(
                CacheTransferPolicy.LatestSnapshot
                if group.kind == GroupKind.STATE
                else CacheTransferPolicy.FullSuffix
            ),
        )
        for group in config.cache_groups
    ]
    return replace(config, role=role, cache_groups=groups)


def check_same_pages(prefill: SchedulerConfig, decode: SchedulerConfig) -> None:
    """Check that pages of the prefill workers are pages of the decode workers, so that they can be handed over.

    Raises ``ValueError`` naming what differs.
    """
    theirs = {group.group_id: group for group in decode.cache_groups}
    if [group.group_id for group in prefill.cache_groups] != list(theirs):
        raise ValueError(
            f"the prefill workers' cache groups are {', '.join(g.group_id for g in prefill.cache_groups)}, the "
            f"decode workers' {', '.join(theirs)}; both need the same, in the same order"
        )
    for group in prefill.cache_groups:
        other = theirs[group.group_id]
        for name in ("block_granularity", "kind", "sliding_window_tokens", "replayable"):
            ours, its = getattr(group, name), getattr(other, name)
            if ours != its:
                raise ValueError(
                    f"cache group {group.group_id!r}: {name} is {ours} on the prefill workers and {its} on the "
                    "decode workers; pages go over as they are, so both need the same"
                )


@dataclass(frozen=True, slots=True)
class Stuck:
    """A request that cannot go on: where it is and why."""

    request_id: str
    worker: str
    state: str
    why: str


@dataclass(slots=True)
class Disaggregated:
    """A disaggregated replay and what came of it. Make it with ``disaggregate`` and call ``play``."""

    workload: Workload
    arrivals: Arrivals
    prefill: list[PrefillWorker]
    decode: list[DecodeWorker]
    links: list[TransferLink]
    routing: str
    page_bytes: Mapping[str, float]
    step_time: StepTime
    configs: Mapping[Role, SchedulerConfig]
    max_rounds: int | None = None
    hand_offs: dict[str, HandOff] = field(default_factory=dict)
    refused: list[Flight] = field(default_factory=list)
    stuck: list[Stuck] = field(default_factory=list)
    period_rounds: int = 0
    """Of a livelock: the rounds after which the worker with the longest cycle is as it was."""
    ending: str = "complete"
    progress: Callable[[Progress], None] | None = None
    stop: Callable[[], bool] | None = None
    _asleep: set[int] = field(default_factory=set)
    _cycling: set[int] = field(default_factory=set)
    _endings: list[tuple[int, int]] = field(default_factory=list)
    _clock_ns: int = 0
    _turn: int = 0

    @property
    def workers(self) -> list[Worker]:
        """All workers, prefill first."""
        return [*self.prefill, *self.decode]

    @property
    def finished(self) -> list[Flight]:
        """The requests that finished, as the worker that ends them knows them, in that order."""
        ends = self.decode or self.prefill
        return sorted((f for worker in ends for f in worker.finished), key=lambda f: (f.finished_ns, f.row))

    def play(self) -> None:
        """Play until every request has ended, or nothing ever will; ``ending`` tells which."""
        workers = self.workers
        self._asleep = set(range(len(workers)))
        watches = [Watch() for _ in workers]
        while True:
            if self.stop is not None and self.stop():
                self.ending = "interrupted"
                return
            turns = []
            for at, worker in enumerate(workers):
                when = worker.next_ns() if at in self._asleep else worker.now_ns
                if when is not None:
                    turns.append((max(when, worker.now_ns), at))
            next_turn = min(turns, default=None)
            comes = self._next_arrival()
            if comes is not None and (next_turn is None or comes <= next_turn[0]):
                self._clock_ns = comes
                while self._endings and self._endings[0][0] <= comes:
                    at_ns, row = heappop(self._endings)
                    self.arrivals.ended(row, at_ns)
                for row, at_ns in self.arrivals.due(comes):
                    self._send(row, at_ns)
                for watch in watches:
                    watch.reset()
                self._cycling.clear()
                continue
            if next_turn is None:
                if any(worker.live for worker in workers):
                    self._dead_end("stall")
                return
            when, at = next_turn
            worker = workers[at]
            if at in self._asleep:
                worker.wait(when)
                self._asleep.discard(at)
            outcome = worker.round()
            if outcome is Outcome.IDLE:
                self._asleep.add(at)
            for flight in worker.ended_now:
                if not self.decode or at >= len(self.prefill):
                    heappush(self._endings, (worker.now_ns, flight.row))
            if self.progress is not None and worker.round_index % PROGRESS_ROUNDS == 0:
                self.progress(self._progress())
            if worker.gained_now or worker.ended_now or worker.handed_off_now:
                for watch in watches:
                    watch.reset()
                self._cycling.clear()
            elif (cycle := watches[at].after_round(worker)) is not None:
                self._cycling.add(at)
                self.period_rounds = max(self.period_rounds, cycle.rounds)
                if self._all_cycle():
                    self._dead_end("livelock")
                    return
            if self.max_rounds is not None and worker.round_index >= self.max_rounds:
                self.ending = "round limit"
                return

    def _next_arrival(self) -> int | None:
        """When the next request comes, or one ends that another may be waiting for; None: neither."""
        times = [self._endings[0][0]] if self._endings else []
        arrives = self.arrivals.next_ns()
        if arrives is not None:
            times.append(arrives)
        return max(min(times), self._clock_ns) if times else None

    def _all_cycle(self) -> bool:
        """Whether every worker is in a cycle or has nothing to do, and no request or answer is to come."""
        if self._next_arrival() is not None:
            return False
        for at, worker in enumerate(self.workers):
            if worker.awaits_answer or (
                at not in self._cycling and not (at in self._asleep and worker.next_ns() is None)
            ):
                return False
        return True

    def _progress(self) -> Progress:
        return Progress(
            ended=sum(len(worker.finished) for worker in (self.decode or self.prefill)) + len(self.refused),
            requests=len(self.workload),
            time_ns=self._clock_ns,
            rounds=sum(worker.round_index for worker in self.workers),
            retractions=sum(worker.totals.retractions.total() for worker in self.workers),
        )

    def _send(self, row: int, at_ns: int) -> None:
        """Route a request to its two workers, or refuse it if it can never fit one of them."""
        flight = Flight(
            row,
            self.workload.request_ids[row],
            self.workload.prompt_tokens[row],
            self.workload.output_tokens[row],
            at_ns,
        )
        if any(worker.needed_tokens(row) > worker.limit_tokens for worker in self.workers):
            self.refused.append(flight)
            self.arrivals.ended(row, at_ns)
            return
        chosen: list[int] = []
        for group, first in ((self.prefill, 0), (self.decode, len(self.prefill))):
            if not group:
                chosen.append(-1)
                continue
            if self.routing == "least-loaded":
                index = min(range(len(group)), key=lambda at: (len(group[at].live), at))
            else:
                index = self._turn % len(group)
            chosen.append(index)
            worker = group[index]
            worker.receive([(row, at_ns)])
            # Requests count for the routing from now on, not from their submission.
            worker.live.setdefault(flight.request_id, flight)
            self._asleep.discard(first + index)
            worker.now_ns = max(worker.now_ns, at_ns)
        self._turn += 1
        hand = HandOff(row, flight.request_id, chosen[0], chosen[1], at_ns)
        self.hand_offs[hand.request_id] = hand
        if not self.decode:
            hand.landing_ns = at_ns

    def handed_out(self, name: str, now_ns: int, batch: Batch, at: int) -> None:
        """A prefill worker's plan hands a request out."""
        hand = self.hand_offs[name]
        hand.ready_ns = now_ns
        hand.pinned_pages = sum(1 for rows in batch.block_tables.values() for page in rows[at] if page > 0)
        if not self.decode:
            self._measure(hand, batch, at, 0)
        self._transfer(hand)

    def lands(self, name: str, now_ns: int, batch: Batch, at: int) -> None:
        """A decode worker's plan has pages for a request."""
        hand = self.hand_offs[name]
        hand.landing_ns = now_ns
        hand.landings += 1
        self._measure(hand, batch, at, batch.extend_prefix_lens[at])
        if not self.prefill or hand.landings > 1:
            hand.ready_ns = now_ns + self.step_time.ns(batch.input_lengths[at], 0)
        self._transfer(hand)

    def _measure(self, hand: HandOff, batch: Batch, at: int, hit: int) -> None:
        """Count the pages and bytes that go over: those from the landing's prefix hit to the prompt's end."""
        prompt = batch.prefill_lengths[at]
        worker = self.decode[hand.decode_worker] if self.decode else self.prefill[hand.prefill_worker]
        for group in worker.groups:
            row = batch.block_tables[group.group_id][at]
            g = group.block_granularity
            pages = sum(1 for page in row[hit // g : -(-prompt // g)] if page > 0)
            hand.landed_pages += pages
            hand.landed_bytes += pages * self.page_bytes.get(group.group_id, 0.0)

    def _transfer(self, hand: HandOff) -> None:
        """Begin the transfer if both ends are there, and post what each will be told at its end."""
        if hand.ready_ns < 0 or hand.landing_ns < 0:
            return
        link = self.links[max(hand.decode_worker, 0)]
        hand.begin_ns, hand.end_ns = link.send(max(hand.ready_ns, hand.landing_ns), hand.landed_bytes)
        if self.prefill and hand.landings <= 1:
            self.prefill[hand.prefill_worker].answer(hand.end_ns, hand.request_id)
        if self.decode:
            self.decode[hand.decode_worker].answer(hand.end_ns, hand.request_id)

    def _dead_end(self, ending: str) -> None:
        self.ending = ending
        for kind, group in (("prefill", self.prefill), ("decode", self.decode)):
            for at, worker in enumerate(group):
                for name in worker.live:
                    state = worker.scheduler.request_state(name)
                    why = self._waits_for_peer(name, kind) or worker.scheduler.explain_waiting(name)
                    self.stuck.append(Stuck(name, f"{kind} {at}", state, why))

    def _waits_for_peer(self, name: str, kind: str) -> str | None:
        """Return what a request with pages on one side waits for on the other; None where it does not."""
        hand = self.hand_offs[name]
        if kind == "prefill" and self.decode and hand.ready_ns >= 0 and hand.landing_ns < 0:
            return (
                f"its prompt is done; its {hand.pinned_pages:,} pages are pinned until decode "
                f"{hand.decode_worker} has room for them"
            )
        if kind == "decode" and self.prefill and hand.landing_ns >= 0 and hand.ready_ns < 0:
            return f"has its pages; its prompt is not done on prefill {hand.prefill_worker}"
        return None


def disaggregate(
    workload: Workload,
    config: SchedulerConfig,
    *,
    prefill_workers: int = 1,
    decode_workers: int = 1,
    prefill_config: SchedulerConfig | None = None,
    routing: str = "round-robin",
    step_time: StepTime | None = None,
    accept: AcceptLengths,
    link: TransferLink | None = None,
    page_bytes: Mapping[str, float] | None = None,
    transfer_times: TransferTimes | None = None,
    bootstrap_ns: int = 0,
    concurrency: int | None = None,
    max_rounds: int | None = None,
    force_retract_every: int | None = None,
    storage: Storage | None = None,
    check: bool = False,
    scheduler_of: Callable[[SchedulerConfig, Workload, AcceptLengths], Scheduler] | None = None,
) -> Disaggregated:
    """A disaggregated replay of ``workload``, ready to be played.

    ``config`` is each worker's deployment (``prefill_config`` the prefill workers', if it differs); its role
    is set by this. Raises ``ValueError`` for a bad argument or configuration.
    """
    if routing not in ROUTINGS:
        raise ValueError(f"routing {routing!r} is given; {' or '.join(ROUTINGS)} is expected")
    for name, count in (("prefill-workers", prefill_workers), ("decode-workers", decode_workers)):
        if count < 0:
            raise ValueError(f"{name} {count} is given; 0 or more is expected")
    if not prefill_workers and not decode_workers:
        raise ValueError("prefill-workers and decode-workers are both 0; at least one worker is needed")
    if storage is not None and not config.enable_l3_storage:
        raise ValueError("storage is given; it needs enable_l3_storage and a host pool in the deployment")
    if force_retract_every is not None and force_retract_every < 1:
        raise ValueError(f"force-retract-every {force_retract_every} is given; 1 round or more is expected")
    if max_rounds is not None and max_rounds < 1:
        raise ValueError(f"max_rounds {max_rounds} is given; 1 round or more is expected")
    if force_retract_every is not None and not decode_workers:
        raise ValueError(
            "force-retract-every is given; a prefill worker never retracts, a decode worker is needed"
        )
    if prefill_config is not None:
        check_same_pages(prefill_config, config)
    step_time = step_time or StepTime()
    link = link or TransferLink()
    configs = {
        Role.P: role_config(prefill_config or config, Role.P),
        Role.D: role_config(config, Role.D),
    }
    replay = Disaggregated(
        workload,
        Arrivals(workload, concurrency),
        [],
        [],
        [replace(link) for _ in range(max(decode_workers, 1))],
        routing,
        page_bytes or {},
        step_time,
        configs,
        max_rounds,
    )
    for role, count in ((Role.P, prefill_workers), (Role.D, decode_workers)):
        for _ in range(count):
            made = configs[role]
            kind = PrefillWorker if role == Role.P else DecodeWorker
            worker = kind(
                scheduler=(
                    Scheduler(made, check=check)
                    if scheduler_of is None
                    else scheduler_of(made, workload, accept)
                ),
                workload=workload,
                step_time=step_time,
                accept=accept,
                decode_width=made.decode_input_tokens,
                overlap=made.overlap_schedule_depth,
                transfer_times=(transfer_times or TransferTimes()).fresh(),
                on_hand_off=replay.handed_out if role == Role.P else replay.lands,
                bootstrap_ns=bootstrap_ns,
                groups=made.cache_groups,
                loaded_group=loaded_group(made),
                force_retract_every=force_retract_every,
                storage=storage,
            )
            if storage is not None:
                storage.fill(worker.scheduler, workload)
            (replay.prefill if role == Role.P else replay.decode).append(worker)  # type: ignore[arg-type]
    return replay
