"""Why a request cannot go on now: what its next admission needs against what there is."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.scheduler.cache.admission import could_fit
from kvplan.scheduler.request import Request, State
from kvplan.scheduler.rounds.admissions import Admissions


@dataclass(frozen=True, slots=True)
class GroupShortage:
    """One group's part of an admission, in pages: needed, free at once, and cached with nobody holding them.

    What the admission itself hits is no part of ``evictable``.
    """

    group_id: str
    needed: int
    free: int
    evictable: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A request's next admission as it would go now; ``fits`` tells whether the pages could be had."""

    request_id: str
    state: str
    tokens: int  # of its next chunk or decode step
    fits: bool
    groups: tuple[GroupShortage, ...]
    empty_blocks: int
    idle_blocks: int
    exempt: bool

    def __str__(self) -> str:
        if not self.groups:
            return f"{self.state}: waits for an answer from outside the scheduler"
        needs = ", ".join(
            f"{group.needed:,} page{'s' * (group.needed != 1)} of {group.group_id} "
            f"({group.free:,} free + {group.evictable:,} evictable)"
            for group in self.groups
            if group.needed
        )
        if self.fits:
            return f"{self.state}: its next {self.tokens:,} tokens fit, it waits for its turn"
        exempt = "; it is exempt from retraction" if self.exempt else ""
        return f"{self.state}: not now, its next {self.tokens:,} tokens need {needs}{exempt}"


def diagnose(admissions: Admissions, request: Request, budget: int) -> Diagnosis:
    """What a request's next admission would need with the whole ``budget``; nothing changes."""
    cache = admissions.cache
    asked = admissions.ask(request, budget)
    shortages: list[GroupShortage] = []
    fits = True
    if asked is not None:
        own = [(rank[-2], rank[-1]) for rank in asked.own]
        fits = could_fit(cache.pool, asked.needs, asked.hits, own)
        for group, need in zip(cache.groups, asked.needs, strict=True):
            evictable = cache.evictable_pages(group.index) - cache.loose_hits(group.index, asked.hits)
            shortages.append(GroupShortage(group.id, need, cache.pool.free_pages(group.index), evictable))
    return Diagnosis(
        request.id,
        request.state.title,
        asked.tokens if asked is not None else 0,
        fits,
        tuple(shortages),
        len(cache.pool.empties),
        cache.pool.idle,
        request.exempt and request.state >= State.PREFILLING,
    )
