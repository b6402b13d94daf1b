"""What a round accumulates: the batch under construction, its budget, and who could not be admitted."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from kvplan.scheduler.cache.tiers import LoadOp, StoreOp
from kvplan.scheduler.request import Request


class Outcome(Enum):
    """What became of an attempt to schedule a request."""

    SCHEDULED = auto()  # and, for a prefill, complete
    INCOMPLETE = auto()  # a chunk of a prefill that goes on
    NO_CAPACITY = auto()  # not now: the pages it needs cannot be had
    NO_TOKENS = auto()  # the budget left does not make a chunk
    NO_SLOT = auto()  # no free request slot

    @property
    def scheduled(self) -> bool:
        """Whether the request is in the round."""
        return self in (Outcome.SCHEDULED, Outcome.INCOMPLETE)


@dataclass(slots=True)
class PrefillOp:
    """A prefill in the batch: the inputs are ``[begin − replay, begin + size)``."""

    request: Request
    begin: int
    size: int
    replay: int


@dataclass(slots=True)
class PlanBuild:
    """One round on its way. ``budget`` is in tokens, ``room`` in operations."""

    budget: int
    room: int
    prefills: list[PrefillOp] = field(default_factory=list)
    decodes: list[Request] = field(default_factory=list)
    first_decodes: set[int] = field(default_factory=set)  # places in submission order of first steps
    remote_prefill: list[PrefillOp] = field(default_factory=list)
    remote_decode: list[Request] = field(default_factory=list)
    stores: list[StoreOp] = field(default_factory=list)
    loads: list[LoadOp] = field(default_factory=list)
    zero: dict[int, list[int]] = field(default_factory=dict)  # by group index
    blocker: Request | None = None

    @property
    def full(self) -> bool:
        """Whether no operation may join any more (§10)."""
        return self.budget <= 0 or self.room <= 0

    @property
    def why_full(self) -> str:
        """What a full round is out of."""
        return "the budget is spent" if self.budget <= 0 else "the batch is full"

    def push_prefill(self, op: PrefillOp) -> None:
        """Add a prefill to the batch; its inputs, replayed rows included, cost budget."""
        self.prefills.append(op)
        self.budget -= op.size + op.replay
        self.room -= 1

    def push_decode(self, request: Request, cost: int) -> None:
        """Add a decode step to the batch, at ``cost`` tokens of budget."""
        self.decodes.append(request)
        self.budget -= cost
        self.room -= 1

    def blocked(self, request: Request) -> None:
        """Note an admission that failed for capacity; the first one is the round's blocker."""
        if self.blocker is None:
            self.blocker = request

    def add_zero(self, fresh: list[tuple[int, list[int]]]) -> None:
        """List fresh pages for zeroing."""
        for group, pages in fresh:
            self.zero.setdefault(group, []).extend(pages)
