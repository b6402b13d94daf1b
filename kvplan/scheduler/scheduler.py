"""The scheduler: requests and events in, one plan a round out (engine.md §9, §10, §12)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from kvplan.scheduler.cache.coordinator import Coordinator
from kvplan.scheduler.cache.prefix import BoundaryKind, PrefixIndex, split_key
from kvplan.scheduler.cache.tiers import LoadOp, StoreOp
from kvplan.scheduler.capacity import CapacityModel
from kvplan.scheduler.config import Role, SchedulerConfig
from kvplan.scheduler.events import PD, Cache, ExecutionEvent, ForwardEvent
from kvplan.scheduler.journal import Journal, PoolState, RoundJournal
from kvplan.scheduler.kv_events import KVEventLog
from kvplan.scheduler.plan import Batch, ExecutionPlan
from kvplan.scheduler.request import Request, RequestSpec, State, as_tokens
from kvplan.scheduler.roster import Roster
from kvplan.scheduler.rounds.admissions import Admissions
from kvplan.scheduler.rounds.build import PlanBuild, PrefillOp
from kvplan.scheduler.rounds.decode_worker import decode_round
from kvplan.scheduler.rounds.diagnosis import Diagnosis, diagnose
from kvplan.scheduler.rounds.fused import mixed_round, separate_round
from kvplan.scheduler.rounds.listener import Listener
from kvplan.scheduler.rounds.phases import next_readmission
from kvplan.scheduler.rounds.prefill_worker import prefill_round
from kvplan.scheduler.rounds.retraction import Retracted, Retraction
from kvplan.scheduler.signature import signature


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """LCM blocks: empty, holding nothing but cache that could be evicted, and held. Together they are all."""

    free: int
    cached: int
    held: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.free + self.cached + self.held


class Scheduler:
    """The engine's scheduler. A value: nothing of it is shared with another.

    Raises ``ValueError`` naming the field if the configuration is invalid (§2).
    """

    def __init__(self, config: SchedulerConfig, *, check: bool = False) -> None:
        config.validate()
        self._role = config.role
        self._mixed = config.enable_mixed_prefill_decode
        self._page = config.prefix_granularity
        self._width = config.decode_input_tokens
        self._budget = config.max_scheduled_tokens
        self._batch = config.max_batch_size
        self._storage = config.enable_l3_storage
        self._cache = Coordinator(config)
        if self._role != Role.D:
            self._cache.stream_publications()
        self._roster = Roster(config.max_batch_size)
        self._admissions = Admissions(config, self._cache, self._roster)
        self._retraction = Retraction(self._cache, self._roster, self._admissions, self._mixed)
        self._finished_stores: list[StoreOp] = []  # started by a Finish: they go out with the next plan
        self._max_tokens = CapacityModel(config).max_single_request_tokens(config.num_device_pages - 1)
        self._check = check
        self._kv_events = KVEventLog(self._cache, self._page) if config.enable_kv_cache_events else None
        self._admissions.events = self._kv_events

    # --- requests -----------------------------------------------------------------------------------

    def submit_requests(self, specs: Sequence[RequestSpec]) -> None:
        """Take requests, all of them or none.

        Raises ``ValueError`` naming request and field if one is invalid, known, or can never fit (§2).
        """
        taken: list[tuple[RequestSpec, Any]] = []
        ids: set[str] = set()
        for spec in specs:
            where = f"request {spec.request_id!r}: "
            tokens = as_tokens(spec.tokens, where)
            if not len(tokens):
                raise ValueError(f"{where}tokens is empty; at least one token is needed")
            if spec.request_id in self._roster.by_id or spec.request_id in ids:
                raise ValueError(f"{where}request_id is taken; each live request needs its own")
            for name in ("max_new_tokens", "max_cached_prefix_tokens"):
                value = getattr(spec, name)
                if value < 0:
                    raise ValueError(f"{where}{name} is {value}; at least 0 is needed")
            growth = 0 if self._role == Role.P else max(spec.max_new_tokens, self._width)
            if len(tokens) + growth > self._max_tokens:
                raise ValueError(
                    f"{where}tokens and max_new_tokens never fit: {len(tokens) + growth} tokens "
                    f"({len(tokens)} + {growth}), and the pool serves requests of at most "
                    f"{self._max_tokens} tokens"
                )
            ids.add(spec.request_id)
            taken.append((spec, tokens))
        for spec, tokens in taken:
            request = Request(spec, tokens, self._roster.next_seq())
            if self._role != Role.Fused:
                request.state = State.BOOTSTRAPPING
            self._roster.add(request)

    # --- rounds -------------------------------------------------------------------------------------

    def next_execution_plan(self) -> ExecutionPlan:
        """Make the next round's plan (§10, §12)."""
        self._roster.drop_finished()
        build = PlanBuild(self._budget, self._batch)
        journal = self._admissions.journal
        if journal is not None:
            journal.begin(
                RoundJournal(self._role.name, self._mixed, self._budget, self._batch, pool_state(self._cache))
            )
        build.stores += self._finished_stores
        self._finished_stores = []
        if self._role == Role.P:
            prefill_round(self._admissions, self._roster, build)
        elif self._role == Role.D:
            decode_round(self._admissions, self._roster, self._retraction, build)
        elif self._mixed:
            mixed_round(self._admissions, self._roster, self._retraction, build)
        else:
            separate_round(self._admissions, self._roster, self._retraction, build)
        if self._cache.host is not None:
            store = self._cache.host.start_store(self._cache.index, pinned=True)
            if store is not None:
                build.stores.append(store)
        plan = self._plan(build)
        if journal is not None and journal.round is not None:
            journal.round.after = pool_state(self._cache)
            journal.round.budget_left = build.budget
            journal.round.scheduled = self._batch - build.room
            journal.round.blocker = build.blocker.id if build.blocker is not None else None
        if self._check:
            self.check_invariants()
        if self.listener is not None:
            self.listener.planned(plan)
        return plan

    def _plan(self, build: PlanBuild) -> ExecutionPlan:
        plan = ExecutionPlan()
        if build.prefills or build.decodes:
            plan.forward.append(self._batch_of(build.prefills, build.decodes, build.first_decodes))
        if build.remote_prefill:
            plan.remote_prefill = self._batch_of(build.remote_prefill, (), set())
        if build.remote_decode:
            plan.remote_decode = self._batch_of((), build.remote_decode, build.first_decodes)
        if build.stores:
            plan.cache.append(self._write_back(build.stores))
        if build.loads:
            plan.cache.append(self._load_back(build.loads))
        for group in self._cache.groups:
            pages = build.zero.get(group.index)
            if pages:
                plan.pages_to_zero[group.id] = pages
        return plan

    def _batch_of(self, prefills: Sequence[PrefillOp], decodes: Sequence[Request], first: Set[int]) -> Batch:
        batch = Batch([group.id for group in self._cache.groups])
        for prefill in prefills:
            batch.add_extend(
                prefill.request, prefill.begin - prefill.replay, prefill.replay, prefill.size + prefill.replay
            )
        if decodes:
            input_ids = [-1] * len(decodes)
            if first and self._role != Role.Fused:
                input_ids = [request.tokens.last() if request.seq in first else -1 for request in decodes]
            batch.add_decodes(decodes, self._width, input_ids)
        return batch

    def _write_back(self, ops: Sequence[StoreOp]) -> Cache.WriteBackOp:
        out = Cache.WriteBackOp()
        for op in ops:
            self._lay_out(out, op)
            out.source_pinned.append(op.pinned)
            keys = [split_key(pair.key) for pair in op.pairs]
            out.content_hashes.append([digest.hex() for digest, _ in keys])
            out.page_offsets.append([offset for _, offset in keys])
        return out

    def _load_back(self, ops: Sequence[LoadOp]) -> Cache.LoadBackOp:
        out = Cache.LoadBackOp()
        for op in ops:
            self._lay_out(out, op)
            keys = [split_key(pair.key) for pair in op.pairs]
            out.content_hashes.append([digest.hex() if self._storage else "" for digest, _ in keys])
            out.page_offsets.append([offset if self._storage else 0 for _, offset in keys])
            out.prefetch_from_storage.append([pair.from_storage for pair in op.pairs])
        return out

    def _lay_out(self, out: Cache.WriteBackOp | Cache.LoadBackOp, op: StoreOp | LoadOp) -> None:
        out.op_ids.append(op.op_id)
        out.group_ids.append([pair.group for pair in op.pairs])
        out.src_pages.append([pair.source for pair in op.pairs])
        out.dst_pages.append([pair.destination for pair in op.pairs])

    # --- events -------------------------------------------------------------------------------------

    def advance(self, event: ExecutionEvent) -> None:
        """Take what has happened, in order (§9).

        Raises ``RuntimeError`` naming request, event and state for one that cannot happen in that state; an
        event for an unknown request or operation is ignored.
        """
        by_id = self._roster.by_id
        result, decoding = ForwardEvent.ExtendResult, State.DECODING
        for one in event.events:
            kind = type(one)
            if kind is result:
                request = by_id.get(one.request_id)
                if request is None:
                    continue
                if request.state is decoding and request.results_out and not one.spec_candidate_ids:
                    # By far the most frequent event.
                    request.results_out -= 1
                    request.extra.extend(one.tokens)
                else:
                    self._extend_result(request, one)
            elif kind is ForwardEvent.UpdateReserveNumTokens:
                request = by_id.get(one.request_id)
                if request is not None:
                    self._update_reserve(request, one)
            else:
                self._rare_event(one)

    def _rare_event(self, event: Any) -> None:
        if isinstance(event, Cache.WriteBackDoneEvent):
            host = self._cache.host
            if host is not None and event.op_id in host.stores:
                self._cache.finish_store(event.op_id)
            return
        if isinstance(event, Cache.LoadBackDoneEvent):
            host = self._cache.host
            if host is not None and event.op_id in host.loads:
                self._cache.finish_load(event.op_id, event.success)
            return
        handlers = {
            ForwardEvent.Finish: self._finish,
            ForwardEvent.Abort: self._end,
            ForwardEvent.Retract: self._retract,
            PD.BootstrappedEvent: self._bootstrapped,
            PD.FailedEvent: self._end,
            PD.SucceededEvent: self._succeeded,
            PD.RemotePrefillDoneEvent: self._remote_prefill_done,
        }
        handler = handlers.get(type(event))
        if handler is None:
            raise TypeError(f"{type(event).__name__} is no event of the scheduler")
        request_id = event.request_id if hasattr(event, "request_id") else event.id
        request = self._roster.by_id.get(request_id)
        if request is not None:
            handler(request, event)

    def _extend_result(self, request: Request, event: ForwardEvent.ExtendResult) -> None:
        state = request.state
        if state == State.FINISHED:
            return
        tokens = event.tokens
        if state in (State.PREFILLING, State.REMOTE_PREFILLING):
            if len(tokens):
                raise _cannot(request, event, "; a result with tokens needs a finished prefill")
        elif state not in (State.PREFILL_AWAITING_RESULT, State.PREFILL_DONE, State.DECODING):
            raise _cannot(request, event)
        if request.results_out:
            request.results_out -= 1
        if len(tokens):
            request.tokens.extra.extend(tokens)
            if event.spec_candidate_ids:
                request.spec_candidates = list(event.spec_candidate_ids)
            if state == State.PREFILL_AWAITING_RESULT:
                self._roster.move(request, State.PREFILL_DONE)
                self._admissions.refresh(request)

    def _update_reserve(self, request: Request, event: ForwardEvent.UpdateReserveNumTokens) -> None:
        if request.state == State.DECODING:
            request.reserve = event.reserve_num_tokens_in_next_schedule_event
        elif request.state != State.FINISHED:
            raise _cannot(request, event)

    def _bootstrapped(self, request: Request, event: PD.BootstrappedEvent) -> None:
        if request.state == State.BOOTSTRAPPING:
            self._roster.move(request, State.SUBMITTED)

    def _remote_prefill_done(self, request: Request, event: PD.RemotePrefillDoneEvent) -> None:
        if request.state in (State.PREFILL_DONE, State.DECODING, State.FINISHED):
            return
        if request.state != State.REMOTE_PREFILLING:
            raise _cannot(request, event)
        if event.bootstrap_token < 0:
            raise ValueError(
                f"request {request.id!r}: bootstrap_token is {event.bootstrap_token}; a token id is at least 0"
            )
        request.tokens.extra.append(event.bootstrap_token)
        self._roster.move(request, State.PREFILL_DONE)
        self._admissions.refresh(request)

    def _succeeded(self, request: Request, event: PD.SucceededEvent) -> None:
        if request.state == State.FINISHED:
            return
        if request.state not in (State.PREFILL_DONE, State.DECODING):
            raise _cannot(request, event)
        self._end(request, event)

    def _end(self, request: Request, event: Any) -> None:
        """The request ends and publishes nothing more."""
        if request.state == State.FINISHED:
            return
        if request.state.holds_pages:
            self._retraction.release(request)
        self._admissions.backlog.forget(request)
        self._roster.move(request, State.FINISHED)

    def _finish(self, request: Request, event: ForwardEvent.Finish) -> None:
        state = request.state
        if state == State.FINISHED:
            return
        allowed = (State.PREFILL_DONE, State.PREFILL_AWAITING_RESULT, State.DECODING, State.RETRACTED)
        if state not in allowed or self._retraction.transfer_pinned(request):
            raise _cannot(request, event)
        if state in (State.PREFILL_DONE, State.DECODING):
            self._publish_finished(request)
        self._end(request, event)

    def _publish_finished(self, request: Request) -> None:
        """Publish the full pages of all tokens but the last, and store the request's prefix (§11)."""
        total = max((len(request.tokens) - 1) // self._page, request.hashed_pages)
        request.hash_to(total, self._page)
        progress = self._admissions.progress(request, total, from_prefill=False)
        progress.kind = BoundaryKind.ENDPOINT
        cache = self._cache
        if total > progress.first:
            if self._kv_events is not None:
                self._kv_events.touch(request, progress.first, total)
            for group, table in zip(cache.groups, request.tables, strict=True):
                cache.publish(group, table, request.keys, progress, request.epoch)
        if cache.host is not None and self._role != Role.D:
            cache.enqueue_prefix(request.keys, total, request.prefill_size // self._page)
            store = cache.host.start_store(cache.index, pinned=True)
            if store is not None:
                self._finished_stores.append(store)

    def _retract(self, request: Request, event: ForwardEvent.Retract) -> None:
        if request.state in (State.RETRACTED, State.FINISHED):
            return
        if not request.state.holds_pages:
            raise _cannot(request, event)
        self._retraction.retracted.append(
            Retracted(request.id, request.state.title, request.computed, None, False)
        )
        self._retraction.take_back(request, recoverable=False)

    # --- what can be asked --------------------------------------------------------------------------

    def bootstrapping_size(self) -> int:
        """Requests whose handshake is not done."""
        return len(self._roster.bootstrapping)

    def waiting_size(self) -> int:
        """Submitted and retracted requests."""
        return self._roster.waiting_size()

    def prefilling_size(self) -> int:
        """Requests in Prefilling, RemotePrefilling, PrefillAwaitingResult or PrefillDone."""
        return self._roster.prefilling_size()

    def decoding_size(self) -> int:
        """Requests in Decoding."""
        return self._roster.decoding

    def remote_prefilling_size(self) -> int:
        """Requests that a peer prefills."""
        return len(self._roster.remote_prefilling)

    def pd_transfer_size(self) -> int:
        """Requests whose pages a PD transfer holds."""
        return sum(1 for request in self._roster.holders() if self._retraction.transfer_pinned(request))

    def pd_transfer_pinned(self, request_id: str) -> bool:
        """Whether a PD transfer holds the request's pages."""
        request = self._roster.by_id.get(request_id)
        return request is not None and self._retraction.transfer_pinned(request)

    def available_lcm_blocks(self) -> int:
        """LCM blocks that are empty or hold nothing but unpinned cache."""
        return self._cache.pool.idle

    def empty_lcm_blocks(self) -> int:
        """LCM blocks that hold nothing."""
        return len(self._cache.pool.empties)

    def active_lcm_blocks(self) -> int:
        """Distinct LCM blocks that live requests refer to."""
        seen: set[int] = set()
        for request in self._roster.holders():
            self._cache.held_parents(request.tables, seen)
        return len(seen)

    def request_token_size(self, request_id: str) -> int:
        """A request's tokens, prompt and output; −1 for an unknown one."""
        request = self._roster.by_id.get(request_id)
        return len(request.tokens) if request is not None else -1

    def max_single_request_tokens(self) -> int:
        """The longest prompt and generation, in tokens, that the pool can ever serve (§3)."""
        return self._max_tokens

    def cache_group_total_pages(self, group_id: str) -> int:
        """A group's configured ``total_pages``."""
        return self._cache.groups[self._group(group_id)].total_pages

    def cache_group_available_pages(self, group_id: str) -> int:
        """Pages of a group that could be taken without evicting: empty blocks' and free slots of its own."""
        return self._cache.pool.free_pages(self._group(group_id))

    def _group(self, group_id: str) -> int:
        for group in self._cache.groups:
            if group.id == group_id:
                return group.index
        known = ", ".join(repr(group.id) for group in self._cache.groups)
        raise ValueError(f"cache group {group_id!r} is unknown; there are {known}")

    def prefix_hashes_for_tokens(self, tokens: Any) -> list[str]:
        """The hex hashes of the ``(n − 1) // P`` prefix pages that an admission would probe."""
        request = Request(RequestSpec(), as_tokens(tokens, ""), 0)
        pages = max(len(request.tokens) - 1, 0) // self._page
        request.hash_to(pages, self._page)
        return [digest.hex() for digest in request.keys.digests[:pages]]

    def waiting_prefix_hashes(self) -> list[str]:
        """The prefix hashes of the requests that may be admitted next, none twice (``api.md``)."""
        hashes: dict[bytes, None] = {}
        free = self._batch - self.prefilling_size() - self.decoding_size()
        readmission = next_readmission(self._roster)
        if readmission is not None:
            free -= 1
            hashes.update(dict.fromkeys(self._probed(readmission)))
        if not self._roster.prefilling.items and self._cache.pool.idle:
            for request in self._roster.new_prompts.items[: max(free, 0)]:
                hashes.update(dict.fromkeys(self._probed(request)))
        return [digest.hex() for digest in hashes]

    def _probed(self, request: Request) -> list[bytes]:
        pages = (request.prefill_size - 1) // self._page
        request.hash_to(pages, self._page)
        return request.keys.digests[:pages]

    # --- storage and clearing -----------------------------------------------------------------------

    def expand_prefix_keys(self, hashes: Sequence[str]) -> tuple[list[int], list[str], list[int]]:
        """The page keys behind prefix hashes, group by group: group indices, hashes, page offsets."""
        groups: list[int] = []
        keys: list[str] = []
        offsets: list[int] = []
        for group in self._cache.groups:
            for one in hashes:
                for offset in range(group.pages_per_prefix):
                    groups.append(group.index)
                    keys.append(one)
                    offsets.append(offset)
        return groups, keys, offsets

    def register_storage_keys(
        self, groups: Sequence[int], hashes: Sequence[str], offsets: Sequence[int]
    ) -> None:
        """Note page keys that storage holds (``api.md``); ``groups`` are indices.

        Does nothing without a storage tier. Raises ``ValueError`` for lists of unequal length or a group that
        is not there.
        """
        keys = self._storage_keys(groups, hashes, offsets)
        if self._cache.host is None or self._cache.host.known is None:
            return
        first: dict[str, int] = {}
        for one in hashes:
            first.setdefault(one, len(first))
        order = sorted(range(len(keys)), key=lambda at: (first[hashes[at]], offsets[at], groups[at]))
        self._cache.host.known.register(keys[at] for at in order)

    def unregister_storage_keys(
        self, groups: Sequence[int], hashes: Sequence[str], offsets: Sequence[int]
    ) -> None:
        """Forget page keys that storage held; unknown ones are ignored, host entries stay."""
        keys = self._storage_keys(groups, hashes, offsets)
        if self._cache.host is not None and self._cache.host.known is not None:
            self._cache.host.known.forget(keys)

    def _storage_keys(
        self, groups: Sequence[int], hashes: Sequence[str], offsets: Sequence[int]
    ) -> list[tuple[int, bytes]]:
        if not len(groups) == len(hashes) == len(offsets):
            raise ValueError(
                f"groups, hashes and offsets have {len(groups)}, {len(hashes)} and {len(offsets)} entries; "
                "they must be of one length"
            )
        count = len(self._cache.groups)
        for group in groups:
            if not 0 <= group < count:
                raise ValueError(f"groups has {group}; a group is an index from 0 to {count - 1}")
        return [
            self._cache.page_key(group, bytes.fromhex(one), offset)
            for group, one, offset in zip(groups, hashes, offsets, strict=True)
        ]

    def can_clear_cache(self) -> bool:
        """Whether ``clear_cache`` would clear."""
        return self._can_clear_device() and self._can_clear_host()

    def clear_l1_cache(self) -> bool:
        """Drop every device entry; False, and nothing changes, if one is in use (``api.md``)."""
        if not self._can_clear_device():
            return False
        self._cache.clear_device()
        return True

    def clear_cache(self) -> bool:
        """Drop every device and host entry; False, and nothing changes, if one is in use."""
        if not self.can_clear_cache():
            return False
        self._cache.clear_device()
        self._cache.clear_host()
        return True

    def _can_clear_device(self) -> bool:
        host = self._cache.host
        if self.pd_transfer_size() or (host is not None and (host.stores or host.loads)):
            return False
        refs = self._cache.pool.refs
        return not any(
            refs[group][page]
            for group, pages in enumerate(self._cache.index.pages)
            for page in pages.values()
        )

    def _can_clear_host(self) -> bool:
        host = self._cache.host
        if host is None:
            return True
        return not any(
            host.pool.refs[group][page]
            for group, pages in enumerate(host.index.pages)
            for page in pages.values()
        )

    def drain_kv_events(self) -> list[Any]:
        """The net change of what the device cache serves since the last call (``api.md``)."""
        return self._kv_events.drain() if self._kv_events is not None else []

    # --- beyond the engine's API --------------------------------------------------------------------

    @property
    def journal(self) -> Journal | None:
        """Where the planners tell of their decisions; ``None``, the default, costs nothing."""
        return self._admissions.journal

    @journal.setter
    def journal(self, journal: Journal | None) -> None:
        self._admissions.journal = journal

    @property
    def listener(self) -> Listener | None:
        """Who is told of admissions and plans; ``None``, the default, costs nothing."""
        return self._admissions.listener

    @listener.setter
    def listener(self, listener: Listener | None) -> None:
        self._admissions.listener = listener

    def pool_usage(self) -> PoolUsage:
        """How the LCM blocks are used now."""
        pool = self._cache.pool
        free = len(pool.empties)
        return PoolUsage(free, pool.idle - free, pool.num_parents - pool.idle)

    def state_signature(self) -> bytes:
        """A digest of all that decides the plans to come, but for the numbering of pages."""
        return signature(self._cache, self._roster)

    def diagnose(self, request_id: str) -> Diagnosis | None:
        """What a request's next admission needs against what there is; ``None`` for an unknown request."""
        request = self._roster.by_id.get(request_id)
        return diagnose(self._admissions, request, self._budget) if request is not None else None

    def explain_waiting(self, request_id: str) -> str:
        """``diagnose`` in words."""
        return str(self.diagnose(request_id) or f"{request_id} is not known")

    @property
    def cache(self) -> Coordinator:
        """Pool, index and tiers: for reading."""
        return self._cache

    def indexes(self) -> list[PrefixIndex]:
        """The device's prefix index, and the host's if there is one: each has an ``on_change`` to be told."""
        host = self._cache.host
        return [self._cache.index] if host is None else [self._cache.index, host.index]

    def requests(self) -> list[Request]:
        """The live requests and those that ended in the last round, in submission order."""
        return sorted(self._roster.by_id.values(), key=lambda request: request.seq)

    def forget_attempts(self) -> None:
        """Try every waiting prompt anew in the next round, whatever is known of its last attempt."""
        for request in self._roster.by_id.values():
            request.floor = None
        self._cache.index.forget_watchers()
        self._admissions.backlog = self._admissions.new_backlog()

    def add_blocks(self, extra: int) -> None:
        """Add empty LCM blocks to the device pool. The limit of one request stays what it was."""
        pool = self._cache.pool
        pool.add_parents(extra)
        self._cache.index.add_pages([extra * k for k in pool.packing])
        self.forget_attempts()

    def set_budget(self, max_scheduled_tokens: int) -> None:
        """Plan rounds with another token budget from now on."""
        self._budget = max_scheduled_tokens

    def enlarge_batch(self, max_batch_size: int) -> None:
        """Let more requests run at once from now on; ``ValueError`` for fewer than now."""
        if max_batch_size < self._batch:
            raise ValueError(
                f"max_batch_size is {max_batch_size}; at least {self._batch}, what it is, is needed"
            )
        self._roster.add_slots(self._batch + 1, max_batch_size)
        self._batch = max_batch_size

    def take_retractions(self) -> list[Retracted]:
        """The retractions since the last call, in order."""
        taken = self._retraction.retracted
        self._retraction.retracted = []
        return taken

    def request_state(self, request_id: str) -> str:
        """The engine's name of a request's state; ``Unknown`` for one that is not there."""
        request = self._roster.by_id.get(request_id)
        return request.state.title if request is not None else "Unknown"

    def check_invariants(self) -> None:
        """Raise ``AssertionError`` with the numbers if the pool does not add up."""
        from kvplan.scheduler.invariants import check

        check(self._cache, self._roster, self._batch)


def pool_state(cache: Coordinator) -> PoolState:
    """The pool as a journal tells of it: per group, pages that are free, evictable, pinned (only by
    transfers) and held by tables."""
    pool = cache.pool
    groups: dict[str, dict[str, int]] = {}
    pins = cache.pins()
    for group in cache.groups:
        refs = pool.refs[group.index]
        used = sum(1 for count in refs if count)
        pinned = sum(1 for page, count in pins[group.index].items() if refs[page] == count)
        groups[group.id] = {
            "free": pool.free_pages(group.index),
            "evictable": cache.evictable_pages(group.index),
            "pinned": pinned,
            "held": used - pinned,
        }
    free = len(pool.empties)
    return PoolState(free, pool.idle - free, pool.num_parents - pool.idle, groups)


def _cannot(request: Request, event: Any, more: str = "") -> RuntimeError:
    return RuntimeError(
        f"request {request.id!r}: {type(event).__name__} cannot happen in state {request.state.title}{more}"
    )
