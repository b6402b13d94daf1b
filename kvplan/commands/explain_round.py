"""`kvplan explain-round`: why the scheduler did what it did in a round.

Imports nothing heavy before the command runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.options import Format, OutputFormat
from kvplan.commands.printing import print_json, print_text
from kvplan.commands.report import note_build
from kvplan.commands.sessions import given_of, session_of, session_options
from kvplan.commands.watching import ctrl_c, progress_bar

if TYPE_CHECKING:
    from kvplan.explain.cures import Cure
    from kvplan.explain.history import Source
    from kvplan.explain.live import Live
    from kvplan.explain.record import Record
    from kvplan.replay.dead_end import DeadEnd
    from kvplan.replay.run import RunSummary
    from kvplan.replay.session import Session
    from kvplan.replay.worker_inputs import WorkerInputs

MOST = 8
"""Rounds of one request that are explained unless --all is given."""


@session_options
def explain_round(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|TRACE...",
            help="A run that replay-trace --output has kept, or a trace to replay (with --deployment).",
            show_default=False,
        ),
    ],
    round: Annotated[
        int | None, typer.Option("--round", help="This round; the first one is 0.", show_default=False)
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(
            "--request",
            metavar="ID",
            help="The rounds that mattered to a request; with --round or --at, what that one meant to it.",
            show_default=False,
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="The round planned last at this time (12.5s, 10m30s).",
            show_default=False,
        ),
    ] = None,
    worker: Annotated[
        str | None,
        typer.Option(
            "--worker",
            metavar="NAME",
            help="The worker it is about, where there are several: prefill-0, decode-1, or P0, D1.",
            show_default=False,
        ),
    ] = None,
    all: Annotated[
        bool, typer.Option("--all", help="Try what would let in every request that waits, not just three.")
    ] = False,
    format: Format = OutputFormat.text,
    *,
    replayed: dict[str, Any],
) -> int:
    """Explain a round: its phases, each request's turn, who waits and why, and what would have let it in.

    From a kept run, or straight from a trace and a deployment. Without --round, --request or --at the rounds
    of the dead end (stall or livelock) in which the replay ends, and what spares it: each way was replayed.
    """
    from kvplan.commands.explain_worker import explain_worker, print_refused
    from kvplan.explain.explanation import DETAILED, explain_next
    from kvplan.explain.history import (
        course_of,
        entries,
        evictions,
        refusal,
        round_at,
        rounds_of,
        sessions_before,
    )
    from kvplan.replay.step_time import parse_moment
    from kvplan.replay.worker_inputs import WorkerInputs
    from kvplan.reports.explain_round import rounds_json, rounds_text

    if round is not None and at is not None:
        raise ValueError("--round and --at are given; one of them is expected")
    seconds = None if at is None else parse_moment(at, "--at")
    made = _made(run, replayed)
    if isinstance(made, WorkerInputs):
        most = None if all else MOST
        return explain_worker(
            made,
            worker,
            Path(run[0]) if Path(run[0]).is_dir() else None,
            round=round,
            seconds=seconds,
            request=request,
            most=most,
            format=format,
        )
    if worker is not None:
        raise ValueError(f"--worker {worker} is given; the replay is that of one engine")
    source, summary, lockstep = _source(made, round, seconds, request)
    dead_end = course = None
    if round is None and seconds is None and request is not None:
        never = refusal(source, request, summary().figures.requests.limit_tokens)
        if never is not None:
            print_refused(never, format)
            return 0
        wanted = rounds_of(source, request)
        course = course_of(source, request)
    elif round is not None:
        wanted = [round]
    elif seconds is not None:
        wanted = [round_at(source, seconds)]
    else:
        dead_end = summary().dead_end
        wanted = _cycle(dead_end)
    left = 0 if all else max(len(wanted) - MOST, 0)
    known, entered = evictions(source), entries(source)
    explanations = [
        explain_next(
            session,
            request_id=request,
            detailed=None if all else DETAILED,
            eviction_of=known,
            entered=entered,
        )
        for session in sessions_before(source, wanted[: len(wanted) - left])
    ]
    cures, stopped = _cures(source, summary()) if dead_end is not None else ([], False)
    if format is OutputFormat.json:
        print_json(rounds_json(explanations, wanted, dead_end, cures, stopped, course))
    else:
        print_text(
            lambda width: rounds_text(
                explanations, width, lockstep, request, wanted, dead_end, cures, stopped, course
            )
        )
    return 0


def _made(run: list[str], replayed: dict[str, Any]) -> Record | Session | WorkerInputs:
    """What is asked: a kept run, or what its trace and deployment make."""
    for name in run:
        if name != "-" and not Path(name).exists():
            raise ValueError(
                f"{name} is not there; a run that replay-trace --output has kept, or a trace, is expected"
            )
    if len(run) == 1 and Path(run[0]).is_dir():
        from kvplan.explain.kept_workers import read_inputs
        from kvplan.explain.record import open_record

        given = given_of(replayed)
        if given:
            raise ValueError(
                f"{run[0]} is a run, and {given[0]} is given; a run has its own trace and deployment"
            )
        return read_inputs(Path(run[0])) or open_record(Path(run[0]))
    return session_of(run, replayed)


def _source(
    made: Record | Session, round: int | None, seconds: float | None, request: str | None
) -> tuple[Source, Callable[[], RunSummary], bool]:
    """What is asked, its figures so far, and whether its times are rounds."""
    from kvplan.explain.live import Live
    from kvplan.explain.record import Record

    if isinstance(made, Record):
        note_build(made)
        return made, lambda: made.summary, made.start.assumptions.step_time.lockstep
    live = Live(made)
    _play(live, round, seconds, request)
    return live, lambda: made.run(live.ending, live.dead_end).summary, made.engine.step_time.lockstep


def _play(live: Live, round: int | None, seconds: float | None, request: str | None) -> None:
    """Play as far as the question needs."""
    from kvplan.replay.step_time import NS

    def enough(session: Session) -> bool:
        engine = session.engine
        if round is not None:
            return engine.round_index > round
        if seconds is not None:
            return engine.now_ns > seconds * NS
        return request is not None and any(flight.request_id == request for flight in engine.ended_now)

    with progress_bar(len(live.request_ids)) as progress, ctrl_c() as stop:
        live.play(enough, progress=progress, stop=stop)


def _cycle(dead_end: DeadEnd | None) -> list[int]:
    """The rounds of a dead end: the last one of a stall, a livelock's last time round."""
    if dead_end is None:
        raise ValueError("the replay has no dead end to explain; --round, --request or --at is expected")
    return list(range(dead_end.round - max(dead_end.period_rounds, 1) + 1, dead_end.round + 1))


def _cures(source: Source, summary: RunSummary) -> tuple[list[Cure], bool]:
    from kvplan.explain.cures import Cures

    with progress_bar(len(source.request_ids)) as progress, ctrl_c() as stop:
        return list(Cures(lambda: source.session_at(0), summary, progress, stop).found()), stop()
