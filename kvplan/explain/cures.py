"""What would spare a run its retractions or its dead end: settings that are tried by replaying the run with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvplan.replay.play import Ending, Progress
from kvplan.replay.run import RunSummary
from kvplan.replay.session import Session
from kvplan.scheduler import SchedulerConfig

POOL_STEPS = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
BATCH_STEPS = (0.75, 0.5, 0.25)
NARROWING = 3
"""Further replays between the smallest pool that did and the largest that did not."""


@dataclass(frozen=True, slots=True)
class Cure:
    """A setting, as a flag of replay-trace, and what came of the replay with it."""

    flag: str
    what: str
    retractions: int
    finished: int
    unfinished: int
    never_fit: int
    ending: str
    duration_s: float
    recomputed_share: float
    first_token_p50_s: float | None


@dataclass(slots=True)
class Cures:
    """Replays of one run, from its first state on, with something changed."""

    first: Callable[[], Session]
    summary: RunSummary
    progress: Callable[[Progress], None] | None = None
    stop: Callable[[], bool] | None = None

    def found(self) -> Iterator[Cure]:
        """Declared budgets, a larger pool, a smaller batch, in turn.

        Of a run with a dead end those with which it has none, of any other those that spare it half of its
        retractions or more.
        """
        now = self.summary.figures.retractions.count
        for tries in (self._declared, self._pool, self._batch):
            best = tries()
            if best is None or best.ending != Ending.COMPLETE or self._refuses_more(best):
                continue
            if self.summary.dead_end is not None or 2 * best.retractions <= now:
                yield best

    def _does(self, cure: Cure) -> bool:
        """Whether it leaves nothing to be wished for."""
        return (
            cure.ending == Ending.COMPLETE
            and not self._refuses_more(cure)
            and (self.summary.dead_end is not None or not cure.retractions)
        )

    def _refuses_more(self, cure: Cure) -> bool:
        """Whether requests that the run took would never fit with it."""
        return cure.never_fit > self.summary.figures.requests.never_fit

    def _declared(self) -> Cure | None:
        if not self.summary.assumptions.undeclared_requests:
            return None
        outputs = sorted(self.first().engine.workload.output_tokens)
        p99 = outputs[min(math.ceil(0.99 * len(outputs)), len(outputs)) - 1]
        flag = f"--max-new-tokens {p99}"
        what = f"every request declares {p99:,} (p99 of this trace), or its output where that is longer"
        return self._replay(flag, what, budget=p99)

    def _pool(self) -> Cure | None:
        blocks = self.first().config.num_device_pages - 1
        low, best = blocks, None
        size = blocks
        for step in POOL_STEPS:
            size = math.ceil(blocks * step)
            cure = self._with_pool(size)
            if cure is None:
                return best
            if best is None or self._does(cure) or cure.retractions < best.retractions:
                best = cure
            if self._does(cure):
                break
            low = size
        if best is None or not self._does(best):
            return best
        high = size
        for _ in range(NARROWING):
            middle = (low + high) // 2
            if middle <= low:
                break
            cure = self._with_pool(middle)
            if cure is None:
                break
            if self._does(cure):
                high, best = middle, cure
            else:
                low = middle
        return best

    def _with_pool(self, blocks: int) -> Cure | None:
        config = pool_of(self.first().config, blocks)
        return self._replay(f"--pool-blocks {blocks}", f"a pool of {blocks:,} LCM blocks", config)

    def _batch(self) -> Cure | None:
        most = self.summary.figures.queue.max_running
        best: Cure | None = None
        for step in BATCH_STEPS:
            size = int(most * step)
            if size < 1:
                break
            config = replace(self.first().config, max_batch_size=size)
            cure = self._replay(
                f"--max-batch-size {size}",
                f"at most {size:,} request{'s' if size > 1 else ''} at once",
                config,
            )
            if cure is None:
                break
            if best is None or self._does(cure) or cure.retractions < best.retractions:
                best = cure
            if self._does(cure):
                break
        return best

    def _replay(
        self, flag: str, what: str, config: SchedulerConfig | None = None, budget: int | None = None
    ) -> Cure | None:
        """What a replay with the change comes to; None if it was stopped."""
        session = self.first().changed(config, budget)
        ending, dead_end = session.play(progress=self.progress, stop=self.stop)
        if ending is Ending.INTERRUPTED:
            return None
        figures = session.run(ending, dead_end).summary.figures
        first_token = figures.latency.first_token_s
        return Cure(
            flag=flag,
            what=what,
            retractions=figures.retractions.count,
            finished=figures.requests.finished,
            unfinished=figures.requests.unfinished,
            never_fit=figures.requests.never_fit,
            ending=ending.value,
            duration_s=figures.duration_s,
            recomputed_share=figures.tokens.recomputed_share,
            first_token_p50_s=None if first_token is None else first_token.p50,
        )


def pool_of(config: SchedulerConfig, blocks: int) -> SchedulerConfig:
    """The configuration with a device pool of ``blocks`` usable LCM blocks."""
    before = config.num_device_pages - 1
    groups = [
        replace(group, total_pages=blocks * group.cache_blocks_per_lcm_block + 1)
        if group.total_pages == before * group.cache_blocks_per_lcm_block + 1
        else group
        for group in config.cache_groups
    ]
    return replace(config, num_device_pages=blocks + 1, cache_groups=groups)
