"""`kvplan retractions`: what a run's retractions cost, where they come from, and what spares them.

Imports nothing heavy before the command runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.commands.options import Format, OutputFormat
from kvplan.commands.printing import print_json, print_text
from kvplan.commands.report import RunDirectory, note_build
from kvplan.commands.watching import ctrl_c, progress_bar

if TYPE_CHECKING:
    from kvplan.explain.cures import Cure
    from kvplan.explain.record import Record


def retractions(
    run: RunDirectory,
    all: Annotated[bool, typer.Option("--all", help="Show every retraction and request.")] = False,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay/--no-replay",
            help="Replay the run with a larger pool, a smaller batch, declared budgets; Ctrl-C ends the search.",
        ),
    ] = True,
    format: Format = OutputFormat.text,
) -> int:
    """Tell of a run's retractions: each one, per request, storms and who evicts whom, and what to do.

    What is proposed was tried: the run is replayed with it (some ten replays at most).
    """
    from kvplan.explain.record import open_record
    from kvplan.explain.retractions import story_of
    from kvplan.reports.kept_run import cut_short
    from kvplan.reports.retractions import retractions_json, retractions_text

    record = open_record(run)
    summary = record.summary
    tokens = summary.figures.tokens
    story = story_of(record, tokens.computed_again, tokens.recomputed_share)
    tried = bool(replay and story.rows) and _plays_again(record)
    cures, stopped = _cures(record) if tried else ([], False)
    if format is OutputFormat.json:
        print_json(retractions_json(story, cures, tried, stopped, record.unfinished))
    else:
        lockstep = summary.assumptions.step_time.lockstep
        said = cut_short(record)
        print_text(lambda width: retractions_text(story, cures, tried, width, lockstep, all, stopped, said))
    return 0


def _plays_again(record: Record) -> bool:
    """Whether this build plans the run as it was kept; if not, what is replayed now says nothing of it."""
    import sys

    from kvplan.replay.store import RunError

    note_build(record)
    try:
        record.check_again()
    except RunError as error:
        print(f"kvplan: what would spare the retractions was not tried: {error}", file=sys.stderr)
        return False
    return True


def _cures(record: Record) -> tuple[list[Cure], bool]:
    from kvplan.explain.cures import Cures

    with progress_bar(len(record.trace)) as progress, ctrl_c() as stop:
        found = list(Cures(record.begun, record.summary, progress, stop).found())
        return found, stop()
