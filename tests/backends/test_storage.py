"""The storage tier: loads that fail leave nothing behind, and no more is kept than the scheduler may ask for."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvplan.backends.backend import Backend
from kvplan.backends.errors import Violation
from kvplan.backends.foretold import Foretold
from kvplan.backends.storage import Storage
from kvplan.cli import app
from kvplan.commands import errors
from kvplan.replay.storage import Storage as ReplayStorage
from kvplan.scheduler import ExecutionPlan
from tests.backends.small import play, request, scenario
from tests.backends.test_violations import loads

torch = pytest.importorskip("torch", reason="carrying plans out needs the extra kvplan-toolkit[torch]")

STORED = scenario(
    request(0, (1, 0, 22)), request(1, (2, 0, 22), submit=1), num_host_pages=65, enable_l3_storage=True
) | {"storage": [[[1, 0, 20]], [[2, 0, 20]]]}


def test_a_load_that_fails_is_asked_for_again() -> None:
    whole = play(STORED).backend.counts
    lost = play({**STORED, "failing_loads": [0]}).backend.counts
    assert (whole.pages_lost, lost.pages_lost) == (0, 4)
    assert whole.pages_loaded == lost.pages_loaded == 8
    assert lost.rows_written == whole.rows_written


def test_a_forward_over_a_load_that_failed_is_a_violation() -> None:
    """A runtime that ran it all the same: the pages are as if nobody had written them."""

    def run_it(plan: ExecutionPlan, run: Any) -> None:
        if loads(plan) and run.backend.counts.rounds == 0:
            backend: Backend = run.backend
            keep = backend._load_back
            backend._load_back = lambda plan, failed: keep(plan, failed) and False  # type: ignore[method-assign]

    with pytest.raises(Violation) as caught:
        play({**STORED, "failing_loads": [0]}, run_it)
    error = caught.value
    assert (error.round, error.request_id, error.group) == (0, "r0", "full")
    assert "finds memory that was never zeroed or written" in str(error)
    assert "last written by load-back 0, which failed, in round 0" in str(error)


def test_no_more_is_kept_than_the_scheduler_may_ask_for() -> None:
    kept = Storage(known=3)
    page = torch.zeros(4)
    for at in range(20):
        kept.put((0, str(at), 0), page)
    assert len(kept) == 6
    assert kept.get((0, "13", 0)) is None
    assert kept.get((0, "14", 0)) is not None
    kept.put((0, "new", 0), page)  # pushes out the one that has come longest ago, which is no longer 14
    assert kept.get((0, "14", 0)) is not None
    assert kept.get((0, "15", 0)) is None


def test_a_long_run_keeps_so_many_pages_and_never_lacks_one() -> None:
    """200 prompts of two pages, of which a host of eight forgets the most: each load finds its page."""
    rng = Random(1)
    requests = [request(at, (rng.randrange(6), 0, 10), output=2, submit=4 * at) for at in range(200)]
    small = scenario(
        *requests, num_host_pages=7, num_device_pages=6, enable_l3_storage=True, max_batch_size=2
    ) | {"max_rounds": 4000}
    fetched = 0

    def count(plan: ExecutionPlan, run: Any) -> None:
        nonlocal fetched
        fetched += sum(sum(fills) for op in loads(plan) for fills in op.prefetch_from_storage)

    run = play(small, count)
    assert run.backend.storage is not None
    assert run.backend.counts.pages_stored > 100
    assert fetched > 50
    assert len(run.backend.storage) <= 2 * 6


def test_failures_are_drawn_once_and_in_the_replay_s_order() -> None:
    from kvplan.scheduler import Cache

    def plan(*ops: int) -> ExecutionPlan:
        made = ExecutionPlan()
        made.cache.append(
            Cache.LoadBackOp(
                op_ids=list(ops), prefetch_from_storage=[[at % 3 > 0] for at, _ in enumerate(ops)]
            )
        )
        return made

    alone = ReplayStorage(0.0, 0.5, 7)
    told = Foretold.of(ReplayStorage(0.0, 0.5, 7))
    for start in range(0, 60, 6):
        ops = list(range(start, start + 6))
        failing = told.failing(plan(*ops))
        asked = [op for at, op in enumerate(ops) if at % 3]
        drawn = {op: told.fails() for op in asked}
        assert drawn == {op: alone.fails() for op in asked}
        assert failing == {op for op, fails in drawn.items() if fails}
    assert told.undecided == alone.undecided == 40


DEPLOYMENT = """
prefix_granularity = 4
max_scheduled_tokens = 64
max_batch_size = 4
pool_blocks = 60
host_blocks = 100
enable_l3_storage = true
[[cache_groups]]
group_id = "full"
block_granularity = 4
bytes_per_page = 4096
"""


@pytest.fixture
def stored(tmp_path: Path) -> tuple[str, ...]:
    deployment, trace = tmp_path / "d.toml", tmp_path / "t.jsonl"
    deployment.write_text(DEPLOYMENT)
    rows = [{"timestamp": 0.1 * at, "input_length": 60, "output_length": 20} for at in range(30)]
    trace.write_text("".join(json.dumps(row | {"hash_ids": [at % 9]}) + "\n" for at, row in enumerate(rows)))
    return (str(trace), "-d", str(deployment), "--storage", "1", "--storage-failure-rate", "0.6")


def run(*arguments: str) -> int:
    return errors.run(lambda _: app(list(arguments), standalone_mode=False))


@pytest.mark.parametrize("role", ["Fused", "P", "D"])
def test_a_replay_with_failures_is_the_same_carried_out(
    stored: tuple[str, ...], role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = []
    for backend in ("none", "torch"):
        flags = ("--role", role, "--backend", backend, "--format", "json")
        assert run("replay-trace", *stored, *flags) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0] == outputs[1]


def test_check_plan_plays_failures(stored: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check-plan", *stored, "--format", "json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["safe"]
    assert result["finished"] == 30
    assert result["counts"]["pages_lost"] > 0
    assert run("check-plan", *stored) == 0
    assert " lost by storage" in " ".join(capsys.readouterr().out.split())
