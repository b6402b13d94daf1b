"""The report of a run that was kept: that of its replay, and whether it was ever finished."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.text import Text

from kvplan.explain.record import Record
from kvplan.replay.run import RunSummary
from kvplan.replay.store import SUMMARY
from kvplan.replay.workers_summary import WorkersSummary
from kvplan.reports.columns import folded
from kvplan.reports.replay import replay_text
from kvplan.reports.replay_units import counted

LABEL = 12


def kept_workers(directory: Path) -> WorkersSummary | None:
    """The summary of a run through prefill and decode workers; None: the directory holds none."""
    try:
        return msgspec.json.decode((directory / SUMMARY).read_bytes(), type=WorkersSummary)
    except (OSError, msgspec.DecodeError):
        return None


def kept_json(summary: RunSummary, unfinished: bool) -> str:
    """The summary as ``replay-trace`` writes it, and ``unfinished``: whether it was cut short."""
    fields = msgspec.to_builtins(summary)
    return (
        msgspec.json.format(msgspec.json.encode({**fields, "unfinished": unfinished}), indent=2).decode()
        + "\n"
    )


def kept_text(summary: RunSummary, unfinished: bool, where: str, width: int) -> Text:
    """The report at ``width`` columns."""
    report = replay_text(summary, width)
    if unfinished:
        for line in folded("warning", _unfinished(where, summary.figures.rounds.total), width, LABEL):
            report.append(line + "\n", style="yellow")
    return report


def cut_short(record: Record) -> str | None:
    """That a run is unfinished, in words; None: it is not."""
    return _unfinished(str(record.directory), len(record.table("rounds"))) if record.unfinished else None


def _unfinished(where: str, rounds: int) -> str:
    kept = counted(rounds, "round")
    return f"{where} is unfinished: its replay was cut short, or still goes on; what is kept are {kept}"
