"""Token ids of prompts and outputs, made on demand.

A prompt is a run of *spans*: (unit, tokens). A unit is an endless stream of token ids that belongs to one
hash, one named prefix, or one request's own text; a span takes its first tokens. Spans of the same unit
therefore begin with the same ids, at any page size, and spans of different units have no id in common.

All ids come from one space, laid out in this order:

    explicit ids of the trace | shared units (hashes, named prefixes) | private text | outputs

With hashes and no explicit ids, the token at position `p` of hash number `h` (numbered by first use) is
`h * hash_tokens + p`. A trace whose space passes 2^31 - 1 keeps the ids below 2^31 as they are and maps each
id above to 31 well mixed bits: still a function of the id alone, so equal text stays equal, but two different
ids then agree by chance with probability 2^-31.
"""

import hashlib
from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

ID_LIMIT = 1 << 31
PRIVATE = -1
SPILL = 1 << 62


@dataclass(slots=True)
class TokenBuilder:
    """Collects prompts and outputs row by row; `finish` lays out the id space."""

    hash_tokens: int = 0
    names: dict[Hashable, int] = field(default_factory=dict)
    units: "array[int]" = field(default_factory=lambda: array("q"))
    lengths: "array[int]" = field(default_factory=lambda: array("q"))
    ends: "array[int]" = field(default_factory=lambda: array("q", [0]))
    ids: "array[int]" = field(default_factory=lambda: array("i"))
    id_ends: "array[int]" = field(default_factory=lambda: array("q", [0]))
    output_ids: "array[int]" = field(default_factory=lambda: array("i"))
    output_ends: "array[int]" = field(default_factory=lambda: array("q", [0]))
    output_tokens: "array[int]" = field(default_factory=lambda: array("q"))

    def add_hashes(self, hashes: Sequence[Hashable], prompt_tokens: int) -> None:
        """Add a prompt of `hash_tokens` tokens for each hash, the last one cut to `prompt_tokens` in all."""
        names = self.names
        self.units.extend([names.setdefault(name, len(names)) for name in hashes])
        self.lengths.extend([self.hash_tokens] * (len(hashes) - 1))
        self.lengths.append(prompt_tokens - self.hash_tokens * (len(hashes) - 1))
        self._end_prompt()

    def add_prefix(self, prefix: Sequence[tuple[Hashable, int]], prompt_tokens: int) -> None:
        """Add a prompt that begins with named (unit, tokens) parts; what is left is text of its own."""
        own = prompt_tokens
        for name, tokens in prefix:
            self.units.append(self.names.setdefault(name, len(self.names)))
            self.lengths.append(tokens)
            own -= tokens
        if own:
            self.units.append(PRIVATE)
            self.lengths.append(own)
        self._end_prompt()

    def add_ids(self, ids: Sequence[int]) -> None:
        """Add a prompt of the trace's own token ids."""
        self.ids.extend(ids)
        self._end_prompt()

    def add_output(self, output_tokens: int, ids: Sequence[int] | None = None) -> None:
        """Add the output of the prompt added last; `ids` are the trace's own, if it has them."""
        self.output_tokens.append(output_tokens)
        self.output_ids.extend(ids or ())
        self.output_ends.append(len(self.output_ids))

    def _end_prompt(self) -> None:
        self.ends.append(len(self.units))
        self.id_ends.append(len(self.ids))

    def finish(self) -> "TokenStore":
        """Return the store of everything added."""
        units, lengths, ends = _int64(self.units), _int64(self.lengths), _int64(self.ends)
        ids, output_ids = np.array(self.ids, np.int32), np.array(self.output_ids, np.int32)
        base = max((int(part.max()) + 1 for part in (ids, output_ids) if part.size), default=0)

        private = units == PRIVATE
        sizes = np.full(len(self.names), self.hash_tokens, np.int64)
        np.maximum.at(sizes, units[~private], lengths[~private])
        first = np.empty_like(units)
        shared_first = base + _starts(sizes)
        first[~private] = shared_first[units[~private]]
        private_first = base = base + int(sizes.sum())
        first[private] = base + _starts(lengths[private])
        base += int(lengths[private].sum())

        output_tokens = _int64(self.output_tokens)
        # What a span adds to a token's position in the prompt to give the token's id.
        before = _starts(lengths)
        opening = before[np.minimum(ends[:-1], max(len(before) - 1, 0))] if len(before) else before
        shift = first - (before - np.repeat(opening, np.diff(ends)) if len(before) else before)
        return TokenStore(
            first=first,
            lengths=lengths,
            shift=shift,
            ends=ends,
            ids=ids,
            id_ends=_int64(self.id_ends),
            output_first=base + _starts(output_tokens),
            output_tokens=output_tokens,
            output_ids=output_ids,
            output_ends=_int64(self.output_ends),
            private_first=private_first,
            top=base + int(output_tokens.sum()),
        )


