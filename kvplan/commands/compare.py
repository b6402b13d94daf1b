"""`kvplan compare`: two kept runs side by side.

Imports nothing heavy before the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvplan.commands.options import Format, OutputFormat
from kvplan.commands.printing import print_json, print_text
from kvplan.commands.report import RunDirectory, note_build


def compare(
    run: RunDirectory,
    other: Annotated[Path, typer.Argument(metavar="RUN", help="Another one.", show_default=False)],
    format: Format = OutputFormat.text,
) -> int:
    """Compare two runs: what they were given, what came of it, and the first round where their plans part.

    Exit status 0: every plan is the same; 1: they part.
    """
    from kvplan.commands.errors import FINDING
    from kvplan.explain.comparison import compare as compared
    from kvplan.explain.record import open_record
    from kvplan.reports.comparison import comparison_json, comparison_text

    first, second = open_record(run), open_record(other)
    for record in (first, second):
        note_build(record)
    found = compared(first, second)
    if format is OutputFormat.json:
        print_json(comparison_json(found))
    else:
        lockstep = all(one.summary.assumptions.step_time.lockstep for one in (first, second))
        names = (str(run), str(other))
        print_text(lambda width: comparison_text(found, names, width, lockstep))
    return 0 if found.parting is None and found.ends_first is None and found.same_trace else FINDING
