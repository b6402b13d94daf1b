"""What would have let a waiting request in does, and one unit less does not."""

from __future__ import annotations

import pytest

from kvplan.explain.explanation import explain_next
from kvplan.explain.remedies import Trials, scheduled
from kvplan.explain.witness import witness
from kvplan.replay.session import Session, begin
from kvplan.scheduler import ExecutionPlan, Scheduler
from kvplan.scheduler.what_if import with_batch, with_blocks, with_budget, with_max_new_tokens
from tests.explain.runs import crowd, sessions
from tests.replay.small import config, row, trace

STEP = 9
"""Every so many rounds of a replay are looked at."""


def enters(scheduler: Scheduler, request_id: str) -> bool:
    return request_id in scheduled(scheduler.next_execution_plan())


def submitted(session: Session) -> Scheduler:
    """The scheduler just before its next plan, everything submitted: a copy."""
    return witness(session).before


def played(name: str) -> Session:
    return dict(sessions())[name]


@pytest.mark.parametrize("name", [name for name, _ in sessions()])
def test_granting_what_it_says_admits_and_one_unit_less_does_not(name: str) -> None:
    looked_at = 0
    for at in range(STEP, 400, STEP):
        told, plain = played(name), played(name)
        for session in (told, plain):
            session.play(at)
        if told.round != at or not told.engine.live:
            break
        explanation = explain_next(told, detailed=None)
        before = submitted(plain)
        batch, budget = told.config.max_batch_size, told.config.max_scheduled_tokens
        for wait in explanation.waits:
            ways, who = wait.remedies, wait.request_id
            assert ways is not None
            assert not enters(with_blocks(before, 0), who)
            if ways.extra_blocks is not None:
                assert enters(with_blocks(before, ways.extra_blocks), who)
                assert not enters(with_blocks(before, ways.extra_blocks - 1), who)
            if ways.max_scheduled_tokens is not None:
                assert ways.max_scheduled_tokens > budget
                assert enters(with_budget(before, ways.max_scheduled_tokens), who)
                assert not enters(with_budget(before, ways.max_scheduled_tokens - 1), who)
            if ways.max_batch_size is not None:
                assert ways.max_batch_size > batch
                assert enters(with_batch(before, ways.max_batch_size), who)
                assert not enters(with_batch(before, ways.max_batch_size - 1), who)
            if ways.max_new_tokens is not None:
                assert ways.max_new_tokens < wait.max_new_tokens
                assert enters(with_max_new_tokens(before, who, ways.max_new_tokens), who)
                assert not enters(with_max_new_tokens(before, who, ways.max_new_tokens + 1), who)
            looked_at += 1
    assert looked_at > 5


@pytest.mark.parametrize(
    ("session", "way"),
    [
        (crowd(20), "extra_blocks"),
        (crowd(40, batch=2), "max_batch_size"),
        (crowd(64, chunk=16), "max_scheduled_tokens"),
    ],
)
def test_the_setting_that_is_short_is_the_one_that_helps(session: Session, way: str) -> None:
    session.play(20)
    first = explain_next(session).waits[0]
    assert first.remedies is not None
    assert getattr(first.remedies, way) is not None


def test_a_smaller_declared_budget_is_found_where_headroom_is_what_lacks() -> None:
    from kvplan.replay.session import begin

    rows = [row(0, 64, 4, max_new_tokens=4), row(0, 32, 4, max_new_tokens=100)]
    session = begin(trace(*rows), config(10, chunk=256))
    [wait] = explain_next(session).waits
    assert wait.request_id == "r1"
    assert wait.remedies is not None
    # 10 blocks of 16 tokens: r0 takes 5 (64 + 4), and r1 has 5 left for 32 and what it declares.
    assert wait.remedies.max_new_tokens == 5 * 16 - 32
    assert wait.remedies.extra_blocks == 9 - 5


def test_many_that_wait_cost_hardly_more_plans_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(0.0, 200 + 13 * i, 4, prefix=[{"id": f"p{i}", "tokens": 200}]) for i in range(40)]
    session = begin(trace(*rows), config(2_000, chunk=64, batch=64))
    session.play(2)
    seen = witness(session)
    trials = Trials(seen.before, session.config)
    plans = 0
    plan = Scheduler.next_execution_plan

    def counted(scheduler: Scheduler) -> ExecutionPlan:
        nonlocal plans
        plans += 1
        return plan(scheduler)

    monkeypatch.setattr(Scheduler, "next_execution_plan", counted)
    waiting = [request.id for request in seen.before.requests() if request.id not in scheduled(seen.plan)]
    budgets = [trials.remedies(who).max_scheduled_tokens for who in waiting]
    assert len(waiting) == 39
    assert all(budget is not None for budget in budgets[:6])
    assert budgets[:6] == sorted(budgets[:6])  # type: ignore[type-var]
    assert plans < 39 * 12
