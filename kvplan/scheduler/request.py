"""A request: its tokens, its states, and what moves it from one to the next (engine.md §9)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvplan.scheduler.cache.blocks import Table
from kvplan.scheduler.cache.coordinator import PageKeys
from kvplan.scheduler.cache.prefix import extend_digests
from kvplan.scheduler.demands import coverage, covers_generation, headroom_tokens

if TYPE_CHECKING:
    from kvplan.scheduler.rounds.backlog import Floor

UNBOUNDED = 2**31 - 1


class State(IntEnum):
    """Where a request is. Those from ``PREFILLING`` to ``DECODING`` hold pages."""

    BOOTSTRAPPING = 0
    SUBMITTED = 1
    RETRACTED = 2
    PREFILLING = 3
    REMOTE_PREFILLING = 4
    PREFILL_AWAITING_RESULT = 5
    PREFILL_DONE = 6
    DECODING = 7
    FINISHED = 8

    @property
    def title(self) -> str:
        """The engine's name of the state, such as ``PrefillDone``."""
        return self.name.title().replace("_", "")

    @property
    def holds_pages(self) -> bool:
        """Whether a request in it holds pages."""
        return State.PREFILLING <= self <= State.DECODING


def as_tokens(tokens: Any, owner: str) -> NDArray[np.int32]:
    """Token ids as a one-dimensional int32 array; one that already is such is taken as it is.

    Raises ``ValueError`` naming ``owner`` for anything else.
    """
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.int32 and tokens.ndim == 1:
        return tokens if tokens.flags.c_contiguous else np.ascontiguousarray(tokens)
    try:
        values = np.asarray(list(tokens) if not isinstance(tokens, np.ndarray) else tokens)
        if values.size == 0:
            return np.empty(0, np.int32)
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise ValueError
        if values.min() < -(2**31) or values.max() > UNBOUNDED:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{owner}tokens must be a sequence of integers that fit in 32 bits") from None
    return values.astype(np.int32)


@dataclass
class RequestSpec:
    """A request as it is submitted. ``max_new_tokens`` 0 means undeclared; lengths are in tokens."""

    request_id: str = ""
    tokens: Sequence[int] | NDArray[np.int32] = field(default_factory=list)
    max_new_tokens: int = 0
    max_cached_prefix_tokens: int = UNBOUNDED


class TokenStore:
    """A sequence that only grows: the prompt, which is not copied, and what was generated."""

    __slots__ = ("extra", "prompt", "prompt_size")

    def __init__(self, prompt: NDArray[np.int32]) -> None:
        self.prompt = prompt
        self.prompt_size = len(prompt)
        self.extra: array[int] = array("i")

    def __len__(self) -> int:
        return self.prompt_size + len(self.extra)

    def to_bytes(self, begin: int, end: int) -> bytes:
        """Tokens ``begin..end`` as little-endian 32-bit words."""
        head = self.prompt[begin:end].tobytes() if begin < self.prompt_size else b""
        tail = end - self.prompt_size
        if tail <= 0:
            return head
        return head + self.extra[max(0, begin - self.prompt_size) : tail].tobytes()

    def slice(self, begin: int, end: int) -> list[int]:
        """Tokens ``begin..end`` as Python integers."""
        head: list[int] = self.prompt[begin:end].tolist() if begin < self.prompt_size else []
        tail = end - self.prompt_size
        return head if tail <= 0 else head + self.extra[max(0, begin - self.prompt_size) : tail].tolist()

    def last(self) -> int:
        """The newest token."""
        return self.extra[-1] if self.extra else int(self.prompt[-1])


