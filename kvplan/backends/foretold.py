"""Storage whose failures are known when a plan is carried out, which is before the replay asks for them."""

from __future__ import annotations

from collections import deque

from kvplan.replay.storage import Storage as ReplayStorage
from kvplan.scheduler import Cache, ExecutionPlan


class Foretold(ReplayStorage):
    """The storage of a replay: the same chances in the same order, drawn a plan ahead.

    A replay draws once for every load that storage has a part in, right after its plan is made; ``failing``
    draws for the plan, and ``fails`` then hands out what was drawn.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._drawn: deque[bool] = deque()

    @staticmethod
    def of(storage: ReplayStorage) -> Foretold:
        """The same storage before anything was drawn of it."""
        return Foretold(storage.share, storage.failure_rate, storage.seed, storage.request_ids)

    def failing(self, plan: ExecutionPlan) -> set[int]:
        """The plan's loads that will fail, by op id."""
        found = set()
        for op in plan.cache:
            if not isinstance(op, Cache.LoadBackOp):
                continue
            for op_id, fetched in zip(op.op_ids, op.prefetch_from_storage, strict=True):
                if any(fetched):
                    self._drawn.append(super().fails())
                    if self._drawn[-1]:
                        found.add(op_id)
        return found

    def fails(self) -> bool:
        """Whether the next load fails, as it was drawn for its plan."""
        return self._drawn.popleft() if self._drawn else super().fails()
