"""`kvplan explain-round` of prefill and decode workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kvplan.explain.workers import PlayedWorker, worker_named
from kvplan.replay.accept import parse_accept
from kvplan.replay.worker_inputs import WorkerInputs
from kvplan.reports.dead_end import cure_lines
from kvplan.reports.replay_units import duration
from kvplan.scheduler.what_if import with_blocks
from kvplan.traces import read_trace
from tests.commands.asked import files, kvplan
from tests.replay.small import config

Output = pytest.CaptureFixture[str]
# r1's 17 pages do not fit beside r0 on the decode worker, which gives room to r2 and r3; their prompts do not
# fit beside r1's pinned pages on the prefill worker.
ROWS: list[dict[str, object]] = [
    {"arrival_s": 0, "prompt_tokens": prompt, "output_tokens": out, "max_new_tokens": out}
    for prompt, out in ((80, 40), (256, 4), (64, 4), (64, 4))
]
DEPLOYED = """
prefix_granularity = 16
max_scheduled_tokens = 64
max_batch_size = 8
enable_mixed_prefill_decode = true
pool_blocks = 20
[[cache_groups]]
group_id = "full"
block_granularity = 16
"""
SPLIT = ("--prefill-workers", "1", "--decode-workers", "1")


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def asked(
    folder: Path, capsys: Output, *question: str, split: tuple[str, ...] = SPLIT
) -> tuple[int, str, str]:
    trace, deployment = files(folder, ROWS, DEPLOYED)
    capsys.readouterr()
    status = kvplan("explain-round", trace, "-d", deployment, *split, *question)
    return status, *capsys.readouterr()


def told(folder: Path, capsys: Output, *question: str) -> dict[str, Any]:
    status, out, err = asked(folder, capsys, "--format", "json", *question)
    assert status == 0, err
    made: dict[str, Any] = json.loads(out)
    return made


def test_a_dead_end_is_explained_on_either_side(tmp_path: Path, capsys: Output) -> None:
    decode, prefill = (told(tmp_path, capsys, "--worker", name) for name in ("decode-0", "P0"))
    assert (decode["worker"], prefill["worker"]) == ("decode 0", "prefill 0")
    waits = {wait["request_id"]: wait for wait in decode["rounds"][0]["waits"]}
    assert waits["r1"]["attempt"]["outcome"] == "no_capacity"
    assert waits["r1"]["attempt"]["groups"][0]["needed"] == 17
    assert {wait["request_id"] for wait in prefill["rounds"][0]["waits"]} == {"r2", "r3"}
    assert (decode["rounds"][0]["role"], prefill["rounds"][0]["role"]) == ("D", "P")


def test_text_names_the_worker_its_role_and_what_lets_a_request_in(tmp_path: Path, capsys: Output) -> None:
    status, out, err = asked(tmp_path, capsys, "--worker", "D0", "--request", "r1")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "worker  decode 0"
    assert lines[1].startswith("r1 arrived in round 0 at 0 s, and was not admitted")
    assert any("decode worker   budget" in line for line in lines)
    assert any(line.startswith("RESULT  r1 waits: not now, it needs 17 empty LCM blocks") for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_what_lets_a_worker_s_request_in_does(tmp_path: Path, capsys: Output) -> None:
    round = told(tmp_path, capsys, "--worker", "D0", "--request", "r1")["rounds"][-1]
    [wait] = [wait for wait in round["waits"] if wait["request_id"] == "r1"]
    more = wait["remedies"]["extra_blocks"]
    assert more > 0
    replay = WorkerInputs(
        trace=read_trace(files(tmp_path, ROWS, DEPLOYED)[0]),
        config=config(20),
        prefill_workers=1,
        decode_workers=1,
        accept=parse_accept(None, 1),
    ).replay()
    worker = replay.decode[0]
    replay.stop = lambda: worker.round_index == round["round"]
    replay.play()
    for extra, enters in ((more, True), (more - 1, False)):
        plan = with_blocks(worker.scheduler, extra).next_execution_plan()
        landing = [] if plan.remote_prefill is None else list(plan.remote_prefill.request_ids)
        assert ("r1" in landing) is enters


@pytest.mark.parametrize("worker", ["prefill 0", "decode 0", "decode 1"])
def test_each_round_that_is_explained_is_the_round_that_was_played(tmp_path: Path, worker: str) -> None:
    rows: list[dict[str, object]] = [
        {"arrival_s": 0.01 * i, "prompt_tokens": 40 + 7 * i, "output_tokens": 12} for i in range(12)
    ]
    inputs = WorkerInputs(
        trace=read_trace(files(tmp_path, rows, DEPLOYED)[0]),
        config=config(40),
        prefill_workers=1,
        decode_workers=2,
        accept=parse_accept(None, 1),
    )
    played = PlayedWorker(inputs, worker_named(inputs, worker))
    played.play(lambda _: False)
    assert played.replay.ending == "complete"
    rounds = played.table("rounds")
    explained = played.explain(list(range(len(rounds))), detailed=0)
    assert [one.round for one in explained] == rounds["round"].to_list()
    for one, row in zip(explained, rounds.iter_rows(named=True), strict=True):
        assert one.time_s == row["time_s"]
        assert (one.waiting, one.running) == (row["waiting"], row["running"])
        after = (one.pool_after.free, one.pool_after.cached, one.pool_after.held)
        assert after == (row["free_blocks"], row["cached_blocks"], row["held_blocks"])
    scheduled = pl.Series([one.scheduled for one in explained])
    assert (scheduled >= rounds["prefill_requests"] + rounds["decode_requests"]).all()


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_only_worker_needs_no_name(tmp_path: Path, capsys: Output, role: str) -> None:
    status, out, err = asked(tmp_path, capsys, "--round", "2", split=("--role", role))
    assert (status, err) == (0, "")
    assert out.startswith(f"worker  {role} 0\n")


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ([], "one of prefill 0, decode 0 is expected"),
        (["--worker", "D1"], "'D1'"),
        (["--worker", "P0", "--round", "9999"], "the run has rounds 0 to"),
        (["--worker", "P0", "--request", "nobody"], "'nobody' is not in the trace"),
        (["--worker", "P0", "--at", "9999s"], "the run goes from 0 s to"),
    ],
)
def test_wrong_questions_are_one_sentence(
    tmp_path: Path, capsys: Output, question: list[str], said: str
) -> None:
    status, out, err = asked(tmp_path, capsys, *question)
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_fused_engine_has_no_workers(tmp_path: Path, capsys: Output) -> None:
    status, _, err = asked(tmp_path, capsys, "--worker", "P0", "--round", "1", split=())
    assert (status, "one engine" in err) == (2, True)


def test_a_request_that_no_worker_can_hold_is_told_so(tmp_path: Path, capsys: Output) -> None:
    status, out, _ = asked(tmp_path, capsys, "--worker", "D0", "--request", "r1", "--pool-blocks", "9")
    assert status == 0
    assert "r1" in out
    assert "260" in out, "256 of the prompt and 4 that it declares"


@pytest.mark.parametrize("split", [SPLIT, ("--prefill-workers", "2", "--decode-workers", "1")])
def test_what_ends_a_dead_end_was_replayed(tmp_path: Path, capsys: Output, split: tuple[str, ...]) -> None:
    status, out, err = asked(tmp_path, capsys, "--worker", "D0", "--format", "json", split=split)
    assert status == 0, err
    said = json.loads(out)
    assert said["ending"] == "stall"
    trace, deployment = files(tmp_path, ROWS, DEPLOYED)
    assert {cure["flag"].split()[0] for cure in said["cures"]} >= {"--pool-blocks"}
    for cure in said["cures"]:
        flags = [*split, *cure["flag"].split()]
        assert kvplan("replay-trace", trace, "-d", deployment, "--format", "json", *flags) == 0
        figures = json.loads(capsys.readouterr().out)
        assert (figures["ending"], figures["finished"]) == ("complete", cure["finished"])
        assert figures["duration_s"] == cure["duration_s"]
        assert sum(worker["retractions"] for worker in figures["workers"]) == cure["retractions"]


def test_a_dead_end_is_named_and_what_ends_it_comes_last(tmp_path: Path, capsys: Output) -> None:
    status, out, _ = asked(tmp_path, capsys, "--worker", "P0")
    assert status == 0
    said = " ".join(out.split())
    assert said.startswith("worker prefill 0; the replay ends in a stall, this is its last round here")
    assert "try --pool-blocks 22 no dead end" in said
    assert "of the pools up to 4 times as large, more workers, smaller batches" in " ".join(
        cure_lines([], 80, duration, workers=True)
    )


def kept(folder: Path, capsys: Output, *flags: str) -> str:
    trace, deployment = files(folder, ROWS, DEPLOYED)
    run = str(folder / "run")
    assert kvplan("replay-trace", trace, "-d", deployment, *SPLIT, "--output", run, *flags) in (0, 1)
    capsys.readouterr()
    return run


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--transfer-latency=3ms", "--routing=least-loaded", "--speed=2", "--concurrency=3"),
        ("--host-blocks=30", "--enable-l3-storage", "--storage=0.5", "--storage-failure-rate=0.3"),
        ("--force-retract-every=9", "--max-new-tokens=output", "--rounds", "--decode-input-tokens=2"),
    ],
)
def test_a_kept_run_is_asked_like_its_trace(tmp_path: Path, capsys: Output, flags: tuple[str, ...]) -> None:
    run = kept(tmp_path, capsys, *flags)
    trace, deployment = files(tmp_path, ROWS, DEPLOYED)
    for question in (["--worker=D0", "--request=r2"], ["--worker=P0", "--round=3"]):
        assert kvplan("explain-round", trace, "-d", deployment, *SPLIT, *flags, *question) == 0
        from_trace = capsys.readouterr().out
        (tmp_path / "trace.jsonl").rename(tmp_path / "moved.jsonl")
        assert kvplan("explain-round", run, *question) == 0
        assert capsys.readouterr().out == from_trace
        (tmp_path / "moved.jsonl").rename(tmp_path / "trace.jsonl")


@pytest.mark.parametrize("command", ["retractions", "prefix"])
def test_what_tells_of_one_engine_says_what_tells_of_workers(
    tmp_path: Path, capsys: Output, command: str
) -> None:
    assert kvplan(command, kept(tmp_path, capsys)) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), "report and explain-round --worker" in err) == ("", 1, True)


def test_a_run_whose_rounds_come_out_otherwise_is_not_explained(tmp_path: Path, capsys: Output) -> None:
    run = kept(tmp_path, capsys)
    table = Path(run) / "rounds.parquet"
    rounds = pl.read_parquet(table)
    changed = rounds.with_columns(
        held_blocks=pl.when((pl.col("worker") == "decode 0") & (pl.col("round") == 4))
        .then(pl.lit(99, pl.Int64))
        .otherwise(pl.col("held_blocks"))
    )
    changed.write_parquet(table)
    assert kvplan("explain-round", run, "--worker", "D0", "--round", "6") == 2
    err = capsys.readouterr().err
    assert "round 4 of decode 0 is not the same now" in err
    assert kvplan("explain-round", run, "--worker", "P0", "--round", "6") == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (None, {}),
        ("accept", {"table": "AAAA", "stride": 1, "basis": "given"}),
        ("speed", 0),
        ("budget", "all"),
    ],
)
def test_damaged_inputs_are_one_sentence(
    tmp_path: Path, capsys: Output, field: str | None, value: object
) -> None:
    run = kept(tmp_path, capsys)
    path = Path(run) / "workers.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(value if field is None else {**whole, field: value}))
    assert kvplan("explain-round", run, "--worker", "D0", "--round", "6") == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert field is not None or "workers.json is not what" in err
