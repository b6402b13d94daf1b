"""Replays that never end: found, named, and not confused with replays that only take long."""

from collections import Counter

import pytest

from kvplan.replay.arrivals import Arrivals
from kvplan.replay.dead_end import DeadEnd
from kvplan.replay.engine import Engine, Outcome
from kvplan.replay.play import Ending, play
from kvplan.replay.replay import replay
from kvplan.replay.step_time import StepTime
from kvplan.replay.thrashing import thrashing
from tests.replay.scenario import engine_of, on_device_only, playable
from tests.replay.small import config, row, trace
from tests.support.scenario import load_recording, recording_names

# What the engine got stuck in, by recording: (how, last round that did anything, requests left)
STALLS = {
    "fused-full+full-retractdecode-s1523": (230, 1),
    "fused-full+full-retractdecode-s1555": (78, 2),
    "fused-full+swa+state-retractdecode-s1679": (
        133,
        2,
    ),  # round 153 of the recording, which plays idle rounds
    "fused-full+state-streamordered-s1675": (15, 15),
}
# (period in rounds, requests left)
LIVELOCKS = {
    "fused-full+full-retractdecode-s1603": (2, 11),
    "fused-full+replay-retractdecode-s1082": (4, 17),
    "fused-full+state+state+state-retractdecode-s1320": (2, 8),
    "fused-full+state+state+state-retractdecode-s1824": (2, 2),
    "fused-full+state-retractdecode-s1025": (4, 9),
    "fused-full+swa+swa-retractdecode-s2054": (2, 1),
    "fused-full+swa-retractdecode-s1425": (4, 6),
    "fused-full+swa-retractdecode-s1449": (2, 2),
    "fused-full+swa-retractdecode-s1545": (4, 14),
    "fused-full+swa-retractdecode-s1990": (2, 2),
    "fused-full+swa-retractdecode-streamordered-s1810": (12, 9),
    "fused-full-retractdecode-s1925": (4, 15),
    "fused-full-s1707": (3, 6),
    "verify-fused-full+replay-v5100": (2, 1),
}
CRAWL = "fused-full+state+state+state-retractdecode-s1613"


def played(name: str, max_rounds: int = 4_000) -> tuple[Engine, Ending, DeadEnd | None]:
    engine, arrivals = engine_of(load_recording(name)["scenario"])
    ending, dead_end = play(engine, arrivals, max_rounds=max_rounds)
    return engine, ending, dead_end


@pytest.mark.parametrize("name", STALLS)
def test_a_stall_is_found_where_the_engine_stalled(name: str) -> None:
    since, left = STALLS[name]
    engine, ending, dead_end = played(name)
    assert ending is Ending.STALL
    assert dead_end is not None
    assert (dead_end.kind, dead_end.since_round, dead_end.period_rounds) == ("stall", since, 0)
    assert len(dead_end.requests) == len(engine.live) == left
    assert dead_end.round - since <= 3


@pytest.mark.parametrize("name", STALLS)
def test_a_stall_says_which_pages_each_request_lacks(name: str) -> None:
    _, _, dead_end = played(name)
    assert dead_end is not None
    short = [
        request
        for request in dead_end.requests
        if any(group.needed_pages > group.free_pages for group in request.groups)
    ]
    assert short
    assert all(not request.fits and not request.in_cycle for request in short)


@pytest.mark.parametrize("name", LIVELOCKS)
def test_a_livelock_is_found_with_its_period(name: str) -> None:
    period, left = LIVELOCKS[name]
    engine, ending, dead_end = played(name)
    assert ending is Ending.LIVELOCK
    assert dead_end is not None
    assert (dead_end.kind, dead_end.period_rounds) == ("livelock", period)
    assert len(dead_end.requests) == len(engine.live) == left
    assert dead_end.requests[0].in_cycle
    assert any(request.retracted_for for request in dead_end.requests)


@pytest.mark.parametrize("name", LIVELOCKS)
def test_a_livelock_says_what_the_requests_that_go_round_lack(name: str) -> None:
    _, _, dead_end = played(name)
    assert dead_end is not None
    going_round = [request for request in dead_end.requests if request.in_cycle]
    assert all(not request.fits and request.groups for request in going_round)


@pytest.mark.parametrize("name", LIVELOCKS)
def test_a_livelock_is_noticed_after_a_few_periods(name: str) -> None:
    _, _, dead_end = played(name)
    assert dead_end is not None
    assert dead_end.round - dead_end.since_round <= 2 * dead_end.period_rounds


def test_a_crawl_is_not_a_dead_end_but_thrashing() -> None:
    engine, ending, dead_end = played(CRAWL, max_rounds=400)
    assert ending is Ending.ROUND_LIMIT
    assert dead_end is None
    found = thrashing(engine.rounds)
    assert found is not None
    assert found.recomputed_share > 0.9
    assert found.generated_tokens > 0


def test_every_dead_end_of_the_recordings_is_listed_here() -> None:
    stuck = {
        name
        for name in recording_names()
        if name.startswith(("fused-", "verify-fused-"))
        and playable(recording := load_recording(name)["scenario"])
        and on_device_only(recording)
        and load_recording(name)["result"]["unfinished"]
    }
    assert stuck <= {*STALLS, *LIVELOCKS, CRAWL}
    assert len(stuck) >= 16


HEALTHY = [
    name
    for name in recording_names()
    if name.startswith(("fused-", "verify-fused-", "real-azure-conv-undeclared"))
    and "retract" in name
    and playable(load_recording(name)["scenario"])
    and not load_recording(name)["result"]["unfinished"]
]


