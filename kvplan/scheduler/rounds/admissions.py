"""One request's admission: first chunk, later chunk, decode step (engine.md §7, §8).

These report an outcome and never compose the batch. What they change of a request is written back only after
its admission has succeeded; a failed one leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.scheduler.cache.admission import PageRef
from kvplan.scheduler.cache.blocks import Table
from kvplan.scheduler.cache.coordinator import Coordinator, Grow, MatchSteps, Probe, Progress
from kvplan.scheduler.cache.eviction import Rank
from kvplan.scheduler.cache.prefix import BoundaryKind
from kvplan.scheduler.cache.tiers import LoadOp, LoadPair
from kvplan.scheduler.chunks import ChunkRules, Rule, chunk_tokens, cut_chunk
from kvplan.scheduler.config import GroupKind, Role, SchedulerConfig
from kvplan.scheduler.demands import Demand, Reserve, decode_step, local_chunk, remote_landing
from kvplan.scheduler.journal import Journal
from kvplan.scheduler.kv_events import KVEventLog
from kvplan.scheduler.request import Request, State
from kvplan.scheduler.roster import Roster
from kvplan.scheduler.rounds.account import Account
from kvplan.scheduler.rounds.backlog import Backlog
from kvplan.scheduler.rounds.build import Outcome, PlanBuild, PrefillOp
from kvplan.scheduler.rounds.listener import Listener

NO_RESERVE = Reserve(0, 0, 0)


@dataclass(slots=True)
class Asked:
    """What a request's next admission asks of the cache."""

    tokens: int
    needs: list[int]
    hits: list[PageRef]
    own: list[Rank]


