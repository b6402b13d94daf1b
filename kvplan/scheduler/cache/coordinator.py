"""The cache of one engine: probe, admit, publish, reclaim, free, over all groups at once (engine.md §5–7, §11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvplan.scheduler.cache.admission import PageRef, plan_victims
from kvplan.scheduler.cache.blocks import BlockPool, Table
from kvplan.scheduler.cache.eviction import Rank
from kvplan.scheduler.cache.groups import Group, cache_groups
from kvplan.scheduler.cache.matching import Step, common_boundary
from kvplan.scheduler.cache.prefix import BoundaryKind, PrefixIndex, page_keys, split_key
from kvplan.scheduler.cache.tiers import HostHits, HostTier, LoadPair, PageKey
from kvplan.scheduler.config import GroupKind, SchedulerConfig
from kvplan.scheduler.demands import Demand

MatchSteps = tuple[list[Step], list[Step]]

UNCACHED = (0, 0, 0, 0)


class PageKeys:
    """A sequence's prefix-page digests and the page keys made of them, by pages per prefix page."""

    __slots__ = ("_by_width", "digests")

    def __init__(self) -> None:
        self.digests: list[bytes] = []
        self._by_width: dict[int, list[bytes]] = {}

    def of(self, pages_per_prefix: int) -> list[bytes]:
        """The keys of a group with that many pages in a prefix page, for all digests there are."""
        if pages_per_prefix == 1:
            return self.digests
        keys = self._by_width.setdefault(pages_per_prefix, [])
        done = len(keys) // pages_per_prefix
        if done < len(self.digests):
            keys += page_keys(self.digests, pages_per_prefix, done)
        return keys


@dataclass(slots=True)
class Probe:
    """What a first chunk would hit. Boundaries are in prefix pages, begins in slots by group index."""

    device: int
    device_begins: list[int]
    host: int
    closed: int  # what the prefix-closed groups alone could serve, on the better tier
    host_matched: int = 0  # what the first probe found on the host, for the fit check (§11)

    @property
    def hit(self) -> int:
        """The longer of the two boundaries, in prefix pages."""
        return max(self.device, self.host)

    @property
    def promotion(self) -> int:
        """The boundary, in prefix pages, that the other groups are to be brought up to; 0 for none (§6)."""
        return self.closed if self.closed > self.hit else 0


@dataclass(slots=True)
class Progress:
    """What a request computed since its previous admission, published and reclaimed with the next one."""

    first: int  # prefix pages hashed before
    total: int  # prefix pages hashed now
    kind: BoundaryKind
    state_kind: BoundaryKind
    computed: int  # tokens
    from_prefill: bool
    checkpoints: Sequence[int]


class DeviceRank:
    """The eviction rank of a device entry (§7.4): class, epoch, tier, position, group, page."""

    __slots__ = ("_closed",)

    def __init__(self, closed: Sequence[bool]) -> None:
        self._closed = closed

    def __call__(self, index: PrefixIndex, group: int, page: int) -> Rank:
        epoch = index.epoch[group][page]
        slot = index.slot[group][page]
        if self._closed[group]:
            return (2, epoch, 3, -slot if slot > 0 else 0, group, page)
        if slot >= 0 and not index.acquired[group][page] and not index.kind[group][page]:
            return (1, epoch, 1, slot, group, page)
        return (2, epoch, 2, 0, group, page)


