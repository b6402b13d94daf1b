"""Whole replays of small traces: times, tokens, and who ends how."""

from functools import cache

import msgspec
import polars as pl
import pytest

from kvplan.replay.accept import every, parse_accept
from kvplan.replay.play import Ending
from kvplan.replay.replay import replay
from kvplan.replay.run import Run
from kvplan.replay.step_time import StepTime, unit_rounds
from kvplan.scheduler import CacheGroupConfig, CacheGroupFamily, SchedulerConfig
from kvplan.traces import Trace
from tests.replay.small import config, row, trace

# 10 ms a step, 1 ms a prefill token, 2 ms a decode: figures that can be added up by hand
STEP = StepTime(0.010, 0.001, 0.002)


def times(run: Run, request: int = 0) -> dict[str, float]:
    return {name: run.requests[name][request] for name in ("admitted_s", "first_token_s", "finished_s")}


def test_a_request_alone_takes_its_prefill_and_a_step_for_each_token_after_the_first() -> None:
    run = replay(trace(row(0, 30, 4)), config(), step_time=STEP, check=True)
    assert times(run) == {"admitted_s": 0.0, "first_token_s": 0.040, "finished_s": 0.076}
    latency = run.summary.figures.latency
    assert latency.first_token_s is not None
    assert latency.first_token_s.p50 == 0.040
    assert latency.per_output_token_s is not None
    assert latency.per_output_token_s.p99 == pytest.approx(0.012)
    assert latency.end_to_end_s is not None
    assert latency.end_to_end_s.max == 0.076


def test_a_long_prompt_is_prefilled_chunk_by_chunk() -> None:
    run = replay(trace(row(0, 150, 1)), config(chunk=64), step_time=STEP)
    assert run.rounds["prefill_tokens"].to_list() == [64, 64, 22, 0]
    assert times(run)["first_token_s"] == 0.180  # 3 steps and 150 tokens


def test_with_overlap_the_device_goes_on_without_a_pause_and_results_come_a_round_later() -> None:
    run = replay(trace(row(0, 30, 3)), config(overlap=1), step_time=STEP)
    # The decode behind the prefill is planned while the prefill runs, and runs from 40 ms to 52 ms; the
    # third step to 64 ms. A fourth was planned before the last token was there, and its result is dropped.
    assert times(run) == {"admitted_s": 0.0, "first_token_s": 0.040, "finished_s": 0.064}
    assert run.rounds["time_s"].to_list() == [0.0, 0.0, 0.040, 0.052, 0.064, 0.076]
    assert run.rounds["decode_requests"].to_list() == [0, 1, 1, 1, 0, 0]
    assert run.summary.figures.tokens.generated == 3


def test_an_idle_engine_waits_for_the_next_arrival() -> None:
    run = replay(trace(row(0, 30, 1), row(100, 30, 1)), config(), step_time=STEP)
    assert times(run, 1) == {"admitted_s": 100.0, "first_token_s": 100.040, "finished_s": 100.040}
    assert len(run.rounds) == 4  # two that prefill, one idle before the second request and one after it


def test_a_request_that_comes_during_a_step_is_seen_by_the_next_plan() -> None:
    run = replay(trace(row(0, 30, 2), row(0.001, 30, 1)), config(), step_time=STEP)
    assert times(run, 1)["admitted_s"] == 0.040
    assert times(run, 1)["first_token_s"] == pytest.approx(0.040 + 0.010 + 0.030 + 0.002)
    latency = run.summary.figures.latency.first_token_s
    assert latency is not None
    assert latency.max == pytest.approx(0.081)  # from its arrival, not from its admission


def test_speed_divides_the_times_between_arrivals() -> None:
    run = replay(trace(row(100, 30, 1), row(101, 30, 1), row(103, 30, 1)), config(), speed=2.0)
    assert run.requests["arrived_s"].to_list() == [0.0, 0.5, 1.5]


