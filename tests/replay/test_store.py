"""A run on disk: whole or not there, and never over another without being told."""

from pathlib import Path

import msgspec
import polars as pl
import pytest

from kvplan.replay.replay import replay
from kvplan.replay.run import Run
from kvplan.replay.store import RunError, check_output, read_summary, read_table, write_run
from tests.replay.small import config, row, trace


@pytest.fixture(scope="module")
def run() -> Run:
    return replay(trace(row(0, 30, 3), row(1, 40, 2)), config())


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_run_is_a_summary_and_three_tables(run: Run, tmp_path: Path) -> None:
    write_run(run, tmp_path / "run")
    assert names(tmp_path) == {"run"}
    assert names(tmp_path / "run") == {"run.json", "requests.parquet", "rounds.parquet", "events.parquet"}
    assert read_summary(tmp_path / "run") == msgspec.json.decode(
        msgspec.json.encode(run.summary), type=type(run.summary)
    )
    for name in ("requests", "rounds", "events"):
        assert read_table(tmp_path / "run", name).equals(getattr(run, name))


def test_the_same_run_is_the_same_bytes(run: Run, tmp_path: Path) -> None:
    write_run(run, tmp_path / "one")
    write_run(run, tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_run_that_is_there_stays_unless_forced(run: Run, tmp_path: Path) -> None:
    write_run(run, tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("mine")
    with pytest.raises(RunError, match="is there already"):
        write_run(run, tmp_path / "run")
    assert (tmp_path / "run" / "run.json").read_text() == "mine"
    write_run(run, tmp_path / "run", force=True)
    assert read_summary(tmp_path / "run").figures.requests.finished == 2
    assert names(tmp_path) == {"run"}


def test_force_replaces_a_run_and_nothing_else(run: Run, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="holds files that are no run"):
        write_run(run, tmp_path / "work", force=True)
    assert names(tmp_path / "work") == {"thesis.txt"}


def test_an_empty_directory_may_be_used(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write_run(run, tmp_path / "run")
    assert "run.json" in names(tmp_path / "run")


def test_missing_parents_are_made(run: Run, tmp_path: Path) -> None:
    write_run(run, tmp_path / "runs" / "today" / "run")
    assert "run.json" in names(tmp_path / "runs" / "today" / "run")


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="no directory"):
        check_output(tmp_path / "file", force=True)
    with pytest.raises(RunError, match="no directory that can be written"):
        check_output(tmp_path / "file" / "run")


def test_a_failure_half_way_leaves_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(RunError, match="No space left"):
        write_run(run, tmp_path / "run")
    assert names(tmp_path) == set()


def test_a_failure_half_way_keeps_the_run_that_is_replaced(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(run, tmp_path / "run")

    def broken(value: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr("msgspec.json.encode", broken)
    with pytest.raises(KeyboardInterrupt):
        write_run(run, tmp_path / "run", force=True)
    assert names(tmp_path) == {"run"}
    assert read_summary(tmp_path / "run").figures.requests.finished == 2


def test_what_is_no_run_is_said_to_be_none(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"run\.json is missing"):
        read_summary(tmp_path)
    (tmp_path / "run.json").write_text('{"kvplan": 1}')
    with pytest.raises(RunError, match="not what a run's summary looks like"):
        read_summary(tmp_path)
    with pytest.raises(RunError, match=r"rounds\.parquet cannot be read"):
        read_table(tmp_path, "rounds")


def test_every_round_and_request_is_in_the_tables(run: Run) -> None:
    assert run.requests.columns[:3] == ["request_id", "status", "arrived_s"]
    assert run.rounds["round"].to_list() == list(range(len(run.rounds)))
    kinds = run.events.filter(pl.col("request_id") == "r0")["event"].to_list()
    assert kinds == ["arrived", "admitted", "first_token", "finished"]