class Coordinator:
    """Pool, index and tiers behind one set of calls that speak of requests' tables, not of pages."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.groups: tuple[Group, ...] = cache_groups(config)
        self.prefix = config.prefix_granularity
        self.replay_window = config.replay_window
        self.pool = BlockPool(
            config.num_device_pages - 1,
            [group.packing for group in self.groups],
            [group.shards for group in self.groups],
        )
        self.index = PrefixIndex(self.pool, DeviceRank([group.closed for group in self.groups]))
        self.host: HostTier | None = (
            HostTier(self.groups, config.num_host_pages - 1, config.enable_l3_storage)
            if config.has_host_cache
            else None
        )
        self.epoch = 0
        self._matched = [group for group in self.groups if not group.replayable]
        self._closed = [group for group in self._matched if group.closed]
        self._others = [group for group in self._matched if not group.closed]
        self._stateless = [group for group in self._others if group.kind != GroupKind.STATE]
        self._streams = False

    def stream_publications(self) -> None:
        """From now on queue what is published for the host (§11: roles P and Fused with a host cache)."""
        self._streams = self.host is not None

    def new_epoch(self) -> int:
        """The next value of the global access epoch, from 1."""
        self.epoch += 1
        return self.epoch

    def _new_epochs(self) -> Iterator[int]:
        while True:
            yield self.new_epoch()

    # --- asking -------------------------------------------------------------------------------------

    def probe(
        self,
        keys: PageKeys,
        limit: int,
        device_only: bool = False,
        states: bool = True,
        steps: MatchSteps | None = None,
    ) -> Probe:
        """What of the first ``limit`` prefix pages is there, on the device and then on the host (§6).

        ``steps``: two lists that take each group's matches on the device and on the host.
        """
        by_group = [keys.of(group.pages_per_prefix) for group in self.groups]
        others = self._others if states else self._stateless
        device, closed = common_boundary(
            self._closed, others, by_group, self.index.pages, 0, limit, steps and steps[0]
        )
        begins = [self._begin(group, 0, device) for group in self.groups]
        if not states:
            for group in self._others:
                if group.kind == GroupKind.STATE:
                    begins[group.index] = device * group.pages_per_prefix
        host = 0
        if self.host is not None and not device_only:
            host, host_closed = common_boundary(
                self._closed, others, by_group, self.host.presence, device, limit, steps and steps[1]
            )
            closed = max(closed, host_closed)
            if host <= device:
                host = 0
        return Probe(device, begins, host, closed, host)

    def _begin(self, group: Group, floor: int, boundary: int) -> int:
        """The first slot below a boundary that a hit there has a page in (nulls are before it)."""
        m = group.pages_per_prefix
        if group.replayable:
            return boundary * m
        if group.closed:
            return floor * m
        return max(floor * m, boundary * m - group.lookback)

    def needs(self, tables: Sequence[Table], demands: Sequence[Demand], probe: Probe | None) -> list[int]:
        """Pages that each group has to find: growth and host hits to load (§7.2)."""
        needs = []
        for group, table, demand in zip(self.groups, tables, demands, strict=True):
            need = demand.pages(group.granularity, table.available)
            if probe is not None and probe.host_matched > probe.device:
                need += self.host_pages(group, probe.device, probe.host_matched)
            needs.append(need)
        return needs

    def device_pages(self, group: Group, probe: Probe) -> int:
        """Pages of a group that the device part of a hit takes over."""
        return probe.device * group.pages_per_prefix - probe.device_begins[group.index]

    def host_pages(self, group: Group, floor: int, boundary: int) -> int:
        """Pages of a group that a host hit from ``floor`` to ``boundary`` (prefix pages) loads."""
        return boundary * group.pages_per_prefix - self._begin(group, floor, boundary)

    def loose_hits(self, group: int, hits: Sequence[PageRef]) -> int:
        """How many hits of a group nobody holds: they are not to be evicted for this admission."""
        refs = self.pool.refs[group]
        return sum(1 for index, page in hits if index == group and not refs[page])

    def device_hits(self, keys: PageKeys, probe: Probe) -> list[PageRef]:
        """The pages of the device part of a hit, groups in order."""
        hits: list[PageRef] = []
        for group in self._matched:
            pages = self.index.pages[group.index]
            m = group.pages_per_prefix
            by_slot = keys.of(m)
            for slot in range(probe.device_begins[group.index], probe.device * m):
                hits.append((group.index, pages[by_slot[slot]]))
        return hits

    def expired_slots(self, group: Group, table: Table, computed: int) -> int:
        """How many leading slots retention no longer keeps with ``computed`` tokens (§5)."""
        if group.closed:
            return 0
        return min(max(0, computed - group.window + 1) // group.granularity, len(table.pages))

    def own_expired(self, tables: Sequence[Table], computed: int) -> list[Rank]:
        """Ranks of expired, unreclaimed pages that only this request (and the index) holds (§7.3)."""
        ranks: list[Rank] = []
        for group, table in zip(self.groups, tables, strict=True):
            if group.closed:
                continue
            refs, cached = self.pool.refs[group.index], self.pool.cached[group.index]
            for slot in range(table.reclaimed, self.expired_slots(group, table, computed)):
                page = table.pages[slot]
                if page and refs[page] == 1:
                    if cached[page]:
                        ranks.append(self.index.rank(group.index, page))
                    else:
                        ranks.append((*UNCACHED, group.index, page))
        return ranks

    def plan(
        self,
        needs: Sequence[int],
        hits: Sequence[PageRef],
        own: Sequence[Rank],
        considered: list[Rank] | None = None,
    ) -> list[PageRef] | None:
        """The victims with which ``needs`` fit, or ``None``; nothing changes (§7.3)."""
        return plan_victims(self.pool, self.index.queue, needs, hits, own, considered)

    def evictable_pages(self, group: int) -> int:
        """Pages of a group that are cached and that nobody holds."""
        refs = self.pool.refs[group]
        return sum(1 for page in self.index.pages[group].values() if not refs[page])

    # --- doing --------------------------------------------------------------------------------------

    def evict_free(self, victims: Sequence[PageRef]) -> list[PageRef]:
        """Evict the victims that nothing holds; those that a table still holds are returned."""
        waiting: list[PageRef] = []
        refs = self.pool.refs
        for group, page in victims:
            if refs[group][page]:
                waiting.append((group, page))
            else:
                self.index.remove(group, page)
        return waiting

    def advance(self, tables: Sequence[Table], keys: PageKeys, progress: Progress, epoch: int) -> None:
        """Publish completed pages, then reclaim expired slots, group by group (§7.6)."""
        for group, table in zip(self.groups, tables, strict=True):
            if progress.total > progress.first:
                self.publish(group, table, keys, progress, epoch)
            self.reclaim(group, table, progress.computed)

    def publish(self, group: Group, table: Table, keys: PageKeys, progress: Progress, epoch: int) -> None:
        """Publish a group's completed prefix pages (§7, *Publishing*)."""
        if group.replayable:
            return
        m = group.pages_per_prefix
        stream = self._streams and (progress.from_prefill or group.kind == GroupKind.SLIDING)
        by_slot = keys.of(m)
        if group.kind == GroupKind.STATE:
            if progress.state_kind == BoundaryKind.CHUNK:
                return
            for checkpoint in progress.checkpoints:
                page = checkpoint // self.prefix
                if progress.first < page <= progress.total:
                    slots = range(max(0, page * m - group.lookback), page * m)
                    self._register(group, table, by_slot, slots, progress.state_kind, epoch, stream)
            return
        first = progress.first * m
        if group.kind == GroupKind.SLIDING:
            first = max(0, progress.total * m - group.lookback)
        self._register(group, table, by_slot, range(first, progress.total * m), progress.kind, epoch, stream)

    def _register(
        self,
        group: Group,
        table: Table,
        keys: Sequence[bytes],
        slots: range,
        kind: BoundaryKind,
        epoch: int,
        stream: bool,
    ) -> None:
        index = group.index
        register = self.index.register
        for slot in slots:
            page = table.pages[slot]
            if not page:
                continue
            key = keys[slot]
            stored = stream and key not in self.index.pages[index]
            known = register(index, key, page, slot, kind, epoch)
            if known != page:
                self.pool.ref(index, known)
                table.pages = table.pages.copy()
                table.pages[slot] = known
                self.pool.unref(index, page)
            if stored:
                assert self.host is not None
                self.host.enqueue(index, key)

    def reclaim(self, group: Group, table: Table, computed: int) -> None:
        """Turn the slots that retention no longer keeps into nulls (§5)."""
        expired = self.expired_slots(group, table, computed)
        if expired <= table.reclaimed:
            return
        held = [slot for slot in range(table.reclaimed, expired) if table.pages[slot]]
        if held:
            before = table.pages
            table.pages = before.copy()
            for slot in held:
                table.pages[slot] = 0
                self.pool.unref(group.index, before[slot])
        table.reclaimed = expired

    def claim(self, tables: Sequence[Table], keys: PageKeys, probe: Probe, epoch: int) -> None:
        """Take the device part of a hit into the tables (§7.6)."""
        for group in self._matched:
            m = group.pages_per_prefix
            pages = self.index.pages[group.index]
            by_slot = keys.of(m)
            begin, end = probe.device_begins[group.index], probe.device * m
            table = tables[group.index]
            table.pages = [0] * begin
            for slot in range(begin, end):
                page = pages[by_slot[slot]]
                self.index.claim(group.index, page, epoch)
                table.pages.append(page)
            table.reclaimed = begin

    def acquire_host(self, keys: PageKeys, probe: Probe, epoch: int) -> HostHits:
        """Pin (or, from storage, find room for) the host part of a hit, shortened where room lacks (§11)."""
        host = self.host
        assert host is not None
        by_group = [keys.of(group.pages_per_prefix) for group in self.groups]
        floor, bound = probe.device, probe.host
        others = self._others
        while True:
            bound, _ = common_boundary(self._closed, others, by_group, host.presence, floor, bound)
            hits = HostHits(bound, [self._begin(group, floor, bound) for group in self.groups])
            shortest: int | None = None
            for group in self.groups:
                pages: list[int] = []
                fresh: list[bool] = []
                hits.pages.append(pages)
                hits.fresh.append(fresh)
                if group.replayable:
                    continue
                m = group.pages_per_prefix
                for slot in range(hits.begins[group.index], bound * m):
                    page = host.index.pages[group.index].get(by_group[group.index][slot], 0)
                    if page:
                        host.index.claim(group.index, page, epoch)
                        fresh.append(False)
                    else:
                        page = host.place([group.index])[0]
                        if not page:
                            at = slot // m
                            shortest = at if shortest is None else min(shortest, at)
                            break
                        fresh.append(True)
                    pages.append(page)
            if shortest is None:
                return hits
            for group in self.groups:
                for page in hits.pages[group.index]:
                    host.pool.unref(group.index, page)
            bound = max(floor, shortest if shortest < bound else bound - 1)

    def load(
        self, tables: Sequence[Table], keys: PageKeys, probe: Probe, hits: HostHits, grow: Grow
    ) -> list[LoadPair]:
        """Append the host hits to the tables as fresh pages, and grow, group by group (§7.6)."""
        assert self.host is not None
        pairs: list[LoadPair] = []
        for group, table, demand in zip(self.groups, tables, grow.demands, strict=True):
            if not group.replayable:
                m = group.pages_per_prefix
                begin = hits.begins[group.index]
                sources = hits.pages[group.index]
                fresh = self._take(group, table, len(sources))
                nulls = begin - len(table.pages)
                if hits.boundary > probe.device and nulls > 0:
                    table.pages.extend([0] * nulls)
                table.pages.extend(fresh)
                by_slot = keys.of(m)
                for at, (source, destination) in enumerate(zip(sources, fresh, strict=True)):
                    self.pool.ref(group.index, destination)
                    key = by_slot[begin + at]
                    pairs.append(LoadPair(group.index, key, source, destination, hits.fresh[group.index][at]))
            grow.group(self, group, table, demand)
        return pairs

    def publish_loaded(
        self, tables: Sequence[Table], keys: PageKeys, probe: Probe, hits: HostHits, epoch: int
    ) -> None:
        """Publish the host extension on the device, except pages that storage still has to fill (§7, §11)."""
        for page in range(probe.device, hits.boundary):
            spans: list[tuple[Group, range]] = []
            waits = False
            for group in self._matched:
                m = group.pages_per_prefix
                begin = hits.begins[group.index]
                slots = range(max(page * m, begin), (page + 1) * m)
                spans.append((group, slots))
                waits = waits or any(hits.fresh[group.index][slot - begin] for slot in slots)
            if waits:
                continue
            for group, slots in spans:
                stream = self._streams and group.kind == GroupKind.SLIDING
                table = tables[group.index]
                self._register(
                    group, table, keys.of(group.pages_per_prefix), slots, BoundaryKind.CHUNK, epoch, stream
                )

    def _take(self, group: Group, table: Table, count: int) -> list[int]:
        loads = None
        if group.shards > 1:
            loads = [0] * group.shards
            for page in table.pages:
                if page:
                    loads[(page - 1) % group.packing % group.shards] += 1
        return self.pool.take(group.index, count, loads)

    def grow(self, group: Group, table: Table, demand: Demand) -> list[int]:
        """Append a demand's pages to a table; the fresh pages (§5)."""
        fresh = self._take(group, table, demand.pages(group.granularity, table.available))
        if demand.first < 0:
            table.pages.extend(fresh)
            table.available += len(fresh) * group.granularity - demand.tokens
        else:
            if not table.pages:
                table.reclaimed = demand.first
            table.pages.extend([0] * (demand.first - len(table.pages)))
            table.pages.extend(fresh)
            table.available = len(table.pages) * group.granularity - demand.tokens
        return fresh

    def free(self, tables: Sequence[Table]) -> None:
        """Let go of a request's pages: groups in order, slots from the last to the first (§5)."""
        unref = self.pool.unref
        for group, table in zip(self.groups, tables, strict=True):
            index = group.index
            for page in reversed(table.pages):
                if page:
                    unref(index, page)
            table.pages = []

    def enqueue_prefix(self, keys: PageKeys, pages: int, state_pages: int) -> None:
        """Queue every device-cached key of the first ``pages`` prefix pages for the host; of state groups
        only the latest checkpoint at or below ``state_pages`` (§11)."""
        assert self.host is not None
        for group in self._matched:
            m = group.pages_per_prefix
            by_slot = keys.of(m)
            present = self.index.pages[group.index]
            if group.kind == GroupKind.STATE:
                for page in range(min(state_pages, len(keys.digests)), 0, -1):
                    key = by_slot[page * m - 1]
                    if key in present:
                        self.host.enqueue(group.index, key)
                        break
                continue
            for slot in range(min(pages, len(keys.digests)) * m):
                key = by_slot[slot]
                if key in present:
                    self.host.enqueue(group.index, key)

    def finish_store(self, op_id: int) -> None:
        """A store's ack (§11, *Op ids*)."""
        assert self.host is not None
        self.host.finish_store(op_id, self.pool, self._new_epochs())

    def finish_load(self, op_id: int, success: bool) -> None:
        """A load-back's end (§11): what storage filled is published, the pins go."""
        host = self.host
        assert host is not None
        op = host.loads.pop(op_id)
        for pair in op.pairs:
            if success and host.known is not None:
                if pair.from_storage:
                    host.publish(pair.group, pair.key, pair.source, self.new_epoch())
                self.index.register(
                    pair.group, pair.key, pair.destination, -1, BoundaryKind.CHUNK, self.new_epoch()
                )
            host.drop(pair, self.pool)

    def releasable_parents(self, tables: Sequence[Table]) -> int:
        """Parents that would hold nothing but cache, or nothing, without this request (§10, *Victim*)."""
        counts: dict[int, int] = {}
        for group, table in zip(self.groups, tables, strict=True):
            refs = self.pool.refs[group.index]
            k = group.packing
            for page in table.pages:
                if page and refs[page] == 1:
                    parent = (page - 1) // k + 1
                    counts[parent] = counts.get(parent, 0) + 1
        occupied = self.pool.occupied
        return sum(1 for parent, count in counts.items() if count == occupied[parent])

    def pins(self) -> list[Counter[int]]:
        """Per group, how often transfers in flight hold each device page."""
        pins: list[Counter[int]] = [Counter() for _ in self.groups]
        if self.host is not None:
            for store in self.host.stores.values():
                if store.pinned:
                    for pair in store.pairs:
                        pins[pair.group][pair.source] += 1
            for load in self.host.loads.values():
                for loaded in load.pairs:
                    pins[loaded.group][loaded.destination] += 1
        return pins

    def loading_digests(self) -> set[bytes]:
        """The prefix pages of which a load-back in flight brings a page."""
        if self.host is None:
            return set()
        return {split_key(pair.key)[0] for load in self.host.loads.values() for pair in load.pairs}

    def held_parents(self, tables: Sequence[Table], seen: set[int]) -> None:
        """Add the parents that a request's tables refer to."""
        for group, table in zip(self.groups, tables, strict=True):
            k = group.packing
            seen.update((page - 1) // k + 1 for page in table.pages if page)

    def clear_device(self) -> None:
        """Drop every device entry, groups in order, entries in the order they came (``api.md``)."""
        for group, pages in enumerate(self.index.pages):
            for page in list(pages.values()):
                self.index.remove(group, page)
        if self.host is not None:
            self.host.queue.clear()
            if self.host.known is not None:
                self.host.known.clear()

    def clear_host(self) -> None:
        """Drop every host entry."""
        if self.host is not None:
            for group, pages in enumerate(self.host.index.pages):
                for page in list(pages.values()):
                    self.host.index.remove(group, page)

    def page_key(self, group: int, digest: bytes, offset: int) -> PageKey:
        """The key of one page of a prefix page."""
        if self.groups[group].pages_per_prefix == 1:
            return group, digest
        return group, digest + offset.to_bytes(4, "little")


class Grow:
    """Grows each group of an admission and lists the fresh pages that the engine has to zero."""

    __slots__ = ("demands", "zero")

    def __init__(self, demands: Sequence[Demand]) -> None:
        self.demands = demands
        self.zero: list[tuple[int, list[int]]] = []

    def group(self, cache: Coordinator, group: Group, table: Table, demand: Demand) -> None:
        """Grow one group's table."""
        fresh = cache.grow(group, table, demand)
        if fresh:
            self.zero.append((group.index, fresh))
