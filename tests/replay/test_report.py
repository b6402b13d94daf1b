"""The report says what happened, in 80 columns, and JSON says the same with stable names."""

import json

import pytest

from kvplan.replay.play import Ending
from kvplan.replay.replay import replay
from kvplan.replay.run import Run
from kvplan.replay.step_time import StepTime, unit_rounds
from kvplan.replay.storage import Storage
from kvplan.replay.transfers import Link, TransferTimes
from kvplan.reports.replay import replay_json, replay_text
from kvplan.reports.replay_units import (
    counted,
    digits,
    duration,
    given_time,
    percent,
    rounds_time,
    sparkline,
    tokens,
)
from kvplan.scheduler import SchedulerConfig
from tests.replay.small import config, row, trace

STEP = StepTime(0.010, 0.001, 0.002)


def lines(run: Run, width: int = 80) -> list[str]:
    return str(replay_text(run.summary, width)).splitlines()


def line(run: Run, label: str) -> str:
    """The report's line of that label, what is folded put behind it."""
    report = lines(run)
    at = next(i for i, each in enumerate(report) if each.startswith(label))
    folded = [report[at]]
    for more in report[at + 1 :]:
        if not more.startswith(" " * 12):
            break
        folded.append(more.strip())
    return " ".join(folded)


def healthy() -> Run:
    prefix = [{"id": "system", "tokens": 32}]
    return replay(trace(*[row(i, 40, 5, prefix=prefix) for i in range(4)]), config(), step_time=STEP)


def livelocked() -> Run:
    rows = [row(0.01, 9, 40), row(0.34, 22, 26)]
    return replay(trace(*rows), config(13, page=4, chunk=8, batch=4, mixed=False))


def stalled() -> Run:
    rows = [row(0.24, 7, 39), row(0.38, 6, 12)]
    return replay(trace(*rows), config(11, page=4, chunk=8, batch=4, mixed=False))


def crawling() -> Run:
    """Six undeclared generations that grow beyond a pool in which two of them fit."""
    rows = [row(0.01 * i, 40, 60, prefix=[]) for i in range(6)]
    return replay(trace(*rows), config(blocks=16), step_time=STEP)


def refusing() -> Run:
    return replay(trace(row(0, 5_000, 1, id="long"), row(0, 30, 3)), config(blocks=8), step_time=STEP)


RUNS = {"healthy": healthy, "livelock": livelocked, "stall": stalled, "crawl": crawling, "refused": refusing}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("width", [80, 100])
def test_no_line_is_longer_than_the_terminal(name: str, width: int) -> None:
    report = lines(RUNS[name](), width)
    assert max(map(len, report)) <= width
    assert not any(each != each.rstrip() for each in report)


@pytest.mark.parametrize("name", RUNS)
def test_there_is_one_result_line(name: str) -> None:
    assert sum(each.startswith("RESULT") for each in lines(RUNS[name]())) == 1


def test_a_replay_without_trouble() -> None:
    run = healthy()
    assert line(run, "Requests") == "Requests    4 finished   0 unfinished"
    assert line(run, "Tokens").startswith("Tokens      64 prompt computed   96 from cache (60.0 % of prompt")
    assert line(run, "  first token").split() == ["first", "token", "18.0", "ms", "40.4", "ms", "49.0", "ms"]
    assert line(run, "Retractions") == "Retractions none"
    assert line(run, "RESULT") == "RESULT      all requests finished in 3.07 s; 6.52 output tokens/s"
    assert not any(each.startswith("try") for each in lines(run))


def test_an_assumed_step_time_is_called_so_and_a_given_one_is_not() -> None:
    assumed = replay(trace(row(0, 30, 3)), config())
    assert line(assumed, "step") == "step        10 ms + 35 µs/prefill token + 20 µs/decode (assumed)"
    assert line(healthy(), "step") == "step        10 ms + 1 ms/prefill token + 2 ms/decode (given)"


def test_times_of_a_replay_in_rounds_are_rounds() -> None:
    run = replay(trace(row(0, 30, 3)), config(), step_time=unit_rounds())
    assert line(run, "  whole").split() == ["whole", *["3.00", "rounds"] * 3]
    assert line(run, "RESULT") == "RESULT      all requests finished in 3.00 rounds"


