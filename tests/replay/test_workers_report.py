"""The report of a replay through workers: each one's pool and queue over time, who waits, what to try."""

import pytest

from kvplan.replay.accept import parse_accept
from kvplan.replay.disaggregated import Disaggregated, disaggregate
from kvplan.replay.step_time import StepTime, unit_rounds
from kvplan.replay.workers_summary import WorkersSummary, figures
from kvplan.replay.workload import workload_of
from kvplan.reports.disaggregated import workers_text
from kvplan.reports.replay_units import sparkline
from kvplan.scheduler import SchedulerConfig
from kvplan.traces import Trace
from tests.replay.small import config, row, trace


def played(requests: Trace, deployment: SchedulerConfig, **more: object) -> Disaggregated:
    replay = disaggregate(
        workload_of(requests, "trace"),
        deployment,
        accept=parse_accept(None, 1),
        **more,  # type: ignore[arg-type]
    )
    replay.play()
    return replay


def summary(requests: Trace, deployment: SchedulerConfig, **more: object) -> WorkersSummary:
    return figures(played(requests, deployment, **more), requests, parse_accept(None, 1))


def text(said: WorkersSummary) -> str:
    lines = str(workers_text(said, 80)).splitlines()
    assert all(len(line) <= 80 for line in lines)
    return "\n".join(lines)


CROWD = [row(0, 64, 30, max_new_tokens=30) for _ in range(9)]


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 3)])
def test_a_worker_s_pool_and_queue_are_those_of_its_rounds(prefill: int, decode: int) -> None:
    requests = trace(*CROWD)
    replay = played(requests, config(40), prefill_workers=prefill, decode_workers=decode)
    said = figures(replay, requests, parse_accept(None, 1))
    for worker, shown in zip(replay.workers, said.workers, strict=True):
        assert shown.pool.blocks == shown.blocks == 40
        assert shown.pool.peak_held == shown.peak_held_blocks == max(worker.rounds.column("held_blocks"))
        assert shown.queue.max == shown.max_waiting == max(worker.rounds.column("waiting"))
        assert shown.rounds_by_kind.total == shown.rounds == len(worker.rounds)
        means = (shown.pool.mean_held, shown.pool.mean_cached, shown.pool.mean_free)
        assert sum(means) == pytest.approx(40)
    assert said.workers[0].rounds_by_kind.prefill > 0 == said.workers[-1].rounds_by_kind.prefill
    assert said.workers[-1].rounds_by_kind.decode > 0 == said.workers[0].rounds_by_kind.decode
    for shown in said.workers:
        assert f"pool {sparkline(shown.pool.held_over_time, 40)}" in text(said)


def test_all_workers_share_one_axis_of_time() -> None:
    """The prefill worker is done early: its line ends with an empty pool, the decode worker's does not begin."""
    said = summary(
        trace(row(0, 64, 1, max_new_tokens=400), row(0, 640, 400, max_new_tokens=400)),
        config(100),
        step_time=StepTime(0.01, 0.01, 0.0),
    )
    prefill, decode = said.workers
    assert prefill.pool.held_over_time[0] > 0
    assert prefill.pool.held_over_time[-1] == 0
    assert decode.pool.held_over_time[-1] > 0


def test_a_circular_wait_is_told_worker_by_worker() -> None:
    rows = [(80, 40), (256, 4), (64, 4), (64, 4)]
    said = summary(trace(*[row(0, p, n, max_new_tokens=n) for p, n in rows]), config(20))
    report = text(said)
    assert "RESULT      stall: 3 requests left" in report
    waits = report[report.index("Who cannot go on:") : report.index("RESULT")]
    first = waits.splitlines()[1]
    assert first.startswith("  prefill 0: r1 (Decoding): its prompt is done; its 17 pages are pinned")
    assert "decode 0: r2 (RemotePrefilling): has its pages; its prompt is not done on" in waits
    assert "try" not in report


def test_lockstep_times_are_rounds() -> None:
    report = text(summary(trace(*CROWD), config(40), step_time=unit_rounds()))
    assert " rounds" in report.splitlines()[-1]
    assert " ms" not in report


def test_what_to_try_is_what_it_says() -> None:
    refused = trace(row(0, 800, 10, max_new_tokens=10), row(0, 32, 4, max_new_tokens=4))
    said = summary(refused, config(20))
    assert said.blocks_for_all is not None
    assert text(said).splitlines()[-1].startswith(f"try         --pool-blocks {said.blocks_for_all} ")
    assert summary(refused, config(said.blocks_for_all)).never_fit == 0
    assert summary(refused, config(said.blocks_for_all - 1)).never_fit == 1


def test_the_pool_that_is_tried_holds_the_whole_output_of_a_request_that_did_not_declare_it() -> None:
    """129 tokens are refused by 8 pages of 16; 9 would let it in and never out (228 tokens: 15)."""
    long = trace(row(0, 128, 100))
    said = summary(long, config(8))
    assert (
        text(said).splitlines()[-1] == "try         --pool-blocks 15   the longest request (228 tokens) fits"
    )
    assert summary(long, config(9)).ending == summary(long, config(14)).ending == "stall"
    assert summary(long, config(15)).ending == "complete"


def test_undeclared_budgets_that_are_retracted_can_be_declared() -> None:
    undeclared = trace(*[row(0, 16, 60) for _ in range(4)])
    said = summary(undeclared, config(10, page=4, chunk=16, batch=4), prefill_workers=0)
    assert said.ending == "livelock"
    assert f"the same {said.period_rounds} rounds again and again" in text(said).replace(
        "\n            ", " "
    )
    assert said.period_rounds > 1