def test_in_rounds_every_round_takes_one_unit_and_idle_ones_are_whole() -> None:
    run = replay(trace(row(0, 30, 2), row(5.5, 30, 1)), config(), step_time=unit_rounds())
    assert times(run) == {"admitted_s": 0.0, "first_token_s": 1.0, "finished_s": 2.0}
    assert times(run, 1) == {"admitted_s": 6.0, "first_token_s": 7.0, "finished_s": 7.0}


def test_context_tokens_cost_what_stands_before_chunks_and_decodes() -> None:
    step = StepTime(0.010, 0.0, 0.001, per_context_token_s=0.0001)
    run = replay(trace(row(0, 100, 3)), config(chunk=64), step_time=step)
    # chunks: nothing before the first, 64 tokens before the second; decodes: 101 and 102 tokens
    assert run.rounds["step_s"].to_list()[:4] == pytest.approx([0.010, 0.0164, 0.0211, 0.0212])


def test_a_closed_loop_keeps_so_many_requests_out() -> None:
    run = replay(trace(*[row(9.0 * i, 30, 5) for i in range(6)]), config(), concurrency=2, step_time=STEP)
    running = run.rounds["running"] + run.rounds["waiting"]
    assert running.max() == 2
    assert run.summary.figures.requests.finished == 6
    assert run.summary.figures.duration_s < 1


def test_a_session_s_turn_comes_after_the_last_one_and_its_delay() -> None:
    rows = [row(0, 30, 4, session_id="a"), row(0, 60, 1, session_id="a", delay_s=2.0)]
    run = replay(trace(*rows), config(), step_time=STEP)
    assert run.requests["arrived_s"].to_list() == [0.0, 2.076]


def test_a_turn_after_one_that_never_fits_comes_all_the_same() -> None:
    rows = [row(0, 5000, 4, session_id="a"), row(0, 60, 1, session_id="a", delay_s=2.0)]
    run = replay(trace(*rows), config(blocks=8), step_time=STEP)
    assert run.requests["status"].to_list() == ["never fits", "finished"]
    assert run.requests["arrived_s"].to_list() == [0.0, 2.0]


def test_prompt_tokens_are_computed_or_found_in_the_cache_and_nothing_else() -> None:
    system = [{"id": "system", "tokens": 40}]
    rows = [row(i, 50 + i, 2, prefix=system) for i in range(5)]
    run = replay(trace(*rows), config(), step_time=STEP, check=True)
    tokens = run.summary.figures.tokens
    assert tokens.prompt_from_cache == 4 * 32  # two pages of 16 out of 40 tokens, four times
    assert tokens.prompt_computed + tokens.prompt_from_cache == tokens.prompt == sum(range(50, 55))
    assert tokens.cache_rate == pytest.approx(128 / 260)
    assert tokens.computed_again == 0
    assert tokens.prefill == tokens.prompt_computed == run.rounds["prefill_tokens"].sum()


def test_without_prefixes_in_the_trace_the_hit_rate_is_unknown_not_nothing() -> None:
    run = replay(trace(row(0, 50, 2), row(1, 50, 2)), config(), step_time=STEP)
    assert run.summary.figures.tokens.cache_rate is None


@cache
def growing() -> Trace:
    """Six requests whose generations grow beyond a pool of 16 blocks, undeclared."""
    return trace(*[row(0.01 * i, 40, 60, prefix=[]) for i in range(6)])


def pressed(max_new_tokens: str = "trace") -> Run:
    return replay(growing(), config(blocks=16), step_time=STEP, check=True, max_new_tokens=max_new_tokens)


def test_tokens_add_up_with_retractions() -> None:
    run = pressed()
    figures = run.summary.figures
    tokens = figures.tokens
    assert figures.requests.finished == 6
    assert figures.retractions.count > 0
    assert tokens.computed_again > 0
    assert tokens.prompt_computed + tokens.prompt_from_cache == tokens.prompt == 240
    assert tokens.prefill == tokens.prompt_computed + tokens.refed_output + tokens.computed_again
    assert tokens.prefill == run.rounds["prefill_tokens"].sum()
    assert tokens.computed_again == run.rounds["recomputed_tokens"].sum()
    assert tokens.generated == run.rounds["generated_tokens"].sum() == 360
    # each readmission either finds or computes what the retraction before it dropped
    dropped = run.events.filter(event="retracted")["tokens"].sum()
    assert tokens.computed_again + tokens.from_cache_again == dropped