@pytest.mark.parametrize("name", HEALTHY)
def test_a_replay_that_ends_is_no_dead_end_however_much_it_retracts(name: str) -> None:
    _, ending, _ = played(name)
    assert ending is Ending.COMPLETE


STEP = StepTime(0.010, 0.001, 0.002)


def test_a_healthy_long_wait_is_no_dead_end() -> None:
    """One request computes for hundreds of rounds while others queue for its pages."""
    rows = [row(0, 3_000, 2), *[row(0.001, 300, 2) for _ in range(5)]]
    run = replay(trace(*rows), config(blocks=190, chunk=16, batch=8), step_time=STEP, check=True)
    assert run.summary.ending is Ending.COMPLETE
    assert run.summary.figures.requests.finished == 6
    assert run.summary.figures.queue.max == 5


def test_a_livelock_with_a_request_to_come_is_skipped_to_its_arrival_and_counted() -> None:
    scenario = load_recording("fused-full+swa+swa-retractdecode-s2054")["scenario"]
    last = {**scenario["requests"][0], "id": "late", "submit": 1_000_000}
    late = {**scenario, "requests": [*scenario["requests"], last]}
    engine, arrivals = engine_of(late)
    ending, dead_end = play(engine, arrivals)
    assert ending is Ending.LIVELOCK
    assert dead_end is not None
    assert engine.now_ns >= 1_000_000 * 10**9
    assert len(engine.rounds) < 1_000
    totals = engine.totals
    assert totals.skipped_rounds > 990_000
    assert totals.rounds.total() == engine.round_index
    assert totals.skipped_rounds + len(engine.rounds) == engine.round_index
    kinds = Counter(engine.events.kinds)
    assert kinds["skipped"] == 1
    # A retraction every second round: what was skipped counts as if it had been played.
    assert totals.retractions.total() == sum(flight.retractions for flight in engine.live.values()) + sum(
        flight.retractions for flight in engine.finished
    )
    assert totals.retractions.total() > 490_000


def test_skipped_rounds_end_as_played_ones_do() -> None:
    """A late arrival behind a livelock: the same end whether the rounds before it are skipped or played."""
    scenario = load_recording("fused-full+swa+swa-retractdecode-s2054")["scenario"]
    late = {**scenario["requests"][3], "id": "late", "submit": 401}
    engine, arrivals = engine_of({**scenario, "requests": [*scenario["requests"], late]})
    play(engine, arrivals, max_rounds=460)
    slow, slow_arrivals = engine_of({**scenario, "requests": [*scenario["requests"], late]})
    play_without_skipping(slow, slow_arrivals, until=engine.round_index)
    assert engine.totals.skipped_rounds > 200
    assert slow.now_ns == engine.now_ns
    assert slow.totals.rounds == engine.totals.rounds
    assert slow.totals.retractions == engine.totals.retractions
    assert slow.totals.prefill_tokens == engine.totals.prefill_tokens
    assert slow.scheduler.state_signature() == engine.scheduler.state_signature()
    assert _accounts(slow) == _accounts(engine)


def play_without_skipping(engine: Engine, arrivals: Arrivals, until: int) -> None:
    """The loop of `play` without its watch."""
    while engine.round_index < until:
        engine.receive(arrivals.due(engine.now_ns))
        outcome = engine.round()
        for flight in engine.ended_now:
            arrivals.ended(flight.row, engine.now_ns)
        if outcome is Outcome.IDLE:
            at = arrivals.next_ns()
            if at is not None:
                engine.wait(at)


def _accounts(engine: Engine) -> list[tuple[object, ...]]:
    flights = sorted([*engine.finished, *engine.live.values()], key=lambda flight: flight.row)
    return [
        (f.request_id, f.generated, f.retractions, f.computed_again, f.computed_prompt, f.cache_again)
        for f in flights
    ]


def test_two_prompts_that_need_each_other_s_pages_go_round_and_say_so() -> None:
    rows = [row(0.01, 9, 40), row(0.34, 22, 26)]
    run = replay(trace(*rows), config(13, page=4, chunk=8, batch=4, mixed=False), step_time=STEP)
    dead_end = run.summary.dead_end
    assert dead_end is not None
    assert [(request.request_id, request.in_cycle, request.never_ends) for request in dead_end.requests] == [
        ("r1", True, False),
        ("r0", False, False),
    ]
    shortage = dead_end.requests[0].groups[0]
    assert (shortage.group_id, shortage.needed_pages, shortage.free_pages) == ("full", 2, 0)
    assert dead_end.requests[1].fits  # the decode only waits for a round without prefill


def test_a_generation_that_outgrows_the_pool_is_told_apart_from_one_that_waits() -> None:
    rows = [row(0.24, 7, 39), row(0.38, 6, 12)]
    run = replay(trace(*rows), config(11, page=4, chunk=8, batch=4, mixed=False), step_time=STEP)
    dead_end = run.summary.dead_end
    assert dead_end is not None
    assert dead_end.kind == "stall"
    assert [request.never_ends for request in dead_end.requests] == [True]
    declared = replay(
        trace(*rows), config(11, page=4, chunk=8, batch=4, mixed=False), max_new_tokens="output"
    )
    assert declared.summary.ending is Ending.COMPLETE
    assert declared.summary.figures.requests.never_fit == 1


def test_a_bound_on_rounds_also_ends_a_crawl() -> None:
    _, ending, dead_end = played(CRAWL, max_rounds=60)
    assert ending is Ending.ROUND_LIMIT
    assert dead_end is None
