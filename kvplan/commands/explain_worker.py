"""`kvplan explain-round` of one worker of a replay through prefill and decode workers."""

from __future__ import annotations

from pathlib import Path

from kvplan.commands.options import OutputFormat
from kvplan.commands.printing import print_json, print_text
from kvplan.commands.watching import ctrl_c, progress_bar
from kvplan.explain.cures import Cure
from kvplan.explain.explanation import DETAILED
from kvplan.explain.history import (
    Refused,
    course_of,
    entries,
    evictions,
    known_round,
    round_at,
    rounds_of,
)
from kvplan.explain.kept_workers import check_same
from kvplan.explain.worker_cures import WorkerCures
from kvplan.explain.workers import PlayedWorker, worker_named
from kvplan.replay.step_time import NS
from kvplan.replay.worker_inputs import WorkerInputs
from kvplan.replay.workers import Worker
from kvplan.reports.explain_round import refused_json, refused_text, rounds_json, rounds_text


def explain_worker(
    inputs: WorkerInputs,
    worker: str | None,
    kept: Path | None = None,
    *,
    round: int | None,
    seconds: float | None,
    request: str | None,
    most: int | None,
    format: OutputFormat,
) -> int:
    """Explain rounds of a worker, at most ``most`` of them (None: all); return the exit status.

    ``kept`` is the directory that the replay was kept in, if it was. Without a round, a time or a request the last
    round of a replay that stalls or goes round. Raises ValueError.
    """
    played = PlayedWorker(inputs, worker_named(inputs, worker))

    def enough(it: Worker) -> bool:
        if round is not None:
            return it.round_index > round
        if seconds is not None:
            return it.now_ns > seconds * NS
        return request is not None and any(flight.request_id == request for flight in it.finished)

    with progress_bar(len(played.request_ids)) as progress, ctrl_c() as stop:
        played.play(enough, progress=progress, stop=stop)
        if kept is not None:
            check_same(kept, played.name, played.table("rounds"))
        course = ending = None
        if round is not None:
            wanted = [known_round(played, round)]
        elif seconds is not None:
            wanted = [round_at(played, seconds)]
        elif request is not None:
            refused = _refused(played, request)
            if refused is not None:
                print_refused(refused, format)
                return 0
            wanted = rounds_of(played, request)
            course = course_of(played, request)
        elif played.replay.ending in ("stall", "livelock"):
            wanted, ending = [played.worker.round_index - 1], played.replay.ending
        else:
            raise ValueError("the replay has no dead end to explain; --round, --request or --at is expected")
        known, entered = evictions(played), entries(played)
        explanations = played.explain(
            wanted if most is None else wanted[:most],
            request_id=request,
            detailed=None if most is None else DETAILED,
            eviction_of=known,
            entered=entered,
            progress=progress,
            stop=stop,
        )
        cures: list[Cure] = []
        if ending is not None:
            cures = list(WorkerCures(inputs, len(played.replay.refused), progress, stop).found())
        stopped = ending is not None and stop()
    lockstep = played.replay.step_time.lockstep
    if format is OutputFormat.json:
        print_json(
            rounds_json(
                explanations,
                wanted,
                cures=cures,
                stopped=stopped,
                course=course,
                worker=played.name,
                ending=ending,
            )
        )
    else:
        print_text(
            lambda width: rounds_text(
                explanations,
                width,
                lockstep,
                request,
                wanted,
                cures=cures,
                stopped=stopped,
                course=course,
                worker=played.name,
                ending=ending,
            )
        )
    return 0


def print_refused(refused: Refused, format: OutputFormat) -> None:
    """Print why a request never fits."""
    if format is OutputFormat.json:
        print_json(refused_json(refused))
    else:
        print_text(lambda width: refused_text(refused, width))


def _refused(played: PlayedWorker, request: str) -> Refused | None:
    """Return why a request came to no worker, if it is one that no empty pool of theirs could serve."""
    replay = played.replay
    for flight in replay.refused:
        if flight.request_id == request:
            arrived = int(played.table("rounds")["time_s"].search_sorted(flight.arrived_ns / NS))
            needed = max(worker.needed_tokens(flight.row) for worker in replay.workers)
            limit = min(worker.limit_tokens for worker in replay.workers)
            return Refused(request, arrived, needed, limit)
    return None
