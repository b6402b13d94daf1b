"""Where in an arena a page and a row lie. Pure arithmetic: bytes in, places in 64-bit words out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.scheduler import SchedulerConfig
from kvplan.scheduler.config import GroupKind

WORD = 8  # bytes of a signature, and of the unit that everything in an arena is a multiple of

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Field:
    """One plane of a group's pages (keys of a layer, say): its bytes a row, a multiple of 8."""

    name: str
    row_bytes: int


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A cache group as memory: ``rows`` rows a page (tokens, or 1 for a state), ``packing`` pages a block.

    A page holds its fields one behind the other, each with its rows one behind the other.
    """

    group_id: str
    rows: int
    packing: int
    fields: tuple[Field, ...]

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.rows * sum(field.row_bytes for field in self.fields)

    def scaled(self, factor: int) -> GroupSpec:
        """The group with rows ``factor`` times smaller, but no row smaller than a signature."""
        fields = tuple(
            replace(field, row_bytes=max(field.row_bytes // factor // WORD, 1) * WORD)
            for field in self.fields
        )
        return replace(self, fields=fields)


def group_specs(
    config: SchedulerConfig, page_bytes: Mapping[str, int | None] | None = None
) -> list[GroupSpec]:
    """The groups of ``config`` as memory, with ``page_bytes`` of each; where not known, 8 bytes a row.

    Bytes that do not make whole rows of whole words are left over at a page's end, so a page may take a
    little less than declared (never more, unless a row would be smaller than 8 bytes).
    """
    specs = []
    for group in config.cache_groups:
        rows = 1 if group.kind == GroupKind.STATE else group.block_granularity
        known = (page_bytes or {}).get(group.group_id)
        row_bytes = max((known or 0) // rows // WORD, 1) * WORD
        specs.append(
            GroupSpec(group.group_id, rows, group.cache_blocks_per_lcm_block, (Field("rows", row_bytes),))
        )
    return specs


class Layout:
    """An arena of ``blocks`` LCM blocks: a block holds ``packing`` pages of any one of the groups.

    Counts in words of 8 bytes. Page ids start at 1: page p lies in block (p − 1) // packing.
    """

    def __init__(self, groups: Sequence[GroupSpec], blocks: int, block_bytes: int | None = None) -> None:
        """``block_bytes`` is the size of a block where it is larger than the largest group needs."""
        self.groups = list(groups)
        self.blocks = blocks
        largest = max(group.packing * group.page_bytes for group in groups)
        self.block_words = max(largest, block_bytes or 0) // WORD
        self.page_words = [group.page_bytes // WORD for group in groups]

    @property
    def words(self) -> int:
        """Words of the whole arena."""
        return self.blocks * self.block_words

    @property
    def bytes(self) -> int:
        """Bytes of the whole arena."""
        return self.words * WORD

    def pages(self, group: int) -> int:
        """Pages that the arena has room for if it held this group only."""
        return self.blocks * self.groups[group].packing

    def page_at(self, group: int, pages: Places) -> Places:
        """The first word of each page."""
        at = pages - 1
        packing = self.groups[group].packing
        starts: Places = at // packing * self.block_words + at % packing * self.page_words[group]
        return starts

    def rows_at(self, group: int, pages: Places, rows: Places) -> list[Places]:
        """The first word of each (page, row) pair, in each field of the group."""
        starts = self.page_at(group, pages)
        spec = self.groups[group]
        places = []
        for field in spec.fields:
            row_words = field.row_bytes // WORD
            places.append(starts + rows * row_words)
            starts = starts + spec.rows * row_words
        return places

    def view_shape(self, group: int, field: int) -> dict[str, Any]:
        """Size, stride and offset (in words) of a field's strided view: (block, page, row, word)."""
        spec = self.groups[group]
        row_words = spec.fields[field].row_bytes // WORD
        before = sum(other.row_bytes // WORD * spec.rows for other in spec.fields[:field])
        return {
            "size": (self.blocks, spec.packing, spec.rows, row_words),
            "stride": (self.block_words, self.page_words[group], row_words, 1),
            "storage_offset": before,
        }
