"""A round's explanation is the scheduler's own record, and follows what the rules read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvplan.explain.explanation import RoundExplanation, explain_next
from kvplan.explain.history import (
    entries,
    evictions,
    refusal,
    round_at,
    rounds_of,
    session_before,
    sessions_before,
)
from kvplan.explain.live import Live
from kvplan.replay.session import Session, begin
from kvplan.replay.store import RunError
from kvplan.reports.explain_round import rounds_json, rounds_text
from kvplan.scheduler.journal import Attempt
from kvplan.scheduler.request import Request
from kvplan.scheduler.rounds.build import PlanBuild
from kvplan.scheduler.rounds.retraction import Retraction
from tests.explain.runs import crowd, hosted, kept, sessions, undeclared
from tests.replay.small import config, row, trace


def rounds(session: Session, most: int = 400) -> Iterator[RoundExplanation]:
    while session.round < most and (session.engine.live or session.round == 0):
        yield explain_next(session, detailed=0)


def reasons(session: Session) -> set[str]:
    """Every reason for which a request was not tried, in the whole replay."""
    return {held.reason for told in rounds(session) for phase in told.phases for held in phase.held}


def attempts(session: Session) -> list[Attempt]:
    return [one for told in rounds(session) for phase in told.phases for one in phase.attempts]


@pytest.mark.parametrize("name", [name for name, _ in sessions()])
def test_explaining_every_round_changes_no_plan(name: str) -> None:
    plain, told = dict(sessions())[name], dict(sessions())[name]
    plain.play()
    for _ in rounds(told, 1_000):
        pass
    told.play()
    assert told.engine.events.table().equals(plain.engine.events.table())
    assert told.engine.rounds.table().equals(plain.engine.rounds.table())


def test_who_is_in_the_plan_is_who_the_phases_say() -> None:
    for name, session in sessions():
        for told in rounds(session, 60):
            done = [
                one.request_id
                for phase in told.phases
                for one in phase.attempts
                if one.outcome in ("scheduled", "incomplete")
            ]
            assert told.scheduled == len(done), (name, told.round)
            assert not set(done) & {wait.request_id for wait in told.waits}


# --- the stated reason follows the rule's input -------------------------------------------------------


def test_a_full_batch_is_the_reason_only_where_the_batch_is_small() -> None:
    small, large = reasons(crowd(64, batch=2)), reasons(crowd(64, batch=24))
    full = {"the batch is full", "no free request slot"}
    assert small & full
    assert not large & full


def test_a_spent_budget_is_the_reason_only_where_the_budget_is_small() -> None:
    assert "the budget is spent" in reasons(crowd(64, chunk=16))
    assert "the budget is spent" not in reasons(crowd(64, chunk=4_096, batch=24))


def test_head_of_line_is_the_reason_only_while_a_prompt_takes_more_than_a_chunk() -> None:
    line = "an incomplete prefill holds the line"
    assert line in reasons(crowd(64, chunk=48))
    assert line not in reasons(crowd(64, chunk=4_096, batch=24))


def test_lack_of_pages_is_the_outcome_only_while_the_pool_is_small() -> None:
    assert any(one.outcome == "no_capacity" for one in attempts(crowd(20)))
    assert not any(one.outcome == "no_capacity" for one in attempts(crowd(400, batch=24)))


def test_new_prompts_are_sealed_behind_a_readmission_only_with_a_snapshot() -> None:
    sealed = "sealed behind the readmission"
    assert sealed in reasons(hosted())
    assert sealed not in reasons(undeclared())


def test_retraction_is_told_with_the_victims_in_their_order() -> None:
    steps = [step for told in rounds(undeclared()) for phase in told.phases for step in phase.retraction]
    taken = [step for step in steps if step.outcome == "retracted"]
    assert taken
    for step in taken:
        open_to_it = [one for one in step.candidates if not one.exempt]
        assert step.victim in {one.request_id for one in open_to_it}
        prefills = [one for one in open_to_it if one.releasable_blocks is None]
        if prefills:
            assert step.victim == max(prefills, key=lambda one: one.tokens).request_id
    assert any(step.outcome.startswith("none: a prefill made progress") for step in steps)


def after_a_victim(session: Session) -> list[str]:
    """What the steps of the first round with a victim came to."""
    for told in rounds(session):
        steps = [step.outcome for phase in told.phases for step in phase.retraction]
        if any(outcome == "retracted" or outcome.startswith("waits: a PD") for outcome in steps):
            return steps
    raise AssertionError("no victim")


@pytest.mark.parametrize(
    ("left", "outcome"), [("budget", "stopped: the budget is spent"), ("room", "stopped: the batch is full")]
)
def test_a_full_round_ends_a_retraction_only_while_it_is_full(
    left: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retraction leaves a round fuller than it found it in no replay that is known: here it does."""
    assert outcome not in after_a_victim(undeclared())
    retract = Retraction.retract

    def and_fills(self: Retraction, build: PlanBuild, victim: Request, grant: Request) -> None:
        retract(self, build, victim, grant)
        setattr(build, left, 0)

    monkeypatch.setattr(Retraction, "retract", and_fills)
    assert after_a_victim(undeclared())[-1] == outcome


def test_a_transfer_keeps_a_victim_only_while_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Victims of today's roles have none in flight: what holds their pages is given here."""
    waits = "waits: a PD transfer holds the victim's pages"
    assert waits not in after_a_victim(undeclared())
    monkeypatch.setattr(Retraction, "transfer_pinned", lambda self, request: True)
    assert after_a_victim(undeclared()) == [waits]


