"""A session that is kept and taken up again goes on as if nothing had happened."""

from __future__ import annotations

import pickle

import pytest
import zstandard

from kvplan.explain import states
from kvplan.replay.session import Session
from kvplan.scheduler.reading import StateError
from tests.explain.runs import hosted, sessions


def again(session: Session) -> Session:
    return states.load(
        states.save(session), session.trace, session.config, session.deployment, session.assumptions
    )


@pytest.mark.parametrize("name", [name for name, _ in sessions()])
def test_a_session_taken_up_again_plays_what_the_one_that_went_on_does(name: str) -> None:
    whole = dict(sessions())[name]
    while not (whole.round >= 20 and whole.engine.gained_now):
        whole.play(whole.round + 1)
    at = len(whole.engine.events)
    resumed = again(whole)
    for session in (whole, resumed):
        session.play()
    assert resumed.engine.key() == whole.engine.key()
    assert resumed.engine.now_ns == whole.engine.now_ns
    assert resumed.engine.events.table().equals(whole.engine.events.table().slice(at))
    assert resumed.engine.totals == whole.engine.totals


def test_keeping_a_state_changes_nothing_of_the_session() -> None:
    left, right = hosted(), hosted()
    left.play(30)
    states.save(left)
    for session in (left, right):
        session.play()
    assert left.engine.events.table().equals(right.engine.events.table())


def test_a_state_leaves_out_prompts_and_logs() -> None:
    session = hosted()
    session.play(30)
    logged = len(session.engine.rounds)
    assert logged == 30
    assert len(again(session).engine.rounds) == 0


def test_a_state_that_names_anything_foreign_is_refused() -> None:
    with pytest.raises(StateError, match=r"print, which no state"):
        states.expanded(zstandard.compress(pickle.dumps(print)))


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(StateError, match="cannot be read"):
        states.expanded(b"nothing of ours")
    session = hosted()
    with pytest.raises(StateError, match="2 parts are expected"):
        states.load(states.compressed(7), session.trace, session.config, "", session.assumptions)


def test_a_state_with_one_byte_changed_is_refused() -> None:
    session = hosted()
    session.play(30)
    data = states.save(session)
    for at in range(20, len(data), len(data) // 40):
        damaged = bytearray(data)
        damaged[at] ^= 0x55
        with pytest.raises(StateError, match="cannot be read"):
            states.load(bytes(damaged), session.trace, session.config, "", session.assumptions)
