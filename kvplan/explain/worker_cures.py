"""What would end the dead end of a replay through workers: settings that are tried by replaying with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvplan.explain.cures import BATCH_STEPS, NARROWING, POOL_STEPS, Cure, pool_of
from kvplan.replay.disaggregated import Disaggregated
from kvplan.replay.play import Progress
from kvplan.replay.statistics import spread
from kvplan.replay.step_time import NS
from kvplan.replay.worker_inputs import WorkerInputs


@dataclass(slots=True)
class WorkerCures:
    """Replays of ``inputs`` with something changed; ``refused`` requests were too long for them as they are."""

    inputs: WorkerInputs
    refused: int
    progress: Callable[[Progress], None] | None = None
    stop: Callable[[], bool] | None = None

    def found(self) -> Iterator[Cure]:
        """The smallest change of each kind that was tried with which every request that fits finishes: declared
        budgets, larger pools, more workers of a role, smaller batches."""
        for tries in (self._declared, self._pool, self._decode_workers, self._prefill_workers, self._batch):
            cure = tries()
            if cure is not None:
                yield cure

    def _declared(self) -> Cure | None:
        if all(self.inputs.workload().budgets):
            return None
        what = "every request declares its output"
        return self._does("--max-new-tokens output", what, replace(self.inputs, budget="output"))

    def _pool(self) -> Cure | None:
        blocks = low = self.inputs.config.num_device_pages - 1
        for step in POOL_STEPS:
            high = math.ceil(blocks * step)
            best = self._with_pool(high)
            if best is not None:
                break
            low = high
        else:
            return None
        for _ in range(NARROWING):
            middle = (low + high) // 2
            if middle <= low:
                break
            cure = self._with_pool(middle)
            if cure is None:
                low = middle
            else:
                high, best = middle, cure
        return best

    def _with_pool(self, blocks: int) -> Cure | None:
        # With a deployment of their own the prefill workers' pool is not what the flag sets.
        whose = "each decode worker" if self.inputs.prefill_config is not None else "each worker"
        changed = replace(self.inputs, config=pool_of(self.inputs.config, blocks))
        return self._does(f"--pool-blocks {blocks}", f"{blocks:,} LCM blocks on {whose}", changed)

    def _decode_workers(self) -> Cure | None:
        return self._more("decode", self.inputs.decode_workers)

    def _prefill_workers(self) -> Cure | None:
        return self._more("prefill", self.inputs.prefill_workers)

    def _more(self, role: str, now: int) -> Cure | None:
        if not now:
            return None
        for count in dict.fromkeys((now + 1, 2 * now)):
            changed = (
                replace(self.inputs, prefill_workers=count)
                if role == "prefill"
                else replace(self.inputs, decode_workers=count)
            )
            cure = self._does(f"--{role}-workers {count}", f"{count:,} {role} workers", changed)
            if cure is not None:
                return cure
        return None

    def _batch(self) -> Cure | None:
        batch = self.inputs.config.max_batch_size
        for step in BATCH_STEPS:
            size = int(batch * step)
            if size < 1 or self.inputs.prefill_config is not None:
                return None
            changed = replace(self.inputs, config=replace(self.inputs.config, max_batch_size=size))
            cure = self._does(
                f"--max-batch-size {size}",
                f"at most {size:,} request{'s' if size > 1 else ''} at once",
                changed,
            )
            if cure is not None:
                return cure
        return None

    def _does(self, flag: str, what: str, changed: WorkerInputs) -> Cure | None:
        """What the replay comes to; None if it has a dead end too, refuses more requests, or was stopped."""
        if self.stop is not None and self.stop():
            return None
        replay = changed.replay()
        replay.progress, replay.stop = self.progress, self.stop
        replay.play()
        if replay.ending != "complete" or len(replay.refused) > self.refused:
            return None
        return cure_of(flag, what, replay)


def cure_of(flag: str, what: str, replay: Disaggregated) -> Cure:
    """What a replay with a change came to."""
    finished = replay.finished
    flights = [f for worker in replay.workers for f in (*worker.finished, *worker.live.values())]
    prefill = sum(worker.totals.prefill_tokens for worker in replay.workers)
    again = sum(flight.computed_again for flight in flights)
    first_token = spread([(f.first_token_ns - f.arrived_ns) / NS for f in finished])
    return Cure(
        flag=flag,
        what=what,
        retractions=sum(worker.totals.retractions.total() for worker in replay.workers),
        finished=len(finished),
        unfinished=len(replay.workload) - len(finished) - len(replay.refused),
        never_fit=len(replay.refused),
        ending=replay.ending,
        duration_s=max((flight.finished_ns for flight in finished), default=0) / NS,
        recomputed_share=again / prefill if prefill else 0.0,
        first_token_p50_s=None if first_token is None else first_token.p50,
    )
