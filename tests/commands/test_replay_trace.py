"""`kvplan replay-trace` as people and scripts call it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from kvplan import cli
from kvplan.commands import errors
from kvplan.replay.engine import Engine, Outcome

DEPLOYMENT = """
prefix_granularity = 16
max_scheduled_tokens = 64
max_batch_size = 8
enable_mixed_prefill_decode = true
pool_blocks = 64
[[cache_groups]]
group_id = "full"
block_granularity = 16
"""
ROWS: list[dict[str, object]] = [
    {"arrival_s": 0.1 * i, "prompt_tokens": 40, "output_tokens": 5} for i in range(4)
]
LIVELOCK: list[dict[str, object]] = [
    {"arrival_s": 0.01, "prompt_tokens": 9, "output_tokens": 40},
    {"arrival_s": 0.34, "prompt_tokens": 22, "output_tokens": 26},
]
LIVELOCK_FLAGS = ["--prefix-granularity=4", "--max-scheduled-tokens=8", "--pool-blocks=13", "--no-mixed"]


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A trace of four requests and a deployment that serves it."""
    return write_trace(tmp_path, ROWS), write_deployment(tmp_path, DEPLOYMENT)


def write_trace(folder: Path, rows: list[dict[str, object]]) -> str:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_deployment(folder: Path, text: str) -> str:
    path = folder / "deployment.toml"
    path.write_text(text)
    return str(path)


def run(*arguments: str) -> int:
    return errors.run(lambda given: cli.app(given, standalone_mode=False), ("replay-trace", *arguments))


