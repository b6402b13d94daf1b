"""`kvplan report`: the summary of a kept run again.

Imports nothing heavy before the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.commands.errors import FINDING, INTERRUPTED
from kvplan.commands.options import Format, OutputFormat
from kvplan.commands.printing import print_json, print_text

if TYPE_CHECKING:
    from kvplan.explain.record import Record

RunDirectory = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run that replay-trace --output has kept.", show_default=False)
]


def report(run: RunDirectory, format: Format = OutputFormat.text) -> int:
    """Print the summary of a run again, as replay-trace printed it.

    An unfinished run (interrupted, killed, or still going on) is told of as far as it was kept. Exit status as
    of replay-trace.
    """
    from kvplan.explain.record import summary_of
    from kvplan.replay.play import Ending
    from kvplan.reports.disaggregated import workers_json, workers_text
    from kvplan.reports.kept_run import kept_json, kept_text, kept_workers

    workers = kept_workers(run)
    if workers is not None:
        if format is OutputFormat.json:
            print_json(workers_json(workers))
        else:
            print_text(lambda width: workers_text(workers, width))
        return 0 if workers.ending == "complete" else FINDING
    summary, unfinished = summary_of(run)
    if format is OutputFormat.json:
        print_json(kept_json(summary, unfinished))
    else:
        print_text(lambda width: kept_text(summary, unfinished, str(run), width))
    if summary.ending is Ending.INTERRUPTED:
        return INTERRUPTED
    return 0 if summary.ending is Ending.COMPLETE else FINDING


def note_build(record: Record) -> None:
    """Say on stderr of a run that another build has kept, why asking it takes longer."""
    import sys

    if record.foreign:
        print(
            f"kvplan: {record.directory} was kept by another build; it is played again from its first round, and "
            "its plans are compared with those that were kept",
            file=sys.stderr,
        )
