"""The engine's own runs: every plan, page and counter the same, every round, told to a journal or not."""

from typing import Any

import pytest

from kvplan.scheduler import ExecutionPlan
from kvplan.scheduler.journal import Attempt, Journal
from tests.support.drive import Run
from tests.support.scenario import load_recording, recording_names

NAMES = recording_names()


def test_all_247_recordings_are_there() -> None:
    assert len(NAMES) == 247


@pytest.mark.parametrize("name", NAMES)
def test_recording_plays_identically(name: str) -> None:
    recording = load_recording(name)
    plays_as_recorded(Run(recording["scenario"]), recording["result"])


@pytest.mark.parametrize("name", NAMES)
def test_recording_plays_identically_while_a_journal_is_kept(name: str) -> None:
    recording = load_recording(name)
    run = Run(recording["scenario"], check=False)
    run.scheduler.journal = journal = Journal()
    plays_as_recorded(run, recording["result"], journal)


def plays_as_recorded(run: Run, expected: dict[str, Any], journal: Journal | None = None) -> None:
    assert run.scheduler.max_single_request_tokens() == expected["max_single_request_tokens"]
    rounds = 0
    for rounds, plan in enumerate(run.rounds(), 1):
        assert rounds <= len(expected["rounds"]), "the engine was done before this round"
        assert run.record(plan) == expected["rounds"][rounds - 1], f"round {rounds - 1}"
        if journal is not None:
            assert told(journal) == planned(plan), f"round {rounds - 1}"
    assert rounds == len(expected["rounds"])
    assert sorted(run.rejected) == expected["rejected"]
    assert sorted(run.live) == expected["unfinished"]


def told(journal: Journal) -> list[str]:
    """Whom the newest round has scheduled, as the journal tells it."""
    assert journal.round is not None
    done = ("scheduled", "incomplete")
    entries = journal.round.entries
    return sorted(one.request_id for one in entries if isinstance(one, Attempt) and one.outcome in done)


def planned(plan: ExecutionPlan) -> list[str]:
    """Whom a plan has."""
    batches = [*plan.forward, plan.remote_prefill, plan.remote_decode]
    return sorted(name for batch in batches if batch is not None for name in batch.request_ids)
