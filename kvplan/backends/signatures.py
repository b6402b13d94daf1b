"""What a row of a request must hold: a function of its token prefix and its group, and of nothing else.

So a page that two requests share verifies for both, and no two different prefixes ever agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from struct import pack

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int64]

FRESH = 0  # a page that was zeroed
POISON = -0x5EED5EED5EED5EEC  # memory that nobody has zeroed or written; even, as no signature is

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter bits (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _seed(text: str) -> np.uint64:
    return np.uint64(int.from_bytes(sha256(text.encode()).digest()[:8], "little"))


class History:
    """A request's whole sequence, prompt and every token it will ever generate, as signatures."""

    def __init__(self, request_id: str, tokens: Sequence[int]) -> None:
        self.request_id = request_id
        self.tokens = np.asarray(tokens, np.int64)
        positions = np.arange(1, len(self.tokens) + 1, dtype=np.uint64)
        # A running sum over (token, position) pairs is a hash of the prefix that one pass makes for all of it.
        self._prefix = np.cumsum(_mix(self.tokens.astype(np.uint64) * _GOLDEN + _mix(positions)))
        self._by_group: dict[str, Words] = {}
        self.draft = int(_mix(np.array([_seed(f"draft {request_id}")]))[:1].view(np.int64)[0] | 1)
        """What a row holds that was computed from a candidate, which may not stand."""
        self.length = 0
        """Tokens that the device knows of, sampled ones included."""
        self.steps = 0
        """Decode steps carried out."""

    def rows(self, group_id: str) -> Words:
        """What the row of each position holds in a group; in a state group, the state behind that position."""
        known = self._by_group.get(group_id)
        if known is None:
            mixed = _mix(self._prefix ^ _seed(f"group {group_id}")) | _ONE
            known = self._by_group[group_id] = mixed.view(np.int64)
        return known


def prefix_digests(tokens: Sequence[int], page: int) -> list[str]:
    """The hex digest of every whole prefix page of ``page`` tokens (engine.md §6)."""
    words = np.asarray(tokens, "<u4").tobytes()
    digests: list[str] = []
    prior = b""
    for start in range(0, len(words) - 4 * page + 1, 4 * page):
        data = pack("<I", len(prior)) + prior + pack("<I", page) + words[start : start + 4 * page]
        prior = sha256(data).digest()
        digests.append(prior.hex())
    return digests
