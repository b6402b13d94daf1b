"""`kvplan prefix`: what a run's prompts found cached, and why the rest missed.

Imports nothing heavy before the command runs.
"""

from __future__ import annotations

from kvplan.commands.options import Format, OutputFormat
from kvplan.commands.printing import print_json, print_text
from kvplan.commands.report import RunDirectory


def prefix(run: RunDirectory, format: Format = OutputFormat.text) -> int:
    """Tell what prompts hit by tier, why misses missed, who evicted what, and what an infinite cache would do."""
    from kvplan.explain.prefix_story import prefix_story
    from kvplan.explain.record import open_record
    from kvplan.reports.kept_run import cut_short
    from kvplan.reports.prefix_story import prefix_json, prefix_text

    record = open_record(run)
    story = prefix_story(record, record.trace, record.config)
    if format is OutputFormat.json:
        print_json(prefix_json(story, record.unfinished))
    else:
        print_text(lambda width: prefix_text(story, width, cut_short(record)))
    return 0
