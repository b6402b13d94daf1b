"""The storage tier in a replay: which prompts it holds at the start, and which of its loads fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from kvplan.replay.workload import Workload
from kvplan.scheduler import Scheduler


@dataclass(slots=True)
class Storage:
    """``share`` of the trace's prompts, chosen by ``seed``, or those of ``request_ids``, are stored before the
    replay begins; a load that storage has a part in fails with chance ``failure_rate``.

    Raises ``ValueError`` for shares outside 0..1, and from ``fill`` for a request that the trace does not have.
    """

    share: float = 0.0
    failure_rate: float = 0.0
    seed: int = 0
    request_ids: frozenset[str] | None = None
    draws: int = 0
    """How often chance has decided over a load."""
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        for name, value in (("storage", self.share), ("storage-failure-rate", self.failure_rate)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} {value} is given; a share from 0 to 1 is expected")
        self._random = Random(self.seed)

    def fill(self, scheduler: Scheduler, workload: Workload) -> int:
        """Make the chosen prompts' pages known to the scheduler as stored; return how many prompts."""
        rows = self._rows(workload)
        for row in rows:
            hashes = scheduler.prefix_hashes_for_tokens(workload.prompt(row))
            scheduler.register_storage_keys(*scheduler.expand_prefix_keys(hashes))
        return len(rows)

    def _rows(self, workload: Workload) -> list[int]:
        if self.request_ids is None:
            count = round(self.share * len(workload))
            return sorted(Random(self.seed).sample(range(len(workload)), count))
        unknown = sorted(self.request_ids - set(workload.request_ids))
        if unknown:
            raise ValueError(f"storage names request {unknown[0]!r}; the trace has no such request")
        return [row for row, name in enumerate(workload.request_ids) if name in self.request_ids]

    def fails(self) -> bool:
        """Whether the next load fails."""
        if self.failure_rate in (0, 1):
            return self.failure_rate == 1
        self.draws += 1
        return self._random.random() < self.failure_rate

    @property
    def undecided(self) -> int:
        """What decides over the loads to come: with a chance in between, no state is ever the same again."""
        return self.draws
