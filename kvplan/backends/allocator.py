"""What the allocator says of its memory, and how many LCM blocks it really gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.backends.torch_module import load_torch


@dataclass(frozen=True, slots=True)
class AllocatorReport:
    """Bytes, ``None`` where nothing says them: torch keeps no account of a CPU's memory.

    ``allocated`` and ``reserved`` are the caching allocator's; ``largest_free`` is the largest piece that it
    holds and nobody uses; ``device_free`` is what the device (of a CPU: the machine) has left beside;
    ``process`` is what this process has resident, told for a CPU only.
    """

    device: str
    allocated: int | None
    reserved: int | None
    largest_free: int | None
    device_free: int | None
    process: int | None

    @property
    def fragmentation(self) -> float | None:
        """The part of the unused reserved bytes that the largest free piece leaves out, 0 to 1."""
        if self.allocated is None or self.reserved is None or self.largest_free is None:
            return None
        unused = self.reserved - self.allocated
        return 1 - self.largest_free / unused if unused else 0.0


def allocator_report(device: Any) -> AllocatorReport:
    """Ask now."""
    if device.type != "cuda":
        return AllocatorReport(str(device), None, None, None, available_bytes(), _resident())
    torch = load_torch()
    torch.cuda.init()  # before which the allocator has nothing to say
    stats = torch.cuda.memory_stats(device)
    index = device.index or 0
    free = [
        block["size"]
        for segment in torch.cuda.memory_snapshot()
        if segment.get("device", index) == index
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    return AllocatorReport(
        str(device),
        stats.get("allocated_bytes.all.current", 0),
        stats.get("reserved_bytes.all.current", 0),
        max(free, default=0),
        torch.cuda.mem_get_info(device)[0],
        None,
    )


def find_max_blocks(block_bytes: int, device: Any, reserve_bytes: int = 0) -> int:
    """The LCM blocks of ``block_bytes`` that fit in one allocation beside ``reserve_bytes``, by allocating.

    On a GPU the reserve is allocated first and allocations are tried until the largest is found. A CPU
    promises memory that it may not have, so there an allocation counts only within what the machine says is
    available.
    """
    torch = load_torch()
    if device.type != "cuda":
        room = (available_bytes() or 0) - reserve_bytes

        def fits(blocks: int) -> bool:
            return blocks * block_bytes <= room and _allocates(torch, blocks * block_bytes, device)

        return largest(fits, max(room // block_bytes, 0))
    torch.cuda.empty_cache()  # what others have left in the cache is free
    try:
        reserve = torch.empty(reserve_bytes, dtype=torch.uint8, device=device)
    except RuntimeError:
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    found = largest(lambda blocks: _allocates(torch, blocks * block_bytes, device), free // block_bytes)
    del reserve
    torch.cuda.empty_cache()
    return found


def largest(fits: Callable[[int], bool], high: int) -> int:
    """The largest number up to ``high`` that fits, where all below one that fits do; 0 if none does."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _allocates(torch: Any, size: int, device: Any) -> bool:
    try:
        torch.empty(size, dtype=torch.uint8, device=device)
    except RuntimeError:
        return False
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return True


def available_bytes() -> int | None:
    """The memory that the machine says can be had without swapping; ``None`` where it does not say."""
    return _kib_of("/proc/meminfo", "MemAvailable:")


def _resident() -> int | None:
    return _kib_of("/proc/self/status", "VmRSS:")


def _kib_of(path: str, name: str) -> int | None:
    """A line ``name N kB`` of a file of /proc, in bytes; ``None`` on systems without it."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return None
