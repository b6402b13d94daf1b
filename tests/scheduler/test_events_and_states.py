"""Which event is taken, ignored or refused in which state (engine.md §9)."""

from typing import Any

import pytest

from kvplan.scheduler import PD, Cache, ForwardEvent
from tests.support.engine import Engine, inputs
from tests.support.groups import config

STATES = (
    "Bootstrapping",
    "Submitted",
    "RemotePrefilling",
    "Prefilling",
    "PrefillAwaitingResult",
    "PrefillDone",
    "Decoding",
    "Retracted",
    "Finished",
)
HOLDING = ("RemotePrefilling", "Prefilling", "PrefillAwaitingResult", "PrefillDone", "Decoding")


def engine_with_a(state: str, role: str) -> Engine:
    """An engine whose request ``a`` is in a state; ``role`` is one that has the state."""
    engine = Engine(config(role=role, chunk=8))
    if state == "Bootstrapping":
        from kvplan.scheduler import RequestSpec

        engine.scheduler.submit_requests([RequestSpec("a", list(range(12)))])
        return engine
    engine.submit("a", 12)
    if state == "Submitted":
        return engine
    if role == "D":
        engine.step()
        if state in ("PrefillDone", "Decoding", "Retracted", "Finished"):
            engine.tell(PD.RemotePrefillDoneEvent("a", 5))
        if state == "Decoding":
            engine.step()
    else:
        engine.step()
        if state not in ("Prefilling", "Retracted", "Finished"):
            plan = engine.plan()
            if state != "PrefillAwaitingResult":
                engine.land(plan)
        if state == "Decoding":
            engine.step()
    if state == "Retracted":
        engine.tell(ForwardEvent.Retract("a"))
    if state == "Finished":
        engine.abort("a")
    return engine


def role_of(state: str) -> str:
    if state in ("Bootstrapping", "RemotePrefilling"):
        return "D"
    return "P" if state == "PrefillAwaitingResult" else "Fused"


TAKEN: dict[str, dict[str, str]] = {
    "Bootstrapped": {"Bootstrapping": "Submitted"},
    "ExtendResult without tokens": {state: state for state in HOLDING},
    "ExtendResult with a token": {
        "PrefillAwaitingResult": "PrefillDone",
        "PrefillDone": "PrefillDone",
        "Decoding": "Decoding",
    },
    "Finish": {"PrefillDone": "Finished", "Decoding": "Finished", "Retracted": "Finished"},
    "Abort": dict.fromkeys(STATES[:-1], "Finished"),
    "Failed": dict.fromkeys(STATES[:-1], "Finished"),
    "Succeeded": {"PrefillDone": "Finished", "Decoding": "Finished"},
    "RemotePrefillDone": {"RemotePrefilling": "PrefillDone"},
    "Retract": dict.fromkeys(HOLDING, "Retracted"),
    "UpdateReserveNumTokens": {"Decoding": "Decoding"},
}
IGNORED: dict[str, tuple[str, ...]] = {
    "Bootstrapped": STATES[1:],
    "RemotePrefillDone": ("PrefillDone", "Decoding", "Finished"),
    "Retract": ("Retracted", "Finished"),
}
EVENTS: dict[str, Any] = {
    "Bootstrapped": lambda: PD.BootstrappedEvent("a"),
    "ExtendResult without tokens": lambda: ForwardEvent.ExtendResult("a", []),
    "ExtendResult with a token": lambda: ForwardEvent.ExtendResult("a", [9]),
    "Finish": lambda: ForwardEvent.Finish("a"),
    "Abort": lambda: ForwardEvent.Abort("a"),
    "Failed": lambda: PD.FailedEvent("a"),
    "Succeeded": lambda: PD.SucceededEvent("a"),
    "RemotePrefillDone": lambda: PD.RemotePrefillDoneEvent("a", 5),
    "Retract": lambda: ForwardEvent.Retract("a"),
    "UpdateReserveNumTokens": lambda: ForwardEvent.UpdateReserveNumTokens("a", 1),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_event_in_state(event: str, state: str) -> None:
    engine = engine_with_a(state, role_of(state))
    assert engine.state("a") == state
    size = engine.scheduler.request_token_size("a")
    told = EVENTS[event]()
    if state in TAKEN[event]:
        engine.tell(told)
        assert engine.state("a") == TAKEN[event][state]
        grown = event == "ExtendResult with a token" or (event == "RemotePrefillDone")
        assert engine.scheduler.request_token_size("a") == size + grown
    elif state in IGNORED.get(event, ("Finished",)):
        engine.tell(told)
        assert engine.state("a") == state
        assert engine.scheduler.request_token_size("a") == size
    else:
        with pytest.raises(RuntimeError) as error:
            engine.tell(told)
        assert "'a'" in str(error.value)
        assert type(told).__name__ in str(error.value)
        assert state in str(error.value)
    engine.scheduler.check_invariants()


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_for_an_unknown_request_is_ignored(event: str) -> None:
    engine = Engine(config())
    engine.tell(EVENTS[event]())
    assert engine.state("a") == "Unknown"


@pytest.mark.parametrize("event", [Cache.WriteBackDoneEvent(3), Cache.LoadBackDoneEvent(3, True)])
@pytest.mark.parametrize("host", [0, 8])
def test_the_end_of_an_unknown_transfer_is_ignored(event: Any, host: int) -> None:
    Engine(config(host=host)).tell(event)


def test_what_is_no_event_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="str"):
        Engine(config()).tell("Abort")