@pytest.mark.parametrize(
    ("change", "rule"),
    [({}, "first token rule"), ({"disable_prefix_cache": True}, "the prefix cache is disabled")],
)
def test_a_hits_limit_names_the_rule_that_set_it(change: dict[str, bool], rule: str) -> None:
    made = config(64, batch=24)
    for name, value in change.items():
        setattr(made, name, value)
    session = begin(trace(row(0, 48, 2), row(1, 48, 2)), made)
    first = attempts(session)[0]
    assert first.hit is not None
    assert first.hit.limit_rule.startswith(rule)


def test_a_hit_that_ends_at_an_evicted_page_says_when_and_for_whom() -> None:
    shared = [{"id": "s", "tokens": 64}]
    rows = [
        row(0, 80, 2, max_new_tokens=2, prefix=shared),
        row(1, 150, 2, max_new_tokens=2),
        row(2, 80, 2, max_new_tokens=2, prefix=shared),
    ]
    live = Live(begin(trace(*rows), config(10, chunk=256)))
    live.play(lambda _: False)
    events = live.table("events")
    admitted = {
        name: at
        for name, at, what in events.select("request_id", "round", "event").iter_rows()
        if what == "admitted"
    }
    told = explain_next(session_before(live, admitted["r2"]), eviction_of=evictions(live), detailed=0)
    [mine] = [one for phase in told.phases for one in phase.attempts if one.request_id == "r2"]
    assert mine.hit is not None
    assert mine.hit.device == 0
    key = next(step.missing_key for step in mine.hit.steps if step.missing_key)
    assert evictions(live)(told.round, 0, bytes.fromhex(key)) == (admitted["r1"], "r1")
    assert evictions(live)(admitted["r1"], 0, bytes.fromhex(key)) is None


# --- which rounds ---------------------------------------------------------------------------------------


def test_the_rounds_of_a_request_are_those_of_its_events_and_its_last_wait(tmp_path: Path) -> None:
    made = kept(undeclared(), tmp_path / "run")
    events = made.table("events")
    victim = events.filter(events["event"] == "retracted")["request_id"][0]
    wanted = rounds_of(made, victim)
    mine = events.filter(events["request_id"] == victim)
    assert set(mine.filter(mine["event"] == "retracted")["round"].to_list()) <= set(wanted)
    admitted = mine.filter(mine["event"] == "admitted")["round"].to_list()
    assert set(admitted) <= set(wanted)
    entered = entries(made)
    assert entered(victim, -1) == admitted[0]
    assert entered(victim, admitted[-1]) is None


def test_rounds_explained_in_turn_are_explained_as_each_alone(tmp_path: Path) -> None:
    made = kept(undeclared(), tmp_path / "run", every=25)
    wanted = [3, 4, 9, 60, 61, 62, 100, 7]
    told = [explain_next(session) for session in sessions_before(made, wanted)]
    assert [one.round for one in told] == wanted
    alone = [explain_next(session_before(made, at)) for at in wanted]
    assert rounds_json(told, wanted) == rounds_json(alone, wanted)
    with pytest.raises(RunError, match="the run has rounds 0 to"):
        list(sessions_before(made, [3, 10**6]))


def test_the_round_at_a_time_is_the_one_planned_last_until_then(tmp_path: Path) -> None:
    made = kept(crowd(), tmp_path / "run")
    times = made.table("rounds")["time_s"].to_list()
    assert round_at(made, times[7]) == 7
    assert round_at(made, (times[7] + times[8]) / 2) == 7
    assert round_at(made, 0.0) == 0
    with pytest.raises(RunError, match="the run goes from 0 s to"):
        round_at(made, 1e6)


def test_a_request_that_never_fits_was_refused(tmp_path: Path) -> None:
    rows = [row(0, 5_000, 1), row(0.1, 40, 2)]
    made = kept(begin(trace(*rows), config(20)), tmp_path / "run")
    limit = made.summary.figures.requests.limit_tokens
    never = refusal(made, "r0", limit)
    assert never is not None
    assert (never.needed_tokens, never.limit_tokens) == (5_001, limit)
    assert refusal(made, "r1", limit) is None
    with pytest.raises(RunError, match="not in the trace"):
        rounds_of(made, "r2")


# --- what is printed --------------------------------------------------------------------------------------


def test_explained_twice_and_from_another_state_it_gives_the_same_bytes(tmp_path: Path) -> None:
    sparse, dense = (
        kept(undeclared(), tmp_path / "a", every=1_000),
        kept(undeclared(), tmp_path / "b", every=7),
    )
    assert len(sparse.states) < len(dense.states)
    for at in (5, 40, 77):
        printed = set()
        for made in (sparse, sparse, dense):
            told = explain_next(session_before(made, at), eviction_of=evictions(made), entered=entries(made))
            printed.add((rounds_json([told], [at]), rounds_text([told], 80).plain))
        assert len(printed) == 1


@pytest.mark.parametrize("width", [80, 100])
def test_the_tree_keeps_to_the_width(width: int) -> None:
    for name, session in sessions():
        session.play(30)
        lines = rounds_text([explain_next(session)], width).plain.splitlines()
        assert max(map(len, lines)) <= width, name
        assert sum(line.startswith("RESULT") for line in lines) == 1