def test_retractions_are_counted_by_state_and_by_request() -> None:
    run = pressed()
    retractions = run.summary.figures.retractions
    assert retractions.count == sum(retractions.by_state.values()) == run.rounds["retractions"].sum()
    assert retractions.requests == (run.requests["retractions"] > 0).sum()
    assert retractions.worst_count == run.requests["retractions"].max()
    worst = run.requests.filter(request_id=retractions.worst_request)
    assert worst["retractions"].item() == retractions.worst_count
    assert sum(retractions.over_time) == retractions.count


def test_declared_budgets_keep_room_and_nothing_is_retracted() -> None:
    run = pressed(max_new_tokens="output")
    assert run.summary.figures.retractions.count == 0
    assert run.summary.assumptions.undeclared_requests == 0
    assert run.requests["max_new_tokens"].to_list() == [60] * 6


def test_a_budget_that_is_given_is_never_below_the_output() -> None:
    run = replay(trace(row(0, 30, 4), row(0, 30, 40)), config(), max_new_tokens=16, step_time=STEP)
    assert run.requests["max_new_tokens"].to_list() == [16, 40]
    assert run.requests["generated_tokens"].to_list() == [4, 40]


def test_a_budget_of_none_takes_back_what_the_trace_declares() -> None:
    rows = [row(0, 30, 4, max_new_tokens=8)]
    assert replay(trace(*rows), config()).requests["max_new_tokens"].to_list() == [8]
    none = replay(trace(*rows), config(), max_new_tokens="none")
    assert none.requests["max_new_tokens"].to_list() == [None]


# S5: a pool of 76,640 tokens
def test_a_request_above_the_pool_never_fits_and_the_others_finish() -> None:
    rows = [row(0, 100_000, 1, id="long"), row(0, 500, 1), row(0, 500, 1)]
    run = replay(trace(*rows), config(blocks=4_790, chunk=8_192), step_time=STEP)
    requests = run.summary.figures.requests
    assert (requests.finished, requests.never_fit, requests.unfinished) == (2, 1, 0)
    assert requests.limit_tokens == 76_640
    refused = requests.never_fit_requests[0]
    assert (refused.request_id, refused.needed_tokens) == ("long", 100_001)
    assert run.requests["status"].to_list() == ["never fits", "finished", "finished"]
    assert run.summary.ending is Ending.COMPLETE
    assert run.summary.figures.tokens.prompt == 1_000


# S4: 8 pages of 128 in all, 7 usable
def test_the_exact_limit_fits_and_one_token_more_does_not() -> None:
    deployment = config(blocks=7, page=128, chunk=8_192)
    at_limit = replay(trace(row(0, 895, 1)), deployment, step_time=STEP)
    assert at_limit.summary.figures.requests.limit_tokens == 896
    assert at_limit.summary.figures.requests.finished == 1
    assert replay(trace(row(0, 896, 1)), deployment).summary.figures.requests.never_fit == 1


# S12: page 128, one page free for two requests
def test_of_two_requests_that_fit_by_tokens_one_waits_for_a_page() -> None:
    run = replay(trace(row(0, 2, 2), row(0, 2, 2)), config(blocks=1, page=128), step_time=STEP, check=True)
    assert run.rounds["running"][0] == 1
    assert run.rounds["waiting"][0] == 1
    assert run.summary.figures.requests.finished == 2


# S2 (Fused): P = 2, 32 usable pages, one full and three state groups, 6 requests of 2 tokens, 4 to generate
def test_three_requests_of_nine_pages_fit_at_once_and_all_finish() -> None:
    groups = [CacheGroupConfig("full", 2, 33)]
    groups += [CacheGroupConfig(f"state{i}", 2, 33, family=CacheGroupFamily.State) for i in range(3)]
    deployment = config(blocks=32, page=2, batch=8, groups=groups)
    rows = [row(0, 2, 4, max_new_tokens=4) for _ in range(6)]
    run = replay(trace(*rows), deployment, step_time=STEP, check=True)
    assert run.rounds["held_blocks"][0] == 27
    assert run.summary.figures.queue.max == 3
    assert run.summary.figures.requests.finished == 6
    assert run.rounds["held_blocks"][-1] == 0