class Admissions:
    """Tries requests against the cache, one at a time."""

    def __init__(self, config: SchedulerConfig, cache: Coordinator, roster: Roster) -> None:
        self.cache = cache
        self.roster = roster
        self.role = config.role
        self.page = config.prefix_granularity
        self.width = config.decode_input_tokens
        self.replay_tokens = max(config.prefix_replay_tokens, 1)
        self.prefix_cache = not config.disable_prefix_cache
        self.rules = ChunkRules(
            config.prefix_granularity,
            config.replay_window,
            any(group.kind == GroupKind.STATE for group in cache.groups),
        )
        self.backlog = self.new_backlog()
        self.events: KVEventLog | None = None
        self.journal: Journal | None = None
        self.listener: Listener | None = None
        self._windows = [group for group in cache.groups if not group.closed]

    def new_backlog(self) -> Backlog:
        """A backlog that knows of no attempt."""
        return Backlog(self.cache, self.roster, self.role, self.width, self.rules.prefill_reserve)

    # --- first chunk --------------------------------------------------------------------------------

    def match_limit(self, request: Request) -> tuple[int, str]:
        """Prefix pages that a first chunk may match, and the rule that says so (§6)."""
        retracted = request.state == State.RETRACTED
        if not self.prefix_cache and not retracted:
            return 0, "the prefix cache is disabled"
        bound = max(request.max_cached, request.landed) if retracted else request.max_cached
        computed = request.prefill_size - self.replay_tokens
        rule = "first token rule: the prompt's end is always computed"
        if bound < computed:
            rule = "the request's own bound on its cached prefix"
        return max(min(computed, bound), 0) // self.page, rule

    def probe(self, request: Request, steps: MatchSteps | None = None) -> Probe:
        """What the request's first chunk would hit."""
        limit, _ = self.match_limit(request)
        request.hash_to(limit, self.page)
        fresh_remote = self.role == Role.D and request.state == State.SUBMITTED
        return self.cache.probe(request.keys, limit, fresh_remote, not fresh_remote, steps)

    def first_chunk(self, build: PlanBuild, request: Request, budget: int, remote: bool) -> Outcome:
        """Try a request's first chunk; ``remote`` has a peer prefill the whole prompt (§8)."""
        account, listener = (
            Account.of(self, request, "remote prefill" if remote else "first chunk"),
            self.listener,
        )
        if not self.roster.free_slots:
            return account.ends(Outcome.NO_SLOT) if account else Outcome.NO_SLOT
        if self.events is not None:
            self.events.touch(request, 0, (request.prefill_size - 1) // self.page)
        steps: MatchSteps | None = ([], []) if account or listener else None
        probe = self.probe(request, steps)
        bound = self.match_limit(request) if listener else (0, "")
        loads: list[LoadPair] = []
        while True:
            hit = probe.hit * self.page
            rest = request.prefill_size - hit
            tokens, rule = rest, Rule.COMPLETES
            if not remote:
                promotion = probe.promotion * self.page
                tokens, rule = cut_chunk(self.rules, hit, hit > 0, rest, budget, promotion)
            if account:
                account.hit(probe, steps)
                account.cut(hit, tokens, rest, budget, rule)
            if not tokens:
                return account.ends(Outcome.NO_TOKENS) if account else Outcome.NO_TOKENS
            demands, reserve = self._first_demands(request, hit, tokens, remote)
            tables = [Table() for _ in self.cache.groups]
            needs = self.cache.needs(tables, demands, probe)
            hits = self.cache.device_hits(request.keys, probe)
            considered: list[Rank] | None = [] if account else None
            if account:
                account.asks(tables, demands, reserve, needs, hits, (), probe)
            victims = self.cache.plan(needs, hits, (), considered)
            if account:
                account.evicts(victims, considered)
            if victims is None:
                return account.ends(Outcome.NO_CAPACITY) if account else Outcome.NO_CAPACITY
            if listener:
                listener.serves(request)
            epoch = self.cache.new_epoch()
            grow = Grow(demands)
            host_hits = None
            if probe.host > probe.device:
                host_hits = self.cache.acquire_host(request.keys, probe, epoch)
            self.cache.claim(tables, request.keys, probe, epoch)
            self.cache.evict_free(victims)
            if host_hits is None:
                for group, table, demand in zip(self.cache.groups, tables, demands, strict=True):
                    grow.group(self.cache, group, table, demand)
                break
            loads = self.cache.load(tables, request.keys, probe, host_hits, grow)
            if host_hits.boundary == probe.host:
                self.cache.publish_loaded(tables, request.keys, probe, host_hits, epoch)
                break
            # The hit came out shorter than the chunk was cut for: the chunk starts over (§11).
            for pair in loads:
                assert self.cache.host is not None
                self.cache.host.drop(pair, self.cache.pool)
            self.cache.free(tables)
            probe.host = host_hits.boundary
            loads = []
            if account:
                account.entry.retries += 1
        self._admit_first(build, request, probe, tables, epoch, hit, tokens, remote)
        if listener:
            listener.admitted(request, probe, steps or ([], []), *bound)
            listener.serves(None)
        build.add_zero(grow.zero)
        if loads:
            assert self.cache.host is not None
            op = LoadOp(self.cache.host.new_op_id(), loads)
            self.cache.host.loads[op.op_id] = op
            build.loads.append(op)
        complete = remote or request.end == request.prefill_size
        outcome = Outcome.SCHEDULED if complete else Outcome.INCOMPLETE
        return account.ends(outcome) if account else outcome

    def _first_demands(
        self, request: Request, hit: int, tokens: int, remote: bool
    ) -> tuple[list[Demand], Reserve]:
        completes = remote or hit + tokens == request.prefill_size
        headroom = 0 if self.role == Role.P else request.headroom
        prompt_headroom = request.prefill_size - hit - tokens + headroom if headroom > 0 else 0
        reserve = self._reserve(completes, prompt_headroom)
        if remote:
            return remote_landing(self.cache.groups, hit, request.prefill_size, reserve), reserve
        replay = min(self.cache.replay_window, hit)
        return local_chunk(self.cache.groups, hit, tokens, self.page, reserve, replay), reserve

    def _reserve(self, completes: bool, headroom: int) -> Reserve:
        growth = completes and self.role != Role.P
        return Reserve(self.width if completes else 0, headroom, max(self.width, 1) if growth else 0)

    def _admit_first(
        self,
        build: PlanBuild,
        request: Request,
        probe: Probe,
        tables: list[Table],
        epoch: int,
        hit: int,
        tokens: int,
        remote: bool,
    ) -> None:
        request.tables = tables
        request.pool_slot = self.roster.free_slots.popleft()
        request.epoch = epoch
        request.hashed_pages = probe.hit
        request.promotion = probe.promotion * self.page
        request.checkpoints = []
        self.backlog.forget(request)
        request.exempt = request.covered
        replay = 0 if remote else min(self.cache.replay_window, hit)
        self._window(request, hit, tokens, remote)
        op = PrefillOp(request, hit, tokens, replay)
        if remote:
            self.roster.move(request, State.REMOTE_PREFILLING)
            request.reserve = self.width
            build.remote_prefill.append(op)
        else:
            self._scheduled_chunk(build, request, op)

    def _window(self, request: Request, begin: int, size: int, remote: bool) -> None:
        """Note the window that is computed next, and the state checkpoint it leaves (§7)."""
        request.begin, request.end = begin, begin + size
        boundary = request.end // self.page * self.page
        if remote and boundary != request.end:
            return
        if boundary > request.hashed_pages * self.page:
            request.checkpoints.append(boundary)

    def _scheduled_chunk(self, build: PlanBuild, request: Request, op: PrefillOp) -> None:
        request.results_out += 1
        if request.end < request.prefill_size:
            if request.state != State.PREFILLING:
                self.roster.move(request, State.PREFILLING)
        else:
            request.reserve = self.width
            done = State.PREFILL_AWAITING_RESULT if self.role == Role.P else State.PREFILL_DONE
            self.roster.move(request, done)
            self.refresh(request)
        build.push_prefill(op)

    # --- later chunk --------------------------------------------------------------------------------

    def later_chunk(self, build: PlanBuild, request: Request, budget: int) -> Outcome:
        """Try the next chunk of a request that is prefilling (§8)."""
        start = request.end
        rest = request.prefill_size - start
        account = Account.of(self, request, "later chunk")
        tokens, rule = cut_chunk(self.rules, start, False, rest, budget, request.promotion)
        if account:
            account.cut(start, tokens, rest, budget, rule)
        if not tokens:
            return account.ends(Outcome.NO_TOKENS) if account else Outcome.NO_TOKENS
        reserve = self._reserve(tokens == rest, 0)
        demands = local_chunk(self.cache.groups, start, tokens, self.page, reserve)
        if not self._admit(build, request, demands, True, account, reserve):
            return account.ends(Outcome.NO_CAPACITY) if account else Outcome.NO_CAPACITY
        self._window(request, start, tokens, remote=False)
        self._scheduled_chunk(build, request, PrefillOp(request, start, tokens, 0))
        outcome = Outcome.SCHEDULED if tokens == rest else Outcome.INCOMPLETE
        return account.ends(outcome) if account else outcome

    # --- decode step --------------------------------------------------------------------------------

    def try_decode(self, build: PlanBuild, request: Request, local: bool = True) -> bool:
        """Try a decode step (§8); False if its admission fails for capacity."""
        tokens = request.reserve
        from_done = request.state is State.PREFILL_DONE
        account = Account.of(self, request, "decode step")
        if tokens <= request.slack and request.computed < request.attention:
            request.slack -= tokens
            request.taken += tokens
        elif self._step_in_place(request, tokens):
            request.settle()
            for table in request.tables:
                table.available -= tokens
            self.refresh(request)
        else:
            demands = decode_step(self.cache.groups, tokens)
            if not self._admit(build, request, demands, from_done, account, NO_RESERVE):
                if account:
                    account.ends(Outcome.NO_CAPACITY)
                return False
            self.refresh(request)
        request.reserve = self.width
        if from_done:
            build.first_decodes.add(request.seq)
            self.roster.move(request, State.DECODING)
        if local:
            request.results_out += 1
        if account:
            account.ends(Outcome.SCHEDULED)
        return True

    def _step_in_place(self, request: Request, tokens: int) -> bool:
        """Whether a step takes room that is there and completes, expires and needs nothing."""
        if tokens > request.slack or request.computed // self.page > request.hashed_pages:
            return False
        return not self.cache.own_expired(request.tables, request.computed)

    def refresh(self, request: Request) -> None:
        """Work out anew how far decode steps can go in place."""
        request.settle()
        request.slack = min(table.available for table in request.tables)
        at = (request.hashed_pages + 1) * self.page
        for group in self._windows:
            table = request.tables[group.index]
            at = min(at, (table.reclaimed + 1) * group.granularity + group.window - 1)
        request.attention = at
        # The same in output tokens: a decoding request has computed all tokens but the last.
        request.attention_extra = at - request.tokens.prompt_size + 1

    # --- asking -------------------------------------------------------------------------------------

    def ask(self, request: Request, budget: int) -> Asked | None:
        """What the next admission would ask for; ``None`` for a request that has none to make. Changes nothing."""
        cache = self.cache
        if request.state in (State.SUBMITTED, State.RETRACTED):
            probe = self.probe(request)
            hit = probe.hit * self.page
            tokens = rest = request.prefill_size - hit
            remote = self.role == Role.D and request.new_prompt
            if not remote:
                tokens = chunk_tokens(self.rules, hit, hit > 0, rest, budget, probe.promotion * self.page)
            demands, _ = self._first_demands(request, hit, tokens, remote)
            needs = cache.needs([Table() for _ in cache.groups], demands, probe)
            return Asked(tokens, needs, cache.device_hits(request.keys, probe), [])
        if request.state == State.PREFILLING:
            rest = request.prefill_size - request.end
            tokens = chunk_tokens(self.rules, request.end, False, rest, budget, request.promotion)
            demands = local_chunk(
                cache.groups, request.end, tokens, self.page, self._reserve(tokens == rest, 0)
            )
        elif request.state in (State.PREFILL_DONE, State.DECODING):
            tokens = request.reserve
            demands = decode_step(cache.groups, tokens)
        else:
            return None
        request.settle()
        own = cache.own_expired(request.tables, request.computed)
        return Asked(tokens, cache.needs(request.tables, demands, None), [], own)

    # --- common -------------------------------------------------------------------------------------

    def _admit(
        self,
        build: PlanBuild,
        request: Request,
        demands: Sequence[Demand],
        from_prefill: bool,
        account: Account | None,
        reserve: Reserve,
    ) -> bool:
        """Admit a request that holds pages: publish, reclaim and grow, or change nothing."""
        request.settle()
        cache = self.cache
        computed = request.computed
        total = max(computed // self.page, request.hashed_pages)
        if self.events is not None:
            self.events.touch(request, request.hashed_pages, total)
        needs = cache.needs(request.tables, demands, None)
        own = cache.own_expired(request.tables, computed)
        considered: list[Rank] | None = [] if account else None
        if account:
            account.asks(request.tables, demands, reserve, needs, (), own, None)
        victims = cache.plan(needs, (), own, considered)
        if account:
            account.evicts(victims, considered)
        if victims is None:
            return False
        request.hash_to(total, self.page)
        progress = self.progress(request, total, from_prefill)
        if self.listener:
            self.listener.serves(request)
        waiting = cache.evict_free(victims)
        cache.advance(request.tables, request.keys, progress, request.epoch)
        for index, page in waiting:
            cache.index.remove(index, page)
        if self.listener:
            self.listener.serves(None)
        grow = Grow(demands)
        for group, table, demand in zip(cache.groups, request.tables, demands, strict=True):
            grow.group(cache, group, table, demand)
        build.add_zero(grow.zero)
        self.note_progress(request, total, computed)
        return True

    def progress(self, request: Request, total: int, from_prefill: bool) -> Progress:
        """What a request's next admission publishes (§7, *Publishing*)."""
        computed = request.computed
        if request.promotion and computed == request.promotion:
            kind = BoundaryKind.PROMOTED
        elif computed == request.prefill_size:
            kind = BoundaryKind.ENDPOINT
        else:
            kind = BoundaryKind.CHUNK
        state_kind = kind
        if (
            kind == BoundaryKind.CHUNK
            and request.prefill_size // self.page * self.page in request.checkpoints
        ):
            state_kind = BoundaryKind.ENDPOINT
        return Progress(
            request.hashed_pages, total, kind, state_kind, computed, from_prefill, request.checkpoints
        )

    def note_progress(self, request: Request, total: int, computed: int) -> None:
        """Write back what an admission has published."""
        request.hashed_pages = total
        request.checkpoints = [c for c in request.checkpoints if c > total * self.page]
        if request.promotion and computed >= request.promotion:
            request.promotion = 0