class Request:
    """One request as the scheduler sees it. All lengths are in tokens unless named otherwise."""

    __slots__ = (
        "attention",
        "attention_extra",
        "begin",
        "block_hashes",
        "checkpoints",
        "end",
        "epoch",
        "exempt",
        "extra",
        "floor",
        "hashed_pages",
        "id",
        "keys",
        "landed",
        "max_cached",
        "max_new",
        "pool_slot",
        "prefill_size",
        "promotion",
        "recoverable",
        "reserve",
        "results_out",
        "retraction_epoch",
        "retractions",
        "seq",
        "slack",
        "spec_candidates",
        "state",
        "tables",
        "taken",
        "tokens",
    )

    def __init__(self, spec: RequestSpec, tokens: NDArray[np.int32], seq: int) -> None:
        self.id = spec.request_id
        self.seq = seq  # submission order
        self.tokens = TokenStore(tokens)
        self.extra = self.tokens.extra
        self.exempt = False  # from retraction: its admission covers its whole generation
        self.max_new = spec.max_new_tokens
        self.max_cached = spec.max_cached_prefix_tokens
        self.state = State.SUBMITTED
        self.prefill_size = len(tokens)
        self.begin = 0  # the prefill window that was scheduled last
        self.end = 0
        self.keys = PageKeys()
        self.block_hashes: list[int] = []  # of its prefix pages, for cache events
        self.hashed_pages = 0  # prefix pages published, or hit
        self.promotion = 0
        self.checkpoints: list[int] = []
        self.tables: list[Table] = []
        self.pool_slot = 0
        self.epoch = 0
        self.reserve = 0  # tokens that the next decode step takes
        self.results_out = 0
        self.retractions = 0
        self.retraction_epoch = 0
        self.landed = 0
        self.recoverable = False
        self.spec_candidates: list[int] = []
        # While decoding: tokens that every table still has room for, tokens taken from that room since the
        # tables were last brought up to date, and the computed tokens from which a step needs a closer look.
        self.slack = 0
        self.taken = 0
        self.attention = 0
        self.attention_extra = 0
        self.floor: Floor | None = None  # what its first chunk needs at the least, while it waits

    @property
    def submitted_size(self) -> int:
        """The prompt as it was submitted."""
        return self.tokens.prompt_size

    @property
    def generated(self) -> int:
        """Output tokens so far."""
        return len(self.tokens.extra)

    @property
    def resumes_generation(self) -> bool:
        """Whether a client is already reading its output."""
        return len(self.tokens.extra) > 0

    @property
    def computed(self) -> int:
        """Tokens whose KV is computed: the window's end, or all tokens but the last while decoding (§9)."""
        if self.state == State.DECODING:
            return len(self.tokens) - 1
        return self.end

    @property
    def remaining(self) -> int:
        """Declared tokens still to be generated; 0 if none were declared."""
        return max(0, self.max_new - self.generated) if self.max_new else 0

    @property
    def headroom(self) -> int:
        """Generated tokens that its next first admission secures (design note §4)."""
        return headroom_tokens(self.remaining, self.retractions)

    @property
    def covered(self) -> bool:
        """Whether it is exempt from retraction (§9)."""
        return covers_generation(self.max_new, self.retractions, self.prefill_size - self.submitted_size)

    @property
    def coverage(self) -> tuple[int, int]:
        """Generated tokens that its admission secured, and those that were open then (§9)."""
        return coverage(self.max_new, self.retractions, self.prefill_size - self.submitted_size)

    @property
    def new_prompt(self) -> bool:
        """Whether it is admitted like a new prompt: submitted, or retracted without a snapshot."""
        return self.state == State.SUBMITTED or (self.state == State.RETRACTED and not self.recoverable)

    @property
    def readmits(self) -> bool:
        """Whether it comes back by way of its snapshot."""
        return self.state == State.RETRACTED and self.recoverable

    def hash_to(self, pages: int, page: int) -> None:
        """Make sure that the digests of the first ``pages`` prefix pages are there; each is made once."""
        if len(self.keys.digests) < pages:
            extend_digests(self.keys.digests, self.tokens.to_bytes, page, pages)

    def settle(self) -> None:
        """Bring the tables up to date with the tokens that decode steps took in place."""
        if self.taken:
            for table in self.tables:
                table.available -= self.taken
            self.taken = 0