def test_a_finish_is_refused_while_a_transfer_holds_the_pages() -> None:
    """On P every page-holding state is pinned, so only a retracted request may finish."""
    engine = engine_with_a("PrefillDone", "P")
    assert engine.scheduler.pd_transfer_pinned("a")
    with pytest.raises(RuntimeError, match="'a': Finish cannot happen in state PrefillDone"):
        engine.finish("a")


def test_a_negative_bootstrap_token_is_a_value_error() -> None:
    engine = engine_with_a("RemotePrefilling", "D")
    with pytest.raises(ValueError, match="bootstrap_token is -1"):
        engine.tell(PD.RemotePrefillDoneEvent("a", -1))


def test_a_finished_request_is_known_until_the_next_plan() -> None:
    engine = engine_with_a("Finished", "Fused")
    assert engine.scheduler.request_token_size("a") == 12
    engine.plan()
    assert engine.scheduler.request_token_size("a") == -1
    engine.submit("a", 3)
    assert inputs(engine.plan()) == {"a": 3}


def test_events_are_taken_in_order_those_before_a_refused_one_included() -> None:
    engine = engine_with_a("Decoding", "Fused")
    with pytest.raises(RuntimeError):
        engine.tell(
            ForwardEvent.ExtendResult("a", [1]),
            PD.RemotePrefillDoneEvent("a", 1),
            ForwardEvent.Retract("a"),
            ForwardEvent.ExtendResult("a", [2]),
        )
    assert engine.scheduler.request_token_size("a") == 12 + 2 + 1
    assert engine.state("a") == "Retracted"


@pytest.mark.parametrize(
    ("state", "counts"),
    [
        ("Bootstrapping", (1, 0, 0, 0, 0, 0)),
        ("Submitted", (0, 1, 0, 0, 0, 0)),
        ("RemotePrefilling", (0, 0, 1, 0, 1, 1)),
        ("Prefilling", (0, 0, 1, 0, 0, 0)),
        ("PrefillAwaitingResult", (0, 0, 1, 0, 0, 1)),
        ("PrefillDone", (0, 0, 1, 0, 0, 0)),
        ("Decoding", (0, 0, 0, 1, 0, 0)),
        ("Retracted", (0, 1, 0, 0, 0, 0)),
        ("Finished", (0, 0, 0, 0, 0, 0)),
    ],
)
def test_counts_by_state(state: str, counts: tuple[int, ...]) -> None:
    """Bootstrapping, waiting, prefilling, decoding, remote prefilling, PD transfers."""
    scheduler = engine_with_a(state, role_of(state)).scheduler
    assert counts == (
        scheduler.bootstrapping_size(),
        scheduler.waiting_size(),
        scheduler.prefilling_size(),
        scheduler.decoding_size(),
        scheduler.remote_prefilling_size(),
        scheduler.pd_transfer_size(),
    )
    assert scheduler.pd_transfer_pinned("a") == bool(counts[-1])
    assert not scheduler.pd_transfer_pinned("nobody")
