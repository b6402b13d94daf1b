"""How many LCM blocks a device really gives, against what a deployment counts on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvplan.backends.allocator import AllocatorReport, allocator_report, find_max_blocks
from kvplan.backends.torch_module import device_named, device_title

if TYPE_CHECKING:
    from kvplan.recipes import MemoryPlan


@dataclass(frozen=True, slots=True)
class BlocksFit:
    """``found`` blocks of ``block_bytes`` fit in one allocation beside ``reserve_bytes``; the deployment counts
    on ``promised`` usable ones (``None``: it gives no pool), beside which an engine has the null block."""

    device: str
    block_bytes: int
    reserve_bytes: int
    found: int
    promised: int | None
    before: AllocatorReport

    @property
    def usable(self) -> int:
        """The blocks that a pool here can have: those found but the null block."""
        return max(self.found - 1, 0)

    @property
    def fits(self) -> bool:
        """Whether what the deployment counts on is there."""
        return self.promised is None or self.promised < self.found


def blocks_fit(device: str, block_bytes: int, promised: int | None, reserve_bytes: int = 0) -> BlocksFit:
    """Find by allocation how many blocks fit. Raises ``BackendError`` without torch or the device."""
    where = device_named(device)
    before = allocator_report(where)
    found = find_max_blocks(block_bytes, where, reserve_bytes)
    return BlocksFit(device_title(where), block_bytes, reserve_bytes, found, promised, before)


def left_out(plan: MemoryPlan) -> int:
    """The bytes of a GPU that a plan does not give to the cache, the null block counted to the cache; 0 where the
    plan was given the cache's size alone."""
    lines = {line.name: line.bytes for line in plan.stage.budget}
    device = lines.get("device")
    if device is None or plan.stage.cache_bytes is None:
        return 0
    return device - plan.stage.cache_bytes
