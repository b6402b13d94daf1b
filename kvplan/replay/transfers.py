"""How long the answers of the host tier take."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvplan.replay.step_time import NS
from kvplan.scheduler import SchedulerConfig
from kvplan.scheduler.config import GroupKind


@dataclass(slots=True)
class Link:
    """One direction between device and host: a latency, and a bandwidth that its transfers share in turn.

    `page_bytes` are the bytes of a page of each group, by index; without a bandwidth a transfer takes the latency.
    """

    latency_ns: int = 0
    bytes_per_s: float = math.inf
    page_bytes: Mapping[int, float] = field(default_factory=dict)
    free_ns: int = 0

    def due_ns(self, now_ns: int, groups: Sequence[int]) -> int:
        """Return when a transfer of one page of each of `groups`, asked for now, is done."""
        if math.isinf(self.bytes_per_s):
            return now_ns + self.latency_ns
        size = sum(self.page_bytes.get(group, 0.0) for group in groups)
        self.free_ns = max(self.free_ns, now_ns) + round(NS * size / self.bytes_per_s)
        return self.free_ns + self.latency_ns


@dataclass(slots=True)
class TransferTimes:
    """The links of the host tier. By default every transfer is done before the next plan."""

    write_back: Link = field(default_factory=Link)
    load_back: Link = field(default_factory=Link)

    def fresh(self) -> "TransferTimes":
        """Return the same links with nothing in flight, for another worker."""
        return TransferTimes(replace(self.write_back, free_ns=0), replace(self.load_back, free_ns=0))


def loaded_group(config: SchedulerConfig) -> tuple[int, int]:
    """Return the first full group's index and page size in tokens, (-1, 0) without one."""
    for index, group in enumerate(config.cache_groups):
        if group.kind == GroupKind.FULL:
            return index, group.block_granularity
    return -1, 0
