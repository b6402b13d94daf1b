"""What the planners say of their decisions while they make them; nothing is recorded unless one is given.

A journal is for reading: nothing in it takes part in a decision. Tokens and pages are plain numbers, groups
and requests are named by their ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class MatchStep:
    """One group's match under the bound so far (§6), in prefix pages unless named otherwise."""

    tier: str
    group_id: str
    bound: int
    extent_slots: int  # group pages
    boundary: int
    missing_key: str | None  # the first page that is not there, of a prefix-closed group


@dataclass(slots=True)
class Hit:
    """What a first chunk found cached, in tokens."""

    limit: int
    limit_rule: str
    device: int
    host: int
    closed: int
    promotion: int
    steps: list[MatchStep] = field(default_factory=list)


@dataclass(slots=True)
class ChunkCut:
    """How a chunk was cut: ``rule`` is the one that decided its end."""

    first: int
    tokens: int
    rest: int
    budget: int
    rule: str


@dataclass(slots=True)
class GroupAsk:
    """What one group was asked for, in pages, and what it had.

    ``needed`` are the pages of ``growth_tokens`` + ``reserve_tokens`` − ``room_tokens`` (in pages it holds), and
    ``host_loads``. Of a group that starts behind its predecessors' pages, growth counts from its first page on.
    ``free``: slots in its blocks, and those of the empty blocks, which any group may open. ``evictable``: cached
    and held by nobody, but for what this admission hits. ``own_expired``: the request's own, past retention.
    ``own_hits``: cached and held by nobody, but exempt from eviction, since this admission hits them.
    """

    group_id: str
    needed: int
    growth_tokens: int
    room_tokens: int
    reserve_tokens: int
    reserve_rule: str
    host_loads: int
    pages_per_block: int
    free: int
    evictable: int
    own_expired: int
    own_hits: int


@dataclass(slots=True)
class Evicted:
    """A page given up for an admission, with the numbers of its rank (§7.4)."""

    group_id: str
    page: int
    tier: str
    epoch: int
    position: int


@dataclass(slots=True)
class Attempt:
    """One request's turn in a phase."""

    phase: str
    request_id: str
    state: str
    kind: str  # first chunk, remote prefill, later chunk, decode step, decode step in place
    outcome: str = ""
    hit: Hit | None = None
    cut: ChunkCut | None = None
    groups: list[GroupAsk] = field(default_factory=list)
    # With all given up that may be evicted for it: LCM blocks that it needs beyond the free slots of blocks in
    # use, and those that are empty. It fits if the former are no more than the latter.
    blocks_short: int = 0
    blocks_reachable: int = 0
    evicted: list[Evicted] = field(default_factory=list)
    spared: int = 0
    retries: int = 0  # first chunks started over because the host had no page


@dataclass(slots=True)
class Held:
    """Requests that a phase did not try, and why."""

    phase: str
    request_ids: list[str]
    reason: str
    by: str | None


@dataclass(slots=True)
class Candidate:
    """A possible victim of a retraction, with what decides (§10, *Victim*)."""

    request_id: str
    state: str
    exempt: bool
    secured: int  # generated tokens that its admission paid for
    open: int  # generated tokens that were open then; 0 for an undeclared budget
    tokens: int
    releasable_blocks: int | None  # of decodes; prefills are ranked by tokens alone


@dataclass(slots=True)
class RetractionStep:
    """One turn of the loop that retracts and grants."""

    grant: str | None
    candidates: list[Candidate]
    victim: str | None
    outcome: str


@dataclass(slots=True)
class PoolState:
    """The pool at one moment: LCM blocks, and pages by group."""

    free: int
    cached: int
    held: int
    groups: dict[str, dict[str, int]]


@dataclass(slots=True)
class RoundJournal:
    """One round, in the order in which its phases ran."""

    role: str
    mixed: bool
    budget: int
    batch: int
    before: PoolState
    after: PoolState | None = None
    budget_left: int = 0
    scheduled: int = 0
    blocker: str | None = None
    entries: list[Attempt | Held | RetractionStep] = field(default_factory=list)


class Journal:
    """Collects one round at a time; ``round`` is the newest."""

    __slots__ = ("phase", "round")

    def __init__(self) -> None:
        self.round: RoundJournal | None = None
        self.phase = ""

    def begin(self, entry: RoundJournal) -> None:
        """Start a round."""
        self.round = entry
        self.phase = ""

    def attempt(self, request_id: str, state: str, kind: str) -> Attempt:
        """Start the account of an attempt; its outcome is noted when it is known."""
        entry = Attempt(self.phase, request_id, state, kind)
        if self.round is not None:
            self.round.entries.append(entry)
        return entry

    def hold(self, request_ids: Iterable[str], reason: str, by: str | None = None) -> None:
        """Note requests that the phase leaves untried."""
        ids = list(request_ids)
        if ids and self.round is not None:
            self.round.entries.append(Held(self.phase, ids, reason, by))

    def retraction(self, step: RetractionStep) -> None:
        """Note a turn of the retraction."""
        if self.round is not None:
            self.round.entries.append(step)