def test_unknown_hits_are_not_called_none() -> None:
    run = replay(trace(row(0, 30, 3)), config())
    assert "cache hits unknown (the trace has no prefixes)" in line(run, "Tokens")
    assert json.loads(replay_json(run.summary))["figures"]["tokens"]["cache_rate"] is None


def test_a_request_that_never_fits_is_named_with_need_and_limit_and_what_would_do() -> None:
    run = refusing()
    assert line(run, "Requests") == "Requests    1 finished   1 never fit   0 unfinished"
    assert line(run, "  never fit") == "  never fit long needs 5,001; the pool's limit is 128 tokens"
    assert line(run, "try") == "try         --pool-blocks 313   the longest request (5,001 tokens) fits"
    fitting = replay(trace(row(0, 5_000, 1)), config(blocks=313), step_time=STEP)
    assert fitting.summary.figures.requests.finished == 1
    assert replay(trace(row(0, 5_000, 1)), config(blocks=312)).summary.figures.requests.never_fit == 1


def test_the_pool_that_is_advised_holds_the_whole_output_of_a_request_that_did_not_declare_it() -> None:
    """129 tokens are refused by 8 blocks; 9 would let it in (144) and never out (130 + 100 tokens: 15 blocks)."""
    ran = replay(trace(row(0, 128, 100, id="long")), config(blocks=8), step_time=STEP)
    assert line(ran, "  never fit") == "  never fit long needs 129; the pool's limit is 128 tokens"
    assert line(ran, "try") == "try         --pool-blocks 15   the longest request (228 tokens) fits"
    for blocks, ending in ((9, Ending.STALL), (14, Ending.STALL), (15, Ending.COMPLETE)):
        ran = replay(trace(row(0, 128, 100, id="long")), config(blocks=blocks), step_time=STEP)
        assert ran.summary.ending == ending, blocks
    assert ran.summary.figures.requests.tokens_for_all is None
    stuck = replay(trace(row(0, 128, 100, id="long")), config(blocks=9), step_time=STEP)
    assert "try         --pool-blocks 15   the longest request (228 tokens) fits" in lines(stuck)


def test_many_that_never_fit_are_counted_and_the_longest_told() -> None:
    run = replay(trace(*[row(0, 1_000 + i, 1) for i in range(9)]), config(blocks=8))
    assert "r0 needs 1,001, r1 needs 1,002, r2 needs 1,003, and 6 more, the longest 1,009" in line(
        run, "  never fit"
    )
    assert line(run, "RESULT") == "RESULT      no request fits: each needs more than 128 tokens"


def test_a_livelock_says_who_goes_round_and_what_each_lacks() -> None:
    run = livelocked()
    assert run.summary.ending is Ending.LIVELOCK
    text = " ".join(" ".join(lines(run)).split())
    assert "What goes round, and why each cannot go on:" in text
    assert "its next 8 tokens need 2 pages of full (0 free, 0 evictable)" in text
    assert "the same 2 rounds again and again without a token" in line(run, "RESULT")
    assert line(run, "try").startswith("try         --max-new-tokens output")


def test_a_stall_says_why_nothing_goes_on() -> None:
    run = stalled()
    assert run.summary.ending is Ending.STALL
    text = " ".join(" ".join(lines(run)).split())
    assert "can never end, 46 tokens are more than the pool admits of one request" in text
    assert line(run, "RESULT").startswith("RESULT      stall in round 44, at 432 ms: 1 request left")


def test_a_crawl_is_warned_about_with_its_place() -> None:
    run = crawling()
    trouble = run.summary.figures.thrashing
    assert run.summary.ending is Ending.COMPLETE
    assert trouble is not None
    assert line(run, "warning").startswith("warning     crawl: ")
    assert f"({trouble.retractions} retractions" in line(run, "warning")


