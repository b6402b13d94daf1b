"""The storage tier in a replay: which prompts it holds at the start, and which of its loads fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from kvplan.replay.workload import Workload
from kvplan.scheduler import Scheduler


@dataclass(slots=True)
class Storage:
    """``share`` of the trace's prompts, chosen by ``seed``, are stored before the replay begins; a load that
    storage has a part in fails with chance ``failure_rate``. Raises ``ValueError`` for shares outside 0..1."""

    share: float = 0.0
    failure_rate: float = 0.0
    seed: int = 0
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        for name, value in (("storage", self.share), ("storage-failure-rate", self.failure_rate)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} {value} is given; a share from 0 to 1 is expected")
        self._random = Random(self.seed)

    def fill(self, scheduler: Scheduler, workload: Workload) -> int:
        """Make the chosen prompts' pages known to the scheduler as stored; return how many prompts."""
        count = round(self.share * len(workload))
        for row in sorted(Random(self.seed).sample(range(len(workload)), count)):
            hashes = scheduler.prefix_hashes_for_tokens(workload.prompt(row))
            scheduler.register_storage_keys(*scheduler.expand_prefix_keys(hashes))
        return count

    def fails(self) -> bool:
        """Whether the next load fails."""
        return bool(self.failure_rate) and self._random.random() < self.failure_rate