def test_speculative_decodes_take_fewer_steps_by_what_they_accept() -> None:
    def steps(accepted: int) -> int:
        run = replay(
            trace(row(0, 30, 13)), config(width=4), accept=every(accepted), step_time=STEP, check=True
        )
        assert run.requests["generated_tokens"].item() == 13
        return int(run.rounds["decode_requests"].sum())

    assert [steps(accepted) for accepted in (1, 2, 3, 4)] == [12, 6, 4, 3]


def test_what_a_request_accepts_does_not_depend_on_who_runs_beside_it() -> None:
    accept = parse_accept("2.5", 4, seed=3)
    alone = replay(trace(row(0, 30, 40)), config(width=4), accept=accept)
    beside = replay(trace(row(0, 30, 40), row(0, 30, 400)), config(width=4), accept=accept)
    until = beside.rounds.filter(pl.col("time_s") < beside.requests["finished_s"][0])
    assert (until["decode_requests"] > 0).sum() == alone.rounds["decode_requests"].sum()


def test_the_same_arguments_give_the_same_bytes() -> None:
    one, same = pressed(), pressed()
    assert msgspec.json.encode(one.summary) == msgspec.json.encode(same.summary)
    for table in ("requests", "rounds", "events"):
        assert getattr(one, table).equals(getattr(same, table))


def test_rounds_are_counted_by_what_they_hold() -> None:
    rounds = replay(trace(row(0, 30, 3), row(0.05, 30, 1)), config(), step_time=STEP).summary.figures.rounds
    assert (rounds.prefill, rounds.mixed, rounds.decode, rounds.empty) == (1, 1, 1, 1)
    assert rounds.total == 4
    separate = replay(trace(row(0, 30, 3), row(0.05, 30, 1)), config(mixed=False), step_time=STEP)
    assert separate.summary.figures.rounds.mixed == 0


def test_a_bound_on_rounds_leaves_the_rest_unfinished() -> None:
    run = replay(trace(row(0, 30, 30), row(50, 30, 30)), config(), step_time=STEP, max_rounds=5)
    requests = run.summary.figures.requests
    assert run.summary.ending is Ending.ROUND_LIMIT
    assert (requests.finished, requests.unfinished, requests.not_arrived) == (0, 1, 1)
    assert run.requests["status"].to_list() == ["unfinished", "not arrived"]
    assert run.requests["generated_tokens"].to_list() == [5, 0]


def test_bad_arguments_are_refused_by_name() -> None:
    one = trace(row(0, 30, 3))
    worker = config()
    worker.role = SchedulerConfig.Role.P
    with pytest.raises(ValueError, match="role P"):
        replay(one, worker)
    with pytest.raises(ValueError, match="max_rounds 0"):
        replay(one, config(), max_rounds=0)
    with pytest.raises(ValueError, match="concurrency 0"):
        replay(one, config(), concurrency=0)
    with pytest.raises(ValueError, match="speed"):
        replay(one, config(), speed=0)


def test_a_replay_that_is_stopped_tells_what_was_played_until_then() -> None:
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) == 4

    run = replay(trace(row(0, 30, 30)), config(), step_time=STEP, stop=stop)
    assert run.summary.ending is Ending.INTERRUPTED
    assert len(run.rounds) == 4
    assert run.requests["generated_tokens"].to_list() == [4]


def test_progress_is_told_and_never_falls() -> None:
    told: list[tuple[int, int]] = []
    rows = [row(0.1 * i, 30, 300) for i in range(8)]
    replay(trace(*rows), config(), progress=lambda at: told.append((at.rounds, at.ended)))
    assert len(told) >= 2
    assert told == sorted(told)
