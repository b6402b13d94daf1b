"""How a deployment's pages lie in memory, as large as deployed or scaled down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvplan.backends.layout import WORD, Field, GroupSpec, Layout, group_specs
from kvplan.scheduler import SchedulerConfig

if TYPE_CHECKING:
    from kvplan.deployment import Deployment
    from kvplan.recipes import LayerGroup, MemoryPlan, Packing

CPU_BYTES = 2**30  # what the arenas of one engine may take on a CPU unless told otherwise


@dataclass(frozen=True, slots=True)
class Memory:
    """The groups as memory, a block's bytes where larger than they need, and whether it lies in planes.

    ``scale`` is by how much rows are smaller than deployed, ``fewer`` how many times fewer the layers, and
    ``deployed_bytes`` what a block has as deployed (None: it is as deployed). ``source`` says in words where the
    sizes are from.
    """

    groups: Sequence[GroupSpec]
    block_bytes: int | None = None
    planar: bool = False
    scale: int = 1
    fewer: int = 1
    deployed_bytes: int | None = None
    source: str = "the bytes of each group's page"

    @staticmethod
    def of(
        config: SchedulerConfig, page_bytes: Mapping[str, int | None] | None = None, scale_down: int = 1
    ) -> Memory:
        """The memory of a configuration whose groups have ``page_bytes`` each, rows ``scale_down`` smaller."""
        return Memory(group_specs(config, page_bytes)).scaled(scale_down)

    @staticmethod
    def planned(plan: MemoryPlan) -> Memory:
        """The memory of a model's plan: the fields of each layer, in planes, on the stage that binds.

        A stage whose groups keep pages per block that its planes do not make (one of several unequal ones) is
        laid out block by block: as large, without planes.
        """
        stage = plan.stage
        groups = [_spec(one.group, one.pages_per_block, plan.packing) for one in stage.groups]
        held = [spec for spec in groups if spec is not None]
        source = f"{plan.title()}: the fields of {len(stage.layers)} layers"
        planar = len(held) == len(groups) and (
            Layout(held, 1, planar=True).block_bytes == stage.block_bytes
            and all(spec.per_plane * spec.stacks == spec.packing for spec in held)
        )
        # A stage may have no layer of a group; its table needs room for signatures all the same.
        made = [
            spec or GroupSpec(one.group.group_id, one.group.span, one.pages_per_block, (Field("rows", WORD),))
            for spec, one in zip(groups, stage.groups, strict=True)
        ]
        if not planar:
            made = [replace(spec, stacks=1) for spec in made]
        return Memory(made, stage.block_bytes, planar, source=source)

    @property
    def deepest(self) -> int:
        """The power of two by which the rows of all groups are as small as they get."""
        return max(spec.deepest for spec in self.groups)

    def scaled(self, factor: int) -> Memory:
        """The same, smaller: rows by ``factor``, and what rows cannot shrink any more by fewer layers."""
        if factor == 1:
            return self
        fewer = max(factor // self.deepest, 1)
        groups = [spec.scaled(factor, fewer) for spec in self.groups]
        deployed = self.deployed_bytes or self.layout(1).block_bytes
        return replace(
            self, groups=groups, block_bytes=None, scale=factor, fewer=fewer, deployed_bytes=deployed
        )

    def fitting(self, config: SchedulerConfig, limit_bytes: int) -> Memory:
        """Scaled by the smallest power of two by which the arenas of ``config`` take ``limit_bytes`` at most, or
        by which they are as small as they get."""
        blocks = config.num_device_pages - 1 + (config.num_host_pages - 1 if config.has_host_cache else 0)
        factor = 1
        smallest = self.deepest * max(spec.layers for spec in self.groups)
        while factor < smallest and self.scaled(factor).layout(blocks).bytes > limit_bytes:
            factor *= 2
        return self.scaled(factor)

    def layout(self, blocks: int) -> Layout:
        """An arena of so many blocks."""
        return Layout(self.groups, blocks, self.block_bytes, self.planar)

    @property
    def shrunk(self) -> str:
        """How it is smaller than deployed, in words; empty where it is not."""
        parts = [f"rows up to {self.scale // self.fewer:,} times smaller"] if self.scale > self.fewer else []
        if self.fewer > 1:
            parts.append(f"{self.fewer:,} times fewer layers")
        return " and ".join(parts)

    @property
    def lies(self) -> str:
        """How blocks lie, in words."""
        if not self.planar:
            return "each block in one piece"
        one = self.layout(1)
        return f"{one.planes} plane{'s' if one.planes > 1 else ''} of {one.plane_bytes:,} bytes a block"


def deployed_memory(
    deployment: Deployment, plan: MemoryPlan | None, scale_down: int | None, *, on_gpu: bool
) -> Memory:
    """The memory of a deployment, or of the plan that it was made from; ``scale_down`` times smaller, or absent
    that as large as deployed on a GPU and as small as ``CPU_BYTES`` asks for on a CPU."""
    if plan is not None and _agrees(plan, deployment):
        memory = Memory.planned(plan)
    else:
        memory = Memory(group_specs(deployment.config, deployment.group_bytes), deployment.block_bytes)
    if scale_down is None and not on_gpu:
        return memory.fitting(deployment.config, CPU_BYTES)
    return memory.scaled(scale_down or 1)


def _agrees(plan: MemoryPlan, deployment: Deployment) -> bool:
    """Whether a deployment has the groups of the plan that it was made from, which flags may have replaced."""
    return [one.group.group_id for one in plan.stage.groups] == [
        group.group_id for group in deployment.config.cache_groups
    ] and [one.group.span for one in plan.stage.groups] == [
        group.block_granularity for group in deployment.config.cache_groups
    ]


def _spec(group: LayerGroup, packing: int, packed: Packing) -> GroupSpec | None:
    """A group of a plan as memory; None where the stage has none of its layers."""
    if not group.layers:
        return None
    rows = 1 if group.kind == "state" else group.span
    fields = tuple(Field(field.name, field.bytes, field.dtype, field.shape) for field in group.fields)
    if all(field.row_bytes < WORD for field in fields):  # no row is that small, but a signature has to fit
        fields = (Field(fields[0].name, WORD), *fields[1:])
    stacks = max(packed.planes // len(group.layers), 1)
    if packing % stacks:
        stacks = 1
    return GroupSpec(group.group_id, rows, packing, fields, len(group.layers), stacks, group.alignment)