def test_a_trace_and_a_deployment_are_all_it_needs(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    trace, deployment = files
    assert run(trace, "--deployment", deployment) == 0
    out, err = capsys.readouterr()
    assert "Requests    4 finished   0 unfinished" in out
    assert "RESULT      all requests finished" in out
    assert err == ""


def test_json_is_the_same_run(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    trace, deployment = files
    assert run(trace, "-d", deployment, "--format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ending"] == "complete"
    assert data["figures"]["requests"]["finished"] == 4
    assert data["deployment"] == deployment


def test_the_same_call_prints_the_same_bytes(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    trace, deployment = files
    printed = []
    for _ in range(2):
        run(trace, "-d", deployment, "--format", "json")
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_flags_reach_the_replay(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    trace, deployment = files
    flags = ["--decode-input-tokens=4", "--accept-length=1:0.5,3:0.5", "--seed=5", "--speed=2", "--limit=3"]
    flags += ["--max-new-tokens=9", "--step-fixed=8ms", "--step-prefill-token=20us", "--step-decode=0.001"]
    flags += ["--step-context-token=1ns", "--check", "--pool-blocks=32"]
    assert run(trace, "-d", deployment, "--format=json", *flags) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["assumptions"] == {
        "step_time": {
            "fixed_s": 0.008,
            "per_prefill_token_s": 20e-6,
            "per_decode_request_s": 0.001,
            "per_context_token_s": 1e-9,
            "lockstep": False,
        },
        "step_time_given": True,
        "accept_length": 2.0,
        "accept_basis": "given",
        "speed": 2.0,
        "concurrency": None,
        "max_new_tokens": "9",
        "undeclared_requests": 0,
        "seed": 5,
        "tiers": None,
        "force_retract_every": None,
    }
    assert data["trace"]["requests"] == 3
    assert data["figures"]["pool"]["blocks"] == 32


def test_a_step_time_that_is_given_in_part_keeps_the_other_defaults(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    trace, deployment = files
    run(trace, "-d", deployment, "--step-fixed", "8ms")
    assert "8 ms + 35 µs/prefill token + 20 µs/decode (given)" in capsys.readouterr().out


def test_rounds_and_a_closed_loop(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    trace, deployment = files
    assert run(trace, "-d", deployment, "--rounds", "--concurrency", "2") == 0
    out = capsys.readouterr().out
    assert "2 at a time" in out
    assert "one unit of time a round (--rounds)" in out
    assert "running at most 2" in out


def test_start_leaves_out_what_came_before(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    trace, deployment = files
    run(trace, "-d", deployment, "--start", "0.15s", "--format", "json")
    assert json.loads(capsys.readouterr().out)["trace"]["requests"] == 2


def test_output_keeps_the_run(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, deployment = files
    assert run(trace, "-d", deployment, "--output", str(tmp_path / "run")) == 0
    assert "the run is in" in capsys.readouterr().err
    assert len(pl.read_parquet(tmp_path / "run" / "requests.parquet")) == 4
    assert json.loads((tmp_path / "run" / "run.json").read_text())["ending"] == "complete"
    assert run(trace, "-d", deployment, "--output", str(tmp_path / "run")) == 2
    assert "--force" in capsys.readouterr().err
    assert run(trace, "-d", deployment, "--output", str(tmp_path / "run"), "--force") == 0


def test_a_dead_end_is_exit_1_with_who_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, deployment = write_trace(tmp_path, LIVELOCK), livelocked(tmp_path)
    assert run(trace, "-d", deployment) == 1
    out = capsys.readouterr().out
    assert "RESULT      livelock in round" in out
    assert "  r1 (" in out
    assert "need 2 pages of full" in " ".join(out.split())


def livelocked(folder: Path) -> str:
    text = DEPLOYMENT.replace("= 16", "= 4").replace("= 64\nmax_b", "= 8\nmax_b").replace("= 64", "= 13")
    return write_deployment(folder, text.replace("true", "false"))


def test_a_dead_end_is_kept_too(tmp_path: Path) -> None:
    trace, deployment = write_trace(tmp_path, LIVELOCK), livelocked(tmp_path)
    assert run(trace, "-d", deployment, "-o", str(tmp_path / "run")) == 1
    data = json.loads((tmp_path / "run" / "run.json").read_text())
    assert data["dead_end"]["kind"] == "livelock"


def test_a_bound_on_rounds_that_is_reached_is_exit_1(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    trace, deployment = files
    assert run(trace, "-d", deployment, "--max-rounds", "3") == 1
    assert "stopped in round 3" in capsys.readouterr().out


def test_requests_that_never_fit_are_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, object]] = [{"arrival_s": 0, "prompt_tokens": 5_000, "output_tokens": 1}, *ROWS]
    trace, deployment = write_trace(tmp_path, rows), write_deployment(tmp_path, DEPLOYMENT)
    assert run(trace, "-d", deployment) == 0
    assert "1 never fit" in capsys.readouterr().out


def test_warnings_of_the_trace_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, object]] = [*ROWS, {"arrival_s": 9, "prompt_tokens": 4, "output_tokens": 0}]
    trace, deployment = write_trace(tmp_path, rows), write_deployment(tmp_path, DEPLOYMENT)
    assert run(trace, "-d", deployment) == 0
    assert "warning     1 row with 0 output tokens left out" in capsys.readouterr().out


def test_a_trace_comes_from_standard_input(files: tuple[str, str]) -> None:
    trace, deployment = files
    done = subprocess.run(
        [sys.executable, "-m", "kvplan.cli", "replay-trace", "-", "-d", deployment],
        input=Path(trace).read_text(),
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "<stdin>: 4 requests" in done.stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--accept-length", "2"], "accept length"),
        (["--accept-length", "x"], "accept length 'x'"),
        (["--speed", "0"], "speed 0"),
        (["--speed", "nan"], "speed nan"),
        (["--speed", "fast"], "--speed"),
        (["--concurrency", "0"], "concurrency 0"),
        (["--limit", "0"], "limit 0"),
        (["--start", "yesterday"], "start 'yesterday'"),
        (["--start", "100"], "past the end"),
        (["--max-rounds", "0"], "max_rounds 0"),
        (["--max-new-tokens", "lots"], "max-new-tokens 'lots'"),
        (["--max-new-tokens", "0"], "max-new-tokens '0'"),
        (["--step-fixed", "soon"], "--step-fixed 'soon'"),
        (["--step-fixed", "0", "--step-decode", "0"], "takes no time"),
        (["--step-decode", "-1"], "--step-decode '-1'"),
        (["--rounds", "--step-fixed", "1ms"], "--rounds and --step-fixed"),
        (["--trace-format", "parquet"], "parquet"),
        (["--time-unit", "fortnights"], "fortnights"),
        (["--hash-tokens", "16"], "hash_tokens 16"),
        (["--zero-output", "keep"], "zero_output 'keep'"),
        (["--pool-blocks", "0"], "pool"),
        (["--force"], "--force"),
        (["--deployment", "nowhere.toml"], "nowhere.toml"),
        (["--pool-block", "7"], "--pool-blocks"),
        (["--format", "xml"], "--format"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_exit_2(
    files: tuple[str, str], flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, deployment = files
    assert run(trace, "-d", deployment, *flags) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_trace_that_is_not_there_and_one_that_is_no_trace(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, deployment = files
    assert run("nowhere.jsonl", "-d", deployment) == 2
    assert "nowhere.jsonl" in capsys.readouterr().err
    (tmp_path / "bad.jsonl").write_text('{"timestamp": 0, input_length": 6755}\n')
    assert run(str(tmp_path / "bad.jsonl"), "-d", deployment) == 2
    assert "bad.jsonl:1" in capsys.readouterr().err


def test_a_deployment_without_a_pool_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path, ROWS)
    deployment = write_deployment(tmp_path, DEPLOYMENT.replace("pool_blocks = 64\n", ""))
    assert run(trace, "-d", deployment) == 2
    assert "--pool-blocks" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_refused_before_the_replay(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, deployment = files
    (tmp_path / "file").write_text("mine")
    assert run("nowhere.jsonl", "-d", deployment, "--output", str(tmp_path / "file")) == 2
    assert "no directory" in capsys.readouterr().err


def test_ctrl_c_reports_what_was_played(
    files: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace, deployment = files
    play_round = Engine.round

    def pressed_in_round_9(engine: Engine) -> Outcome:
        if engine.round_index == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return play_round(engine)

    monkeypatch.setattr(Engine, "round", pressed_in_round_9)
    assert run(trace, "-d", deployment, "--output", str(tmp_path / "run")) == 130
    out, err = capsys.readouterr()
    assert "RESULT      interrupted in round 9, " in out
    assert "Traceback" not in err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["ending"] == "interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
