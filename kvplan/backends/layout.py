"""Where in an arena a page and a row lie. Pure arithmetic: bytes in, places in bytes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.scheduler import SchedulerConfig
from kvplan.scheduler.config import GroupKind

WORD = 8  # bytes of a signature

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Field:
    """What a layer keeps of a row (its keys, say): the bytes, and of what type and shape where that is known."""

    name: str
    row_bytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()

    @property
    def mark_bytes(self) -> int:
        """Bytes of a signature that a row has room for: the first 8, or all there are."""
        return min(self.row_bytes, WORD)

    def scaled(self, factor: int) -> Field:
        """The field with rows ``factor`` times smaller in whole signatures, but none smaller than it needs."""
        if factor == 1:
            return self
        size = max(self.row_bytes // factor // WORD * WORD, self.mark_bytes)
        return Field(self.name, size)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A cache group as memory: ``rows`` rows a page (tokens, or 1 for a state), ``packing`` pages a block.

    A page has one part in each of ``layers`` layers; a part holds the fields one behind the other, each with
    its rows one behind the other, and is rounded up to ``alignment`` bytes. In a block laid out as planes,
    ``stacks`` times as many planes as the group has layers are used.
    """

    group_id: str
    rows: int
    packing: int
    fields: tuple[Field, ...]
    layers: int = 1
    stacks: int = 1
    alignment: int = WORD

    @property
    def part_bytes(self) -> int:
        """Bytes of one layer's part of a page."""
        used = self.rows * sum(field.row_bytes for field in self.fields)
        return -(-used // self.alignment) * self.alignment

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all layers."""
        return self.part_bytes * self.layers

    @property
    def per_plane(self) -> int:
        """Pages of a block that lie in one plane."""
        return self.packing // self.stacks

    @property
    def main(self) -> int:
        """The field that tells what a row holds: the first with room for a whole signature."""
        return next(at for at, field in enumerate(self.fields) if field.row_bytes >= WORD)

    def before(self, field: int) -> int:
        """Bytes of a part before a field."""
        return self.rows * sum(one.row_bytes for one in self.fields[:field])

    @property
    def deepest(self) -> int:
        """The power of two by which rows can shrink before they are as small as they get."""
        factor = 1
        while any(field.scaled(factor).row_bytes > field.mark_bytes for field in self.fields):
            factor *= 2
        return factor

    def scaled(self, factor: int, fewer: int = 1) -> GroupSpec:
        """The group with rows ``factor`` times smaller, none smaller than a signature needs, and with ``fewer``
        times fewer layers, one at least."""
        if factor == fewer == 1:
            return self
        return replace(
            self,
            fields=tuple(field.scaled(min(factor, self.deepest)) for field in self.fields),
            layers=-(-self.layers // fewer),
            alignment=min(self.alignment, WORD),
        )


def group_specs(
    config: SchedulerConfig, page_bytes: Mapping[str, int | None] | None = None
) -> list[GroupSpec]:
    """The groups of ``config`` as memory, with ``page_bytes`` of each; where not known, 8 bytes a row.

    What of the bytes makes no whole rows is left over at a page's end, so a page may take a little less than
    declared (never more, unless a row would be smaller than 8 bytes, which a signature needs).
    """
    specs = []
    for group in config.cache_groups:
        rows = 1 if group.kind == GroupKind.STATE else group.block_granularity
        known = (page_bytes or {}).get(group.group_id)
        row_bytes = max((known or 0) // rows, WORD)
        packing = group.cache_blocks_per_lcm_block
        specs.append(GroupSpec(group.group_id, rows, packing, (Field("rows", row_bytes),), alignment=1))
    return specs


@dataclass(frozen=True, slots=True)
class Strides:
    """Bytes from one block, stack, slot of a plane, and layer to the next."""

    block: int
    stack: int
    slot: int
    layer: int


class Layout:
    """An arena of ``blocks`` LCM blocks: a block holds ``packing`` pages of any one of the groups.

    As planes, a plane holds one part of every block, and all planes lie one behind the other: a layer sees its
    pages of all blocks in one plane, as an engine's does. Otherwise a block is one piece, and its pages lie one
    behind the other in it. Page ids start at 1: page p lies in block (p − 1) // packing; the null block is not
    there.
    """

    def __init__(
        self, groups: Sequence[GroupSpec], blocks: int, block_bytes: int | None = None, planar: bool = False
    ) -> None:
        """``block_bytes`` is the size of a block where it is larger than the largest group needs; a block in
        planes is as large as its planes."""
        self.groups = list(groups)
        self.blocks = blocks
        self.planar = planar
        if planar:
            self.planes = max(group.stacks * group.layers for group in groups)
            self.plane_bytes = _whole(max(group.per_plane * group.part_bytes for group in groups))
        else:
            largest = max(group.packing * group.page_bytes for group in groups)
            self.planes = 1
            self.plane_bytes = _whole(max(largest, block_bytes or 0))
        self.strides = [self._strides(group) for group in groups]

    def _strides(self, group: GroupSpec) -> Strides:
        if not self.planar:
            return Strides(self.plane_bytes, 0, group.page_bytes, group.part_bytes)
        plane = self.blocks * self.plane_bytes
        return Strides(self.plane_bytes, group.layers * plane, group.part_bytes, plane)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.planes * self.plane_bytes

    @property
    def bytes(self) -> int:
        """Bytes of the whole arena."""
        return self.blocks * self.block_bytes

    def pages(self, group: int) -> int:
        """Pages that the arena has room for if it held this group only."""
        return self.blocks * self.groups[group].packing

    def slots(self, group: int, pages: Places) -> tuple[Places, Places, Places]:
        """The block, the stack in it, and the slot of the plane of each page."""
        spec = self.groups[group]
        at = pages - 1
        inside = at % spec.packing
        per_stack = spec.per_plane if self.planar else spec.packing
        return at // spec.packing, inside // per_stack, inside % per_stack

    def page_at(self, group: int, pages: Places) -> Places:
        """The first byte of each page's part in the group's first layer."""
        block, stack, slot = self.slots(group, pages)
        step = self.strides[group]
        starts: Places = block * step.block + stack * step.stack + slot * step.slot
        return starts

    def rows_at(self, group: int, field: int, pages: Places, rows: Places) -> Places:
        """The first byte of each (page, row) pair in a field of the group's first layer."""
        spec = self.groups[group]
        starts: Places = self.page_at(group, pages) + (
            spec.before(field) + rows * spec.fields[field].row_bytes
        )
        return starts

    def page_view(self, group: int, unit: int) -> dict[str, Any]:
        """Size, stride and offset, in units of so many bytes, of the strided view of a group's pages:
        (block, stack, slot, layer, unit of the part)."""
        spec, step = self.groups[group], self.strides[group]
        stacks = spec.stacks if self.planar else 1
        return {
            "size": (self.blocks, stacks, spec.packing // stacks, spec.layers, spec.part_bytes // unit),
            "stride": (*(size // unit for size in (step.block, step.stack, step.slot, step.layer)), 1),
            "storage_offset": 0,
        }

    def field_view(self, group: int, field: int, unit: int, shape: Sequence[int]) -> dict[str, Any]:
        """As ``page_view``, of a field: (block, stack, slot, layer, row, *shape), a row's elements of ``unit``
        bytes in ``shape``."""
        spec = self.groups[group]
        pages = self.page_view(group, unit)
        inner = [1] * len(shape)
        for at in range(len(shape) - 1, 0, -1):
            inner[at - 1] = inner[at] * shape[at]
        return {
            "size": (*pages["size"][:-1], spec.rows, *shape),
            "stride": (*pages["stride"][:-1], spec.fields[field].row_bytes // unit, *inner),
            "storage_offset": spec.before(field) // unit,
        }

    def whole(self, group: int, field: int, unit: int) -> bool:
        """Whether all rows of a field, in all pages, begin at multiples of ``unit`` bytes and are some long."""
        spec, step = self.groups[group], self.strides[group]
        sizes = (step.block, step.stack, step.slot, step.layer, spec.before(field))
        return not any(size % unit for size in (*sizes, spec.fields[field].row_bytes))

    def whole_pages(self, group: int, unit: int) -> bool:
        """Whether all parts of a group's pages begin at multiples of ``unit`` bytes and are some long."""
        spec, step = self.groups[group], self.strides[group]
        sizes = (step.block, step.stack, step.slot, step.layer, spec.part_bytes)
        return not any(size % unit for size in sizes)

    def layers(self, group: int, most: int) -> Iterator[Places]:
        """What to add to a place in the first layer, a column for ``most`` layers at a time."""
        offsets: Places = np.arange(self.groups[group].layers, dtype=np.int64) * self.strides[group].layer
        for first in range(0, len(offsets), max(most, 1)):
            yield offsets[first : first + max(most, 1), None]


def _whole(size: int) -> int:
    return -(-size // WORD) * WORD
