"""The story of a run's retractions, and the cures that were replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvplan.explain.cures import Cures, pool_of
from kvplan.explain.record import Record
from kvplan.explain.retractions import cycles, story_of
from kvplan.replay.session import begin
from kvplan.reports.retractions import retractions_text
from tests.explain.runs import crowd, hosted, kept, undeclared
from tests.replay.small import config, row, trace


@pytest.fixture(scope="module")
def pressed(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A run whose requests evict each other."""
    return kept(undeclared(), tmp_path_factory.mktemp("runs") / "run", every=1_000)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The same with a host tier."""
    return kept(hosted(), tmp_path_factory.mktemp("runs") / "run", every=1_000)


def test_every_retraction_is_told_once_in_order(pressed: Record) -> None:
    story = story_of(pressed, 0, 0.0)
    events = pressed.table("events")
    told = [(row.round, row.request_id) for row in story.rows]
    assert told == list(
        events.filter(events["event"] == "retracted").select("round", "request_id").iter_rows()
    )
    assert sum(victim.retractions for victim in story.victims) == len(story.rows)


@pytest.mark.parametrize("name", ["pressed", "stored"])
def test_what_was_computed_again_adds_up_to_the_runs_own_count(
    name: str, request: pytest.FixtureRequest
) -> None:
    made: Record = request.getfixturevalue(name)
    story = story_of(made, 0, 0.0)
    assert sum(row.again or 0 for row in story.rows) == made.summary.figures.tokens.computed_again
    assert made.summary.figures.tokens.computed_again > 0


def test_it_adds_up_where_the_run_ends_before_a_victim_is_back_where_it_was(tmp_path: Path) -> None:
    made = kept(undeclared(mixed=False), tmp_path / "run")
    assert made.summary.dead_end is not None
    story = story_of(made, 0, 0.0)
    assert sum(row.again or 0 for row in story.rows) == made.summary.figures.tokens.computed_again


def test_what_came_back_is_told_by_tier(pressed: Record, stored: Record) -> None:
    assert not any(row.from_host for row in story_of(pressed, 0, 0.0).rows)
    assert any(row.from_host for row in story_of(stored, 0, 0.0).rows)


def test_headroom_grows_with_each_retraction_where_the_budget_is_declared(tmp_path: Path) -> None:
    rows = [row(0.01 * i, 160, 6_000, max_new_tokens=20_000) for i in range(4)]
    made = kept(begin(trace(*rows), config(1_270, chunk=512)), tmp_path / "run", every=10_000)
    told = [one for one in story_of(made, 0, 0.0).rows if one.readmitted_round is not None]
    assert told
    first = told[0]
    assert first.headroom_before == 4_096
    assert first.headroom_after == 2 * 4_096


def test_storms_have_who_evicts_whom(pressed: Record) -> None:
    story = story_of(pressed, 0, 0.0)
    [storm] = story.storms
    assert storm.retractions == len(story.rows)
    assert storm.undeclared == storm.requests
    assert any(len(ring) >= 2 for ring in storm.cycles)
    text = retractions_text(story, [], False, 100).plain
    assert "without a declared max_new_tokens" in text
    assert " ⇄ " in text


def test_of_many_storms_the_costly_ones_are_shown_in_order(pressed: Record) -> None:
    story = story_of(pressed, 0, 0.0)
    [storm] = story.storms
    many = replace(story, storms=[replace(storm, again=again) for again in (7, 9, 1, 8, 2, 6, 5)])
    shown = retractions_text(many, [], False, 100).plain
    numbers = [line.split()[1] for line in shown.splitlines() if line.startswith("storm ")]
    assert numbers == ["1:", "2:", "4:", "6:", "7:"]
    assert "and 2 storms that cost less (--all)" in shown
    assert retractions_text(many, [], False, 100, everything=True).plain.count("storm   ") == 7


def test_a_search_that_was_stopped_says_so_and_claims_nothing(pressed: Record) -> None:
    assert list(Cures(lambda: pressed.session_at(0), pressed.summary, stop=lambda: True).found()) == []
    story = story_of(pressed, 0, 0.0)
    stopped = retractions_text(story, [], True, 100, stopped=True).plain
    assert "stopped by Ctrl-C" in stopped
    assert "none halves them" not in stopped
    assert "none halves them" in retractions_text(story, [], True, 100).plain


def test_a_cycle_needs_a_way_back() -> None:
    assert cycles([("a", "b"), ("b", "c")]) == []
    assert cycles([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]) == [["a", "b", "c"]]
    assert cycles([("a", "a"), (None, "a")]) == []


def test_each_cure_does_what_it_says_when_it_is_replayed(pressed: Record) -> None:
    cures = list(Cures(lambda: pressed.session_at(0), pressed.summary).found())
    assert [cure.flag.split()[0] for cure in cures] == [
        "--max-new-tokens",
        "--pool-blocks",
        "--max-batch-size",
    ]
    now = pressed.summary.figures.retractions.count
    for cure in cures:
        flag, value = cure.flag.split()
        session = undeclared(int(value)) if flag == "--pool-blocks" else undeclared()
        if flag == "--max-new-tokens":
            session = session.changed(max_new_tokens=int(value))
        if flag == "--max-batch-size":
            session = undeclared(batch=int(value))
        run = session.run(*session.play())
        assert run.summary.figures.retractions.count == cure.retractions <= now / 2
        assert run.summary.figures.duration_s == cure.duration_s


def test_a_pool_is_made_larger_with_its_groups() -> None:
    made = pool_of(config(16), 32)
    assert (made.num_device_pages, made.cache_groups[0].total_pages) == (33, 33)


def test_a_run_without_retractions_says_so(tmp_path: Path) -> None:
    story = story_of(kept(crowd(), tmp_path / "run"), 0, 0.0)
    assert retractions_text(story, [], False, 80).plain == "RESULT  no retraction\n"