def test_json_has_the_names_that_programs_read() -> None:
    data = json.loads(replay_json(crawling().summary))
    assert list(data) == [
        "kvplan",
        "ending",
        "trace",
        "deployment",
        "config",
        "assumptions",
        "figures",
        "dead_end",
    ]
    assert list(data["figures"]) == [
        "duration_s",
        "requests",
        "tokens",
        "latency",
        "pool",
        "queue",
        "rounds",
        "retractions",
        "thrashing",
        "output_tokens_per_s",
        "requests_per_s",
        "tiers",
    ]
    assert list(data["figures"]["latency"]["first_token_s"]) == ["count", "mean", "p50", "p90", "p99", "max"]
    assert data["figures"]["requests"]["finished"] == 6
    assert data["config"]["role"] == "Fused"


def test_json_of_a_dead_end_has_each_request_s_shortage() -> None:
    data = json.loads(replay_json(livelocked().summary))["dead_end"]
    assert (data["kind"], data["period_rounds"]) == ("livelock", 2)
    first = data["requests"][0]
    assert first["groups"] == [{"group_id": "full", "needed_pages": 2, "free_pages": 0, "evictable_pages": 0}]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0000123, "12.3 µs"),
        (0.0775, "77.5 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (8.4, "8.40 s"),
        (59.94, "59.9 s"),
        (59.96, "1 m 00 s"),
        (3_538, "58 m 58 s"),
        (3_599.6, "1 h 00 m"),
        (4_530, "1 h 16 m"),
        (200_000, "2 d 08 h"),
    ],
)
def test_a_stretch_of_time_has_three_digits_or_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_numbers_are_grouped_and_cut_to_three_digits() -> None:
    assert [tokens(n) for n in (0, 999_999, 1_000_000, 92_440_000, 1_230_000_000)] == [
        "0",
        "999,999",
        "1.00 M",
        "92.4 M",
        "1,230 M",
    ]
    assert [digits(v) for v in (0, 0.01234, 1.214, 9.996, 31.24, 99.96, 1_234.5)] == [
        "0",
        "0.0123",
        "1.21",
        "10.0",
        "31.2",
        "100",
        "1,234",
    ]
    assert [percent(v) for v in (0, 0.0001, 0.3622, 0.9999, 1)] == [
        "0.0 %",
        "<0.1 %",
        "36.2 %",
        ">99.9 %",
        "100.0 %",
    ]
    assert (counted(1, "request"), counted(2_000, "request")) == ("1 request", "2,000 requests")
    assert (rounds_time(1), rounds_time(12)) == ("1 round", "12.0 rounds")
    assert [given_time(s) for s in (0.01, 35e-6, 1.5, 1e-9, 0)] == ["10 ms", "35 µs", "1.5 s", "1 ns", "0"]


def test_a_sparkline_goes_from_nothing_to_its_top() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇██"
    assert sparkline([0, 5, 10]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def hosted() -> SchedulerConfig:
    made = config(8)
    made.num_host_pages = 33
    made.enable_l3_storage = True
    return made


def test_what_is_assumed_of_tiers_is_said_in_text_and_json() -> None:
    rows = trace(*[row(0.1 * i, 60, 4) for i in range(4)])
    free = replay(rows, hosted())
    assert line(free, "tiers") == (
        "tiers       transfers take no time (assumed; --load-back-gbps, --device-costs)"
    )
    times = TransferTimes(Link(0), Link(2_000_000, 25e9))
    timed = replay(rows, hosted(), transfer_times=times, storage=Storage(0.5, 0.25), force_retract_every=50)
    assert line(timed, "tiers") == (
        "tiers       write-backs take no time (assumed)   load-backs 25.0 GB/s + 2.00 ms "
        "storage holds 50.0 % of prompts at the start 25.0 % of its loads fail"
    )
    assumed = json.loads(replay_json(timed.summary))["assumptions"]
    assert assumed["force_retract_every"] == 50
    assert assumed["tiers"] == {
        "write_back_latency_s": 0.0,
        "write_back_bytes_per_s": None,
        "load_back_latency_s": 0.002,
        "load_back_bytes_per_s": 25e9,
        "storage_share": 0.5,
        "storage_requests": None,
        "storage_failure_rate": 0.25,
    }
    named = replay(rows, hosted(), storage=Storage(0.0, 0.0, 0, frozenset({"r1"})))
    assert "storage holds 1 prompt at the start" in line(named, "tiers")
    assert json.loads(replay_json(healthy().summary))["assumptions"]["tiers"] is None
