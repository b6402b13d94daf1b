"""Retract and grant: victims make way for the admission that failed, in the same round (engine.md §10)."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.scheduler.cache.coordinator import Coordinator
from kvplan.scheduler.cache.prefix import BoundaryKind
from kvplan.scheduler.config import Role
from kvplan.scheduler.journal import Candidate, RetractionStep
from kvplan.scheduler.request import Request, State
from kvplan.scheduler.roster import Roster
from kvplan.scheduler.rounds.admissions import Admissions
from kvplan.scheduler.rounds.build import Outcome, PlanBuild


@dataclass(frozen=True, slots=True)
class Retracted:
    """A retraction: who, in which state, of how many tokens of KV, and for whom (``None``: the runtime's)."""

    request_id: str
    state: str
    tokens: int
    for_request: str | None
    has_snapshot: bool


class Retraction:
    """Frees the pages of running requests for the round's blocker."""

    def __init__(self, cache: Coordinator, roster: Roster, admissions: Admissions, mixed: bool) -> None:
        self.cache = cache
        self.roster = roster
        self.admissions = admissions
        self.role = admissions.role
        self.mixed = mixed and self.role == Role.Fused
        self.retracted: list[Retracted] = []
        self._next_epoch = 0

    def run(self, build: PlanBuild) -> None:
        """Retract victims until the blocker is admitted, none is left, or one has to be waited for."""
        grant = build.blocker
        if grant is None:
            return
        host = self.cache.host
        if build.prefills or build.remote_prefill:
            self._tell(grant, "none: a prefill made progress")
        elif host is not None and host.loads:
            self._tell(grant, "none: a load-back is in flight")
        elif host is not None and host.pinned_stores:
            self._tell(grant, "none: a pinned store is in flight and will give its pages back")
        else:
            self._retract_for(build, grant)

    def _retract_for(self, build: PlanBuild, grant: Request) -> None:
        while True:
            victim = self.choose_victim()
            if victim is None:
                self._tell(grant, "stopped: no victim")
                return
            if victim.results_out:
                self._tell(grant, "waits: the victim's result is out", victim)
                return
            if self.transfer_pinned(victim):
                self._tell(grant, "waits: a PD transfer holds the victim's pages", victim)
                return
            self._tell(grant, "retracted", victim)
            self.retract(build, victim, grant)
            if victim is grant:
                others = (r for r in self.roster.new_prompts.items if r is not victim)
                waiting = next(others, None)
                if waiting is None:
                    self._tell(None, "stopped: the victim was the blocker, and no prompt waits")
                    return
                grant = waiting
            if build.full:
                self._tell(grant, f"stopped: {build.why_full}")
                return
            if self.admissions.journal is not None:
                self.admissions.journal.phase = "retraction, grant"
            outcome = self._grant(build, grant)
            if outcome != Outcome.NO_CAPACITY:
                return

    def _tell(self, grant: Request | None, outcome: str, victim: Request | None = None) -> None:
        """Note a turn in the journal, with the candidates as they are ranked now."""
        journal = self.admissions.journal
        if journal is not None:
            candidates = [] if outcome.startswith("none") else self.candidates()
            journal.retraction(
                RetractionStep(
                    grant.id if grant is not None else None,
                    candidates,
                    victim.id if victim is not None else None,
                    outcome,
                )
            )

    def candidates(self) -> list[Candidate]:
        """Every request that could be a victim, with the numbers by which it is ranked or exempt."""
        rows = []
        for request in [*self.roster.prefilling.items, *self.roster.decodable.items]:
            secured, open_tokens = request.coverage
            decodes = request.state is not State.PREFILLING
            rows.append(
                Candidate(
                    request.id,
                    request.state.title,
                    request.exempt,
                    secured,
                    open_tokens,
                    len(request.tokens),
                    self.cache.releasable_parents(request.tables) if decodes else None,
                )
            )
        return rows

    def _grant(self, build: PlanBuild, request: Request) -> Outcome:
        if request.state in (State.PREFILL_DONE, State.DECODING):
            if not self.admissions.try_decode(build, request):
                return Outcome.NO_CAPACITY
            build.push_decode(request, 0 if self.role == Role.D else self.admissions.width)
            return Outcome.SCHEDULED
        if self.role == Role.D and request.state != State.PREFILLING:
            return self.admissions.first_chunk(build, request, build.budget, remote=True)
        if build.decodes and not self.mixed:
            self._tell(request, "stopped: a prefill cannot join this round's decodes")
            return Outcome.NO_TOKENS
        if request.state == State.PREFILLING:
            return self.admissions.later_chunk(build, request, build.budget)
        return self.admissions.first_chunk(build, request, build.budget, remote=False)

    def transfer_pinned(self, request: Request) -> bool:
        """Whether a PD transfer holds the request's pages (design note §3.1)."""
        if self.role == Role.P:
            return request.state.holds_pages
        return self.role == Role.D and request.state == State.REMOTE_PREFILLING

    def choose_victim(self) -> Request | None:
        """An incomplete prefill first, the largest; else the decode that frees most for least (§10)."""
        best: Request | None = None
        for request in self.roster.prefilling.items:
            if not request.exempt and (best is None or len(request.tokens) > len(best.tokens)):
                best = request
        if best is not None:
            return best
        rank: tuple[int, int, str] | None = None
        for request in self.roster.decodable.items:
            if request.exempt:
                continue
            parents = self.cache.releasable_parents(request.tables)
            mine = (-parents, len(request.tokens), request.id)
            if rank is None or mine < rank:
                rank, best = mine, request
        return best

    def retract(self, build: PlanBuild, victim: Request, grant: Request) -> None:
        """Take a request's pages, after what the host tier can keep of them is on its way there (§10)."""
        host = self.cache.host
        has_snapshot = host is not None or self.role == Role.D
        state, computed = victim.state, victim.computed
        if host is not None:
            self.publish_snapshot(victim)
            store = host.start_store(self.cache.index, pinned=False)
            if store is not None:
                build.stores.append(store)
        self.retracted.append(Retracted(victim.id, state.title, computed, grant.id, has_snapshot))
        self.take_back(victim, has_snapshot)

    def publish_snapshot(self, victim: Request) -> None:
        """Publish the computed pages of a victim and queue its prefix for the host."""
        admissions, computed = self.admissions, victim.computed
        total = max(computed // admissions.page, victim.hashed_pages)
        victim.settle()
        victim.hash_to(total, admissions.page)
        progress = admissions.progress(victim, total, from_prefill=False)
        if progress.state_kind == BoundaryKind.CHUNK and any(c <= computed for c in victim.checkpoints):
            progress.state_kind = BoundaryKind.ENDPOINT
        if total > progress.first:
            if admissions.events is not None:
                admissions.events.touch(victim, progress.first, total)
            for group, table in zip(self.cache.groups, victim.tables, strict=True):
                self.cache.publish(group, table, victim.keys, progress, victim.epoch)
        self.cache.enqueue_prefix(victim.keys, total, victim.prefill_size // admissions.page)

    def take_back(self, victim: Request, recoverable: bool) -> None:
        """Free a request's pages and note what it comes back with (§9)."""
        if victim.state == State.DECODING:
            victim.landed = len(victim.tokens) - 1
        elif victim.state == State.REMOTE_PREFILLING:
            victim.landed = 0
        else:
            victim.landed = victim.begin if victim.results_out else victim.end
        self.release(victim)
        victim.prefill_size = len(victim.tokens)
        victim.retractions += 1
        victim.retraction_epoch = self._next_epoch
        self._next_epoch += 1
        self.roster.move(victim, State.RETRACTED, recoverable)

    def release(self, request: Request) -> None:
        """Free what a request holds: its tables and its request slot."""
        self.cache.free(request.tables)
        request.tables = []
        self.roster.free_slots.append(request.pool_slot)
        request.pool_slot = 0
        request.results_out = 0
        request.taken = request.slack = request.attention = request.attention_extra = 0
        request.hashed_pages = 0
        request.promotion = 0
        request.checkpoints = []
        request.begin = request.end = 0
        request.spec_candidates = []
