"""Fills a journal's account of one attempt while the attempt is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvplan.scheduler.cache.admission import PageRef, all_given_up, blocks_short
from kvplan.scheduler.cache.blocks import Table
from kvplan.scheduler.cache.coordinator import MatchSteps, Probe
from kvplan.scheduler.cache.eviction import Rank
from kvplan.scheduler.cache.matching import Step
from kvplan.scheduler.demands import Demand, Reserve
from kvplan.scheduler.journal import Attempt, ChunkCut, Evicted, GroupAsk, Hit, MatchStep
from kvplan.scheduler.request import Request
from kvplan.scheduler.rounds.build import Outcome

if TYPE_CHECKING:
    from kvplan.scheduler.rounds.admissions import Admissions

TIERS = ("uncached", "probationary", "established", "closed")  # by the rank's tier (§7.4)


class Account:
    """One attempt's entry in the journal, and where its figures come from."""

    __slots__ = ("_admissions", "_request", "entry")

    def __init__(self, admissions: Admissions, request: Request, entry: Attempt) -> None:
        self._admissions = admissions
        self._request = request
        self.entry = entry

    @staticmethod
    def of(admissions: Admissions, request: Request, kind: str) -> Account | None:
        """A new account, or ``None`` without a journal."""
        journal = admissions.journal
        if journal is None:
            return None
        return Account(admissions, request, journal.attempt(request.id, request.state.title, kind))

    def ends(self, outcome: Outcome) -> Outcome:
        """Note the outcome; it is returned."""
        self.entry.outcome = outcome.name.lower()
        return outcome

    def hit(self, probe: Probe, steps: MatchSteps | None) -> None:
        """Note what was found cached and how each group matched."""
        page = self._admissions.page
        limit, rule = self._admissions.match_limit(self._request)
        self.entry.hit = Hit(
            limit * page,
            rule,
            probe.device * page,
            max(probe.host, probe.device) * page,
            probe.closed * page,
            probe.promotion * page,
        )
        for tier, matches in zip(("device", "host"), steps or (), strict=False):
            self.entry.hit.steps += [self._step(tier, match) for match in matches]

    def _step(self, tier: str, match: Step) -> MatchStep:
        group, bound, extent = match
        m = group.pages_per_prefix
        missing = None
        if group.closed and extent < bound * m:
            missing = self._request.keys.of(m)[extent].hex()
        return MatchStep(tier, group.id, bound, extent, extent // m, missing)

    def cut(self, first: int, tokens: int, rest: int, budget: int, rule: str) -> None:
        """Note how the chunk was cut."""
        self.entry.cut = ChunkCut(first, tokens, rest, budget, str(rule))

    def asks(
        self,
        tables: Sequence[Table],
        demands: Sequence[Demand],
        reserve: Reserve,
        needs: Sequence[int],
        hits: Sequence[PageRef],
        own: Sequence[Rank],
        probe: Probe | None,
    ) -> None:
        """Note what each group is asked for, and what there is."""
        cache = self._admissions.cache
        self.entry.groups = []
        for group, table, demand, need in zip(cache.groups, tables, demands, needs, strict=True):
            loads = 0
            if probe is not None and probe.host_matched > probe.device:
                loads = cache.host_pages(group, probe.device, probe.host_matched)
            own_hits = cache.loose_hits(group.index, hits)
            self.entry.groups.append(
                GroupAsk(
                    group.id,
                    need,
                    demand.tokens - max(demand.first, 0) * group.granularity,
                    table.available,
                    demand.reserve,
                    reserve.rule(group)[1] if demand.reserve else "",
                    loads,
                    group.packing,
                    cache.pool.free_pages(group.index),
                    cache.evictable_pages(group.index) - own_hits,
                    sum(1 for rank in own if rank[-2] == group.index),
                    own_hits,
                )
            )
        slots, empty = all_given_up(cache.pool, hits, [(rank[-2], rank[-1]) for rank in own])
        self.entry.blocks_short = blocks_short(needs, slots, cache.pool.packing)
        self.entry.blocks_reachable = empty

    def evicts(self, victims: Sequence[PageRef] | None, considered: Sequence[Rank] | None) -> None:
        """Note the pages given up, with the ranks that decided, and how many were spared."""
        if not victims or considered is None:
            return
        kept = set(victims)
        groups = self._admissions.cache.groups
        self.entry.evicted = [
            Evicted(groups[rank[-2]].id, rank[-1], TIERS[rank[2]], rank[1], rank[3])
            for rank in considered
            if (rank[-2], rank[-1]) in kept
        ]
        self.entry.spared = len(considered) - len(kept)
