"""`kvplan report`, `retractions`, `compare` and `prefix` as people and scripts call them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from tests.commands.asked import files, kept, kvplan

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_report_prints_what_the_replay_printed(tmp_path: Path, capsys: Output) -> None:
    run = kept(tmp_path, "run")
    printed = capsys.readouterr().out
    assert kvplan("report", run) == 0
    assert capsys.readouterr().out == printed
    assert kvplan("report", run, "--format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["unfinished"] is False
    assert data["figures"]["requests"]["finished"] == 16


def test_a_run_of_workers_is_reported_and_one_worker_s_rounds_are_explained(
    tmp_path: Path, capsys: Output
) -> None:
    run = kept(tmp_path, "run", "--prefill-workers=1", "--decode-workers=1", "--pool-blocks=64")
    printed = capsys.readouterr().out
    assert kvplan("report", run) == 0
    assert capsys.readouterr().out == printed
    assert kvplan("explain-round", run, "--round", "1") == 2
    assert "--worker is not given" in capsys.readouterr().err
    assert kvplan("explain-round", run, "--round", "1", "--worker", "P0") == 0


def test_a_killed_replay_leaves_a_run_that_says_it_is_unfinished(tmp_path: Path, capsys: Output) -> None:
    rows: list[dict[str, object]] = [
        {"arrival_s": 0.05 * i, "prompt_tokens": 60, "output_tokens": 40} for i in range(30_000)
    ]
    trace, deployment = files(tmp_path, rows)
    run = tmp_path / "run"
    command = [sys.executable, "-m", "kvplan.cli", "replay-trace", trace, "-d", deployment, "-o", str(run)]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(run.glob("states/*.part")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    assert not (run / "run.json").exists()
    for command in (["prefix", str(run)], ["retractions", "--no-replay", str(run)]):
        assert kvplan(*command) == 0
        assert "warning" in capsys.readouterr().out
        assert kvplan(*command, "--format", "json") == 0
        assert json.loads(capsys.readouterr().out)["unfinished"] is True
    assert kvplan("report", str(run)) == 130
    out = " ".join(capsys.readouterr().out.split())
    assert "is unfinished: its replay was cut short" in out
    assert kvplan("explain-round", str(run), "--round", "200") == 0


def test_retractions_are_told_and_cures_replayed(tmp_path: Path, capsys: Output) -> None:
    run = kept(tmp_path, "run")
    capsys.readouterr()
    assert kvplan("retractions", run) == 0
    out = capsys.readouterr().out
    assert "storm   1: rounds" in out
    assert "try     --max-new-tokens" in out
    assert "(replayed)" in out
    assert max(map(len, out.splitlines())) <= 80
    assert kvplan("retractions", run, "--no-replay", "--format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["cures_tried"] is False
    assert len(data["rows"]) == 80


def test_compare_ends_with_a_finding_where_plans_part(tmp_path: Path, capsys: Output) -> None:
    first, same = kept(tmp_path, "a"), kept(tmp_path, "b")
    other = kept(tmp_path, "c", "--pool-blocks=40")
    capsys.readouterr()
    assert kvplan("compare", first, same) == 0
    assert "every plan is the same" in capsys.readouterr().out
    assert kvplan("compare", first, other) == 1
    assert "RESULT  plans part in round" in capsys.readouterr().out
    assert kvplan("compare", first, other, "--format", "json") == 1
    assert json.loads(capsys.readouterr().out)["parting"]["round"] > 0


def test_prefix_tells_of_hits_and_misses(tmp_path: Path, capsys: Output) -> None:
    rows: list[dict[str, object]] = [
        {"arrival_s": i, "prompt_tokens": 80, "output_tokens": 2, "prefix": [{"id": "s", "tokens": 64}]}
        for i in range(3)
    ]
    run = kept(tmp_path, "run", rows=rows)
    capsys.readouterr()
    assert kvplan("prefix", run) == 0
    assert "RESULT  53.3 % of prompt tokens hit" in capsys.readouterr().out
    assert kvplan("prefix", run, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["device_tokens"] == 128


@pytest.mark.parametrize("command", ["report", "retractions", "prefix"])
def test_what_is_no_run_is_refused_in_one_sentence(tmp_path: Path, capsys: Output, command: str) -> None:
    assert kvplan(command, str(tmp_path / "nowhere")) == 2
    err = capsys.readouterr().err
    assert "nowhere is no directory" in err
    assert err.count("\n") == 1


def another_builds(run: str) -> None:
    """Make the run one that another build has kept: its stamp differs, and its states cannot be read."""
    start = Path(run) / "start.json"
    facts = json.loads(start.read_text())
    start.write_text(json.dumps(facts | {"code": "another"}))
    for state in (Path(run) / "states").iterdir():
        state.write_bytes(b"of classes that are no more")


@pytest.mark.parametrize("command", ["report", "retractions", "prefix", "explain-round", "compare"])
def test_a_run_of_another_build_is_told_of_as_before(tmp_path: Path, capsys: Output, command: str) -> None:
    run, larger = kept(tmp_path, "run"), kept(tmp_path, "larger", "--pool-blocks", "20")
    more = {"explain-round": ["--round", "30"], "compare": [larger]}.get(command, [])
    capsys.readouterr()
    status = kvplan(command, run, *more)
    out = capsys.readouterr().out
    another_builds(run)
    assert kvplan(command, run, *more) == status
    again = capsys.readouterr()
    assert again.out == out
    assert ("kept by another build" in again.err) is (command in ("retractions", "explain-round", "compare"))


def test_no_cure_is_tried_where_this_build_plans_differently(tmp_path: Path, capsys: Output) -> None:
    run = kept(tmp_path, "run")
    another_builds(run)
    plans = pl.read_parquet(Path(run) / "plans.parquet")
    plans.with_columns(plan=pl.col("plan") + (pl.col("round") == 50).cast(pl.UInt32)).write_parquet(
        Path(run) / "plans.parquet"
    )
    capsys.readouterr()
    assert kvplan("retractions", run) == 0
    told = capsys.readouterr()
    assert "RESULT" in told.out
    assert "try" not in told.out
    assert "was not tried: " in told.err
    assert "plans differently from round 50 on" in told.err
    assert kvplan("explain-round", run, "--round", "49") == 0
    assert kvplan("explain-round", run, "--round", "50") == 2
    assert "plans differently from round 50 on" in capsys.readouterr().err
