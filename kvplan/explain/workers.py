"""A run through prefill and decode workers that is asked about one of them: played as far as a question needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from kvplan.explain.explanation import DETAILED, EvictionOf, RoundExplanation, explained
from kvplan.explain.observer import Observer
from kvplan.explain.tables import evictions_table
from kvplan.explain.witness import Watch
from kvplan.replay.disaggregated import Disaggregated
from kvplan.replay.play import Progress
from kvplan.replay.run import in_seconds
from kvplan.replay.worker_inputs import WorkerInputs
from kvplan.replay.workers import Worker
from kvplan.scheduler.config import Role


def worker_names(inputs: WorkerInputs) -> list[str]:
    """The workers by name, prefill first: "prefill 0", "decode 0", …"""
    return [
        *(f"prefill {at}" for at in range(inputs.prefill_workers)),
        *(f"decode {at}" for at in range(inputs.decode_workers)),
    ]


def worker_named(inputs: WorkerInputs, name: str | None) -> int:
    """The place among all workers of the one that is meant: "prefill 0", "prefill-0", "P0", "p0".

    Without a name the only one there is. Raises ``ValueError`` naming those there are.
    """
    names = worker_names(inputs)
    if name is None:
        if len(names) == 1:
            return 0
        raise ValueError(f"--worker is not given; one of {', '.join(names)} is expected")
    plain = name.strip().lower().replace("-", " ").replace("_", " ")
    short = {f"{known[0]}{known.rsplit(' ', 1)[1]}": known for known in names}
    known = short.get(plain.replace(" ", ""), plain)
    if known not in names:
        raise ValueError(f"--worker {name!r} is given; one of {', '.join(names)} is expected")
    return names.index(known)


class PlayedWorker:
    """One worker of a replay, played once to see what came, and again for the rounds that are explained.

    A worker has no states to go back to: what it is depends on all the others.
    """

    def __init__(self, inputs: WorkerInputs, at: int) -> None:
        self.inputs = inputs
        self.at = at
        self.name = worker_names(inputs)[at]
        self.replay = inputs.replay()
        names = self.replay.workload.request_ids
        self._observer = Observer(self._worker(self.replay), {name: row for row, name in enumerate(names)})

    @property
    def request_ids(self) -> Sequence[str]:
        """The trace's requests, by row."""
        return self.replay.workload.request_ids

    @property
    def worker(self) -> Worker:
        """The worker as it was left by ``play``."""
        return self._worker(self.replay)

    def play(
        self,
        enough: Callable[[Worker], bool],
        *,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        """Play until ``enough`` says so of the worker, or the end."""
        replay, worker = self.replay, self.worker
        replay.progress = progress
        replay.stop = lambda: enough(worker) or (stop is not None and stop())
        self._observer.attach()
        try:
            replay.play()
        finally:
            self._observer.detach()

    def table(self, name: str) -> pl.DataFrame:
        """rounds, events or evictions of the worker, as far as it was played."""
        if name == "evictions":
            return evictions_table(self._observer.evictions)
        log = self.worker.events if name == "events" else self.worker.rounds
        return in_seconds(log.table())

    def explain(
        self,
        rounds: Sequence[int],
        *,
        request_id: str | None = None,
        detailed: int | None = DETAILED,
        eviction_of: EvictionOf | None = None,
        entered: Callable[[str, int], int | None] | None = None,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> list[RoundExplanation]:
        """Play it all again and explain these rounds of the worker, in their order; the other arguments are those
        of ``explanation.explained``. After a ``stop`` fewer."""
        replay = self.inputs.replay()
        worker = self._worker(replay)
        config = replay.configs[Role.P if self.at < self.inputs.prefill_workers else Role.D]
        todo = sorted(set(rounds), reverse=True)
        told: list[RoundExplanation] = []
        watch: Watch | None = None

        def tell() -> None:
            nonlocal watch
            seen = None if watch is None else watch.done()
            watch = None
            if seen is not None:
                told.append(
                    explained(
                        seen,
                        worker.scheduler,
                        config,
                        request_id=request_id,
                        detailed=detailed,
                        eviction_of=eviction_of,
                        entered=entered,
                    )
                )

        def stops() -> bool:
            nonlocal watch
            if watch is not None and worker.round_index > todo[-1]:
                tell()
                todo.pop()
            if not todo:
                return True
            if watch is None and worker.round_index == todo[-1]:
                watch = Watch(worker)
            return stop is not None and stop()

        replay.progress, replay.stop = progress, stops
        replay.play()
        tell()  # of the last round of all, after which nothing is asked whether to stop
        return told

    def _worker(self, replay: Disaggregated) -> Worker:
        return replay.workers[self.at]