@dataclass(frozen=True, slots=True, eq=False)
class TokenStore:
    """Spans and ids of every row, flat; row r owns the entries from `ends[r]` up to `ends[r + 1]`.

    Ids from `private_first` to `top` belong to one request each.
    """

    first: NDArray[np.int64]
    lengths: NDArray[np.int64]
    shift: NDArray[np.int64]
    ends: NDArray[np.int64]
    ids: NDArray[np.int32]
    id_ends: NDArray[np.int64]
    output_first: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    output_ids: NDArray[np.int32]
    output_ends: NDArray[np.int64]
    private_first: int
    top: int

    def prompt(self, row: int) -> NDArray[np.int32]:
        """Return the prompt's token ids: int32, C-contiguous, all >= 0, the caller's own copy."""
        low, high = int(self.ends[row]), int(self.ends[row + 1])
        if low == high:
            return self.ids[self.id_ends[row] : self.id_ends[row + 1]].copy()
        if self.top > ID_LIMIT:
            wide = np.repeat(self.shift[low:high], self.lengths[low:high])
            wide += np.arange(len(wide), dtype=np.int64)
            return _folded(wide)
        tokens = np.repeat(self.shift[low:high].astype(np.int32), self.lengths[low:high])
        tokens += np.arange(len(tokens), dtype=np.int32)
        return tokens

    def output(self, row: int, first: int, count: int) -> NDArray[np.int32]:
        """Return the ids of `count` output tokens of `row` from index `first` (0 is the first one generated).

        The trace's own ids where it has them. Any other id belongs to this row and index alone and to no
        prompt; past the row's `output_tokens` it is 31 well mixed bits of (row, index).
        """
        last = first + count
        low = int(self.output_ends[row])
        own = int(self.output_ends[row + 1]) - low
        known = own or int(self.output_tokens[row])
        if last > known:
            index = np.arange(max(first, known), last, dtype=np.int64)
            spilt = _folded(SPILL + (row << 32) + index)
            if first >= known:
                return spilt
            return np.concatenate((self.output(row, first, known - first), spilt))
        if own:
            return self.output_ids[low + first : low + last].copy()
        start = int(self.output_first[row])
        if self.top > ID_LIMIT:
            return _folded(np.arange(start + first, start + last, dtype=np.int64))
        return np.arange(start + first, start + last, dtype=np.int32)

    def spans(
        self, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return (first ids, lengths, number of spans of each row) of `rows`, flat, in their order."""
        counts = self.ends[rows + 1] - self.ends[rows]
        at = np.repeat(self.ends[rows] - _starts(counts), counts) + np.arange(counts.sum(), dtype=np.int64)
        return self.first[at], self.lengths[at], counts

    def update_digest(self, digest: "hashlib._Hash", rows: NDArray[np.int64]) -> None:
        """Feed `digest` with what prompts of `rows` share, whatever the ids are, and with explicit ids."""
        first, lengths, counts = self.spans(rows)
        _, at, unit = np.unique(first, return_index=True, return_inverse=True)
        rank = np.empty(len(at), np.int64)
        rank[np.argsort(at)] = np.arange(len(at))
        for part in (counts, lengths, rank[unit]):
            digest.update(part.astype("<i8").tobytes())
        for ids, ends in ((self.ids, self.id_ends), (self.output_ids, self.output_ends)):
            if ids.size:
                for row in rows.tolist():
                    digest.update(ids[ends[row] : ends[row + 1]].astype("<i4").tobytes())


def _folded(wide: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return ids below 2^31 as they are, others as 31 bits of a splitmix64 of them."""
    mixed = wide.astype(np.uint64)
    mixed += np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(33)
    return np.where(wide < ID_LIMIT, wide, mixed.astype(np.int64)).astype(np.int32)


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = np.cumsum(sizes)
    starts -= sizes
    return starts


def _int64(values: "array[int]") -> NDArray[np.int64]:
    return np.array(values, np.int64)
