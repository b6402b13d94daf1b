"""`kvplan explain-round` as people and scripts call it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.commands.asked import LIVELOCK, LIVELOCK_DEPLOYMENT, files, kept, kvplan

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_round_of_a_kept_run_is_explained(tmp_path: Path, capsys: Output) -> None:
    run = kept(tmp_path, "run")
    capsys.readouterr()
    assert kvplan("explain-round", run, "--round", "20") == 0
    out, err = capsys.readouterr()
    assert out.startswith("round   20 at ")
    assert "├── decode: " in out
    assert "\nRESULT  " in out
    assert err == ""


@pytest.mark.parametrize("columns", [60, 70, 80, 90])
def test_the_heading_breaks_between_its_parts(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    run = kept(tmp_path, "run")
    capsys.readouterr()
    assert kvplan("explain-round", run, "--round", "25") == 0
    heading = capsys.readouterr().out.split("\npool ")[0]
    assert max(map(len, heading.splitlines())) <= columns
    ends = "|".join(("fused", r"round   25 at [\d.]+ m?s", r"\d+ tokens", r"batch \d+ of \d+", r"\d+ wait"))
    for line in heading.splitlines():
        assert re.search(rf"({ends})$", line), line


def test_straight_from_a_trace_it_says_the_same(tmp_path: Path, capsys: Output) -> None:
    run = kept(tmp_path, "run")
    trace, deployment = files(tmp_path)
    for question in (["--round", "25"], ["--at", "0.4s"], ["--request", "r5"]):
        capsys.readouterr()
        assert kvplan("explain-round", run, *question) == 0
        from_run = capsys.readouterr().out
        assert kvplan("explain-round", trace, "-d", deployment, *question) == 0
        # What a replay has not come to yet is not known there: when a request entered later.
        lines = [line for line in from_run.splitlines() if "it entered in round" not in line]
        shown = [line for line in capsys.readouterr().out.splitlines() if "it entered in round" not in line]
        assert shown == lines


def test_json_has_stable_names(tmp_path: Path, capsys: Output) -> None:
    run = kept(tmp_path, "run")
    capsys.readouterr()
    assert kvplan("explain-round", run, "--round", "20", "--format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    [told] = data["rounds"]
    assert told["round"] == 20
    assert {"budget", "budget_left", "batch", "pool_before", "pool_after", "phases", "waits"} <= told.keys()
    phase = told["phases"][0]
    assert {"name", "attempts", "held", "retraction"} == phase.keys()
    assert {"request_id", "outcome", "groups", "hit", "cut", "evicted"} <= phase["attempts"][0].keys()


def test_a_request_is_followed_through_its_rounds(tmp_path: Path, capsys: Output) -> None:
    run = kept(tmp_path, "run")
    capsys.readouterr()
    assert kvplan("explain-round", run, "--request", "r5", "--all", "--format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert len(data["rounds"]) == len(data["asked_rounds"]) > 1
    course = data["request"]
    assert course["arrived_round"] == data["asked_rounds"][0]
    assert course["admitted_round"] in data["asked_rounds"]
    assert course["retractions"] > 0
    assert course["finished_round"] > data["asked_rounds"][-1]
    assert kvplan("explain-round", run, "--request", "r5") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"r5 arrived in round {course['arrived_round']} at ")
    assert f"retracted {course['retractions']} time" in " ".join(out.split())
    assert "RESULT  r5 " in out


def test_a_request_that_never_fits_is_told_so(tmp_path: Path, capsys: Output) -> None:
    run = kept(tmp_path, "run", rows=[{"arrival_s": 0, "prompt_tokens": 900, "output_tokens": 2}])
    capsys.readouterr()
    assert kvplan("explain-round", run, "--request", "r0") == 0
    assert "r0 never enters" in capsys.readouterr().out


def test_without_a_question_a_dead_end_is_explained_and_what_spares_it(
    tmp_path: Path, capsys: Output
) -> None:
    run = kept(tmp_path, "run", rows=LIVELOCK, deployed=LIVELOCK_DEPLOYMENT)
    capsys.readouterr()
    assert kvplan("explain-round", run) == 0
    out = capsys.readouterr().out
    assert out.startswith("livelock: rounds 49..50 again and again")
    assert "try     --pool-blocks 16   no dead end" in out
    for flags in (["--pool-blocks=16"], ["--max-batch-size=1"]):
        trace, deployment = files(tmp_path, LIVELOCK, LIVELOCK_DEPLOYMENT)
        assert kvplan("replay-trace", trace, "-d", deployment, *flags) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--round", "100000"], "the run has rounds 0 to"),
        (["--round", "-1"], "the run has rounds 0 to"),
        (["--at", "soon"], "--at 'soon'"),
        (["--at", "99x"], "--at '99x'"),
        (["--at", "3600s"], "the run goes from 0 s to"),
        (["--round", "1", "--at", "1s"], "--round and --at"),
        (["--request", "nobody"], "'nobody' is not in the trace"),
        ([], "no dead end"),
        (["--round", "1", "--pool-blocks", "9"], "--pool-blocks is given"),
    ],
)
def test_wrong_questions_are_one_sentence(
    tmp_path: Path, capsys: Output, arguments: list[str], said: str
) -> None:
    run = kept(tmp_path, "run")
    capsys.readouterr()
    assert kvplan("explain-round", run, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_a_run_that_is_not_there_is_no_trace_without_a_deployment(capsys: Output) -> None:
    assert kvplan("explain-round", "rnu", "--round", "3") == 2
    assert capsys.readouterr().err.startswith("kvplan: rnu is not there; a run ")


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path, capsys: Output) -> None:
    assert kvplan("explain-round", str(tmp_path), "--round", "1") == 2
    assert "start.json" in capsys.readouterr().err


def test_a_stall_is_explained_and_no_cure_refuses_what_the_run_took(tmp_path: Path, capsys: Output) -> None:
    rows: list[dict[str, object]] = [{"arrival_s": 0, "prompt_tokens": 20, "output_tokens": 60}]
    run = kept(tmp_path, "run", rows=rows, deployed=LIVELOCK_DEPLOYMENT)
    capsys.readouterr()
    assert kvplan("explain-round", run, "--format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["dead_end"]["kind"] == "stall"
    assert data["asked_rounds"] == [data["dead_end"]["round"]]
    [wait] = data["rounds"][0]["waits"]
    assert wait["request_id"] == "r0"
    # 80 tokens are 20 pages of 4; to declare 60 more would only have the request refused.
    assert [cure["flag"] for cure in data["cures"]] == ["--pool-blocks 20"]
