"""Two runs side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvplan.explain.comparison import Comparison, compare
from kvplan.explain.record import Record
from kvplan.replay.session import Session, begin
from kvplan.reports.comparison import comparison_text
from tests.explain.runs import crowd, kept, undeclared
from tests.replay.small import config, row, trace


def run(session: Session, tmp_path: Path, name: str) -> Record:
    return kept(session, tmp_path / name)


def text(found: Comparison) -> str:
    return comparison_text(found, ("a", "b"), 100).plain


def test_the_same_run_twice_has_the_same_plans(tmp_path: Path) -> None:
    found = compare(run(crowd(), tmp_path, "a"), run(crowd(), tmp_path, "b"))
    assert found.parting is None
    assert found.settings == []
    assert "every plan is the same" in text(found)


def test_plans_part_where_the_first_of_them_differs(tmp_path: Path) -> None:
    first, second = run(crowd(20), tmp_path, "a"), run(crowd(21), tmp_path, "b")
    found = compare(first, second)
    assert found.parting is not None
    at = found.parting.round
    left, right = first.table("plans")["plan"], second.table("plans")["plan"]
    assert left[:at].equals(right[:at])
    assert left[at] != right[at]
    assert found.same_rounds == at


def test_the_reason_is_what_each_scheduler_said_of_the_request(tmp_path: Path) -> None:
    found = compare(run(crowd(20), tmp_path, "a"), run(crowd(40), tmp_path, "b"))
    assert found.parting is not None
    first = found.parting.differences[0]
    assert first.first.attempt is not None
    assert first.second.attempt is not None
    assert first.first.attempt.outcome == "no_capacity"
    assert first.second.attempt.outcome in ("scheduled", "incomplete")
    assert "not now" in text(found)


def test_what_was_given_differently_is_named(tmp_path: Path) -> None:
    found = compare(run(crowd(20), tmp_path, "a"), run(crowd(40), tmp_path, "b"))
    given = {pair.name: (pair.first, pair.second) for pair in found.settings}
    assert given["config.num_device_pages"] == (21, 41)
    figures = {pair.name: (pair.first, pair.second) for pair in found.figures}
    assert figures["pool.blocks"] == (20, 40)


def test_runs_of_different_traces_are_compared_by_their_figures_alone(tmp_path: Path) -> None:
    found = compare(run(crowd(), tmp_path, "a"), run(undeclared(), tmp_path, "b"))
    assert not found.same_trace
    assert found.parting is None
    assert "different traces" in text(found)


def test_runs_that_cannot_be_gone_back_to_part_without_a_reason(tmp_path: Path) -> None:
    first, second = run(crowd(20), tmp_path, "a"), run(crowd(21), tmp_path, "b")
    known = compare(first, second)
    second.start = replace(second.start, code="another", inputs=None)
    found = compare(first, second)
    assert known.parting is not None
    assert found.parting is not None
    assert found.parting.round == known.parting.round
    assert (found.figures, found.same_rounds) == (known.figures, known.same_rounds)
    assert "another build" in (found.parting.untold or "")
    assert "it is not told why: " in text(found)
    assert "plans part in round" in text(found)


def test_chunks_of_one_length_behind_different_hits_are_different_plans(tmp_path: Path) -> None:
    rows = [
        row(0, 300, 2, prefix=[{"id": "s", "tokens": 64}]),
        row(1, 300, 2, prefix=[{"id": "s", "tokens": 64}]),
    ]
    made, other = config(64), config(64)
    other.disable_prefix_cache = True
    found = compare(
        run(begin(trace(*rows), made), tmp_path, "a"), run(begin(trace(*rows), other), tmp_path, "b")
    )
    assert found.parting is not None
    [difference] = found.parting.differences
    cuts = [turn.attempt and turn.attempt.cut for turn in (difference.first, difference.second)]
    assert [(cut.first, cut.tokens) for cut in cuts if cut] == [(64, 64), (0, 64)]
