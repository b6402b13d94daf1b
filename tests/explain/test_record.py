"""Runs are kept while they are made, whole or not, and can be asked afterwards."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from kvplan.explain.explanation import explain_next
from kvplan.explain.history import round_at, session_before
from kvplan.explain.record import open_record, summary_of
from kvplan.explain.recorder import check_record, part_path, record
from kvplan.explain.start import config_of, read_start
from kvplan.replay.accept import parse_accept
from kvplan.replay.play import Ending
from kvplan.replay.run import config_facts
from kvplan.replay.session import Session, begin
from kvplan.replay.storage import Storage
from kvplan.replay.store import RunError
from kvplan.replay.transfers import Link, TransferTimes
from tests.explain.runs import CROWD, UNDECLARED, crowd, hosted, kept, undeclared
from tests.replay.small import config, row, trace


class Killed(BaseException):
    """Stands for a kill: nothing is tidied up."""


def killed(session: Session, directory: Path, after: int) -> None:
    def stop() -> bool:
        if session.round >= after:
            raise Killed
        return False

    with pytest.raises(Killed):
        record(session, directory, every=10, stop=stop)


def speculative() -> Session:
    """Steps that accept 1 to 3 tokens, by chance."""
    return begin(trace(*UNDECLARED), config(16, width=3, overlap=1), accept=parse_accept("2.2", 3, 5), seed=5)


def stored() -> Session:
    """A storage tier that fails now and then, behind links that take time; arrivals at twice the speed."""
    made = config(20)
    made.disable_l2_cache, made.enable_l3_storage, made.num_host_pages = False, True, 60
    return begin(
        trace(*CROWD),
        made,
        max_new_tokens="output",
        speed=2.0,
        transfer_times=TransferTimes(Link(2_000_000, 1e9, {0: 1e6}), Link(1_000_000, 5e8, {0: 1e6})),
        storage=Storage(0.5, 0.2, 3),
        force_retract_every=40,
        seed=3,
    )


def test_a_kept_run_is_the_run_that_was_played(tmp_path: Path) -> None:
    plain = undeclared()
    run = plain.run(*plain.play())
    made = kept(undeclared(), tmp_path / "run")
    assert not made.unfinished
    assert made.summary.figures == run.summary.figures
    assert made.summary.assumptions == run.summary.assumptions
    for name in ("requests", "rounds", "events"):
        assert made.table(name).equals(getattr(run, name))


def test_listening_to_a_run_changes_no_plan(tmp_path: Path) -> None:
    plain = hosted()
    plain.play()
    made = kept(hosted(), tmp_path / "run")
    assert made.table("events")["request_id"].to_list() == plain.engine.events.request_ids
    assert made.table("rounds")["held_blocks"].to_list() == list(plain.engine.rounds.column("held_blocks"))


def test_a_killed_run_is_readable_up_to_its_last_state(tmp_path: Path) -> None:
    killed(undeclared(), tmp_path / "run", 35)
    made = open_record(tmp_path / "run")
    assert made.unfinished
    last = made.states[-1]
    assert 30 <= last <= 35
    whole = kept(undeclared(), tmp_path / "whole")
    assert made.summary.ending is Ending.INTERRUPTED
    assert made.table("rounds").equals(whole.table("rounds").head(last))
    for name in ("events", "evictions", "admissions"):
        theirs = whole.table(name)
        assert made.table(name).equals(theirs.filter(theirs["round"] < last))
    assert summary_of(tmp_path / "run") == (made.summary, True)


def test_a_state_counts_once_what_led_to_it_is_there(tmp_path: Path) -> None:
    killed(undeclared(), tmp_path / "run", 35)
    whole = open_record(tmp_path / "run").states
    part_path(tmp_path / "run", whole[-1]).unlink()
    made = open_record(tmp_path / "run")
    assert made.states == whole[:-1]
    assert made.summary.figures.rounds.total == whole[-2]


def test_a_run_cut_short_early_has_something_to_tell(tmp_path: Path) -> None:
    session = begin(trace(row(0, 60, 3_000)), config(400))

    def stop() -> bool:
        if session.round >= 2_100:
            raise Killed
        return False

    with pytest.raises(Killed):
        record(session, tmp_path / "run", stop=stop)
    assert open_record(tmp_path / "run").states == [0, 250, 500, 1_000, 2_000]


def test_a_run_without_a_round_says_so(tmp_path: Path) -> None:
    killed(undeclared(), tmp_path / "run", 5)
    made = open_record(tmp_path / "run")
    for ask in (lambda: session_before(made, 0), lambda: round_at(made, 0.0)):
        with pytest.raises(RunError, match="the run has no round yet"):
            ask()


def test_inputs_that_another_build_noted_otherwise_are_left_out(tmp_path: Path) -> None:
    made = kept(crowd(), tmp_path / "run")
    start = tmp_path / "run" / "start.json"
    start.write_text(json.dumps(json.loads(start.read_text()) | {"inputs": {"links": 7}}))
    assert read_start(tmp_path / "run") == replace(made.start, inputs=None)
    start.write_text(json.dumps(json.loads(start.read_text()) | {"deployment": 7}))
    with pytest.raises(RunError, match="not what a run begins with"):
        read_start(tmp_path / "run")


def test_a_finished_run_keeps_its_logs_once(tmp_path: Path) -> None:
    made = kept(undeclared(), tmp_path / "run")
    assert len(made.states) > 3
    assert not list((tmp_path / "run" / "states").glob("*.part"))


def test_a_run_killed_in_its_first_rounds_says_so_and_has_none(tmp_path: Path) -> None:
    killed(undeclared(), tmp_path / "run", 3)
    made = open_record(tmp_path / "run")
    assert made.unfinished
    assert made.summary.figures.rounds.total == 0


def test_any_round_can_be_gone_back_to(tmp_path: Path) -> None:
    made = kept(undeclared(), tmp_path / "run")
    whole = undeclared()
    for at in (1, 9, 10, 27):
        whole.play(at)
        session = session_before(made, at)
        assert session.round == at
        assert session.engine.key() == whole.engine.key()


def test_a_round_that_the_run_does_not_have_is_refused(tmp_path: Path) -> None:
    made = kept(crowd(), tmp_path / "run")
    rounds = len(made.table("rounds"))
    for at in (-1, rounds):
        with pytest.raises(RunError, match=f"rounds 0 to {rounds - 1}"):
            session_before(made, at)


def test_a_run_stays_unless_force_is_given(tmp_path: Path) -> None:
    kept(crowd(), tmp_path / "run")
    with pytest.raises(RunError, match="--force"):
        record(crowd(), tmp_path / "run")
    record(crowd(), tmp_path / "run", force=True)


def test_force_replaces_an_unfinished_run_and_nothing_that_is_no_run(tmp_path: Path) -> None:
    killed(undeclared(), tmp_path / "run", 15)
    with pytest.raises(RunError, match="--force"):
        check_record(tmp_path / "run")
    check_record(tmp_path / "run", force=True)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    with pytest.raises(RunError, match="no run"):
        check_record(tmp_path / "letters", force=True)


def test_force_spares_a_directory_that_holds_more_than_a_run(tmp_path: Path) -> None:
    kept(crowd(), tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("r3 waits!")
    with pytest.raises(RunError, match=r"holds notes\.txt, which is no part of a run"):
        record(crowd(), tmp_path / "run", force=True)
    assert (tmp_path / "run" / "notes.txt").read_text() == "r3 waits!"


def test_force_replaces_a_run_that_was_killed_before_it_had_begun(tmp_path: Path) -> None:
    kept(crowd(), tmp_path / "run")
    for name in ("start.json", "run.json"):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(RunError, match="--force, is expected"):
        check_record(tmp_path / "run")
    check_record(tmp_path / "run", force=True)


def test_a_full_disk_leaves_what_was_kept_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = Path.write_bytes, [5]

    def until_full(path: Path, data: bytes) -> int:
        left[0] -= 1
        if left[0] < 0:
            write(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", until_full)
    with pytest.raises(RunError, match="cannot be written: No space left on device"):
        record(undeclared(), tmp_path / "run", every=10)
    assert not [path for path in (tmp_path / "run").rglob("*") if path.name.startswith(".")]
    made = open_record(tmp_path / "run")
    assert made.unfinished
    assert made.summary.figures.rounds.total == made.states[-1] > 0


@pytest.mark.parametrize("session", [crowd, hosted, speculative, stored], ids=lambda make: make.__name__)
def test_a_run_of_another_build_is_played_again_from_its_first_round(
    tmp_path: Path, session: Callable[[], Session]
) -> None:
    made = kept(session(), tmp_path / "run")
    at = made.states[-1] + 3
    wanted = explain_next(made.session_at(at))
    other = open_record(tmp_path / "run")
    other.start = replace(other.start, code="another")
    for path in (tmp_path / "run" / "states").iterdir():
        path.write_bytes(b"of classes that are no more")
    assert other.foreign
    assert explain_next(other.session_at(at)) == wanted
    other.check_again()


def test_another_program_version_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kept(crowd(), tmp_path / "run")
    monkeypatch.setattr("kvplan.__version__", "9.9")
    assert made.foreign
    assert made.session_at(5).round == 5


def test_a_build_that_plans_differently_says_from_which_round_on(tmp_path: Path) -> None:
    made = kept(crowd(), tmp_path / "run")
    made.start = replace(made.start, code="another")
    plans = made.table("plans").with_columns(
        plan=pl.when(pl.col("round") == 7).then(pl.col("plan") + 1).otherwise(pl.col("plan"))
    )
    plans.write_parquet(tmp_path / "run" / "plans.parquet")
    assert made.session_at(6).round == 6
    for ask in (lambda: made.session_at(7), lambda: made.session_at(20), made.check_again):
        with pytest.raises(RunError, match=r"another build of kvplan .* plans differently from round 7 on"):
            ask()


def test_another_builds_run_without_its_inputs_is_not_played(tmp_path: Path) -> None:
    made = kept(crowd(), tmp_path / "run")
    made.start = replace(made.start, code="another", inputs=None)
    with pytest.raises(RunError, match=r"another build of kvplan .* replay the trace again"):
        made.session_at(5)
    assert len(made.table("plans"))


def test_an_unfinished_run_of_another_build_is_refused(tmp_path: Path) -> None:
    killed(undeclared(), tmp_path / "run", 35)
    made = open_record(tmp_path / "run")
    made.start = replace(made.start, code="another")
    with pytest.raises(RunError, match=r"unfinished and was made by another build .* replay the trace again"):
        _ = made.summary


def test_a_trace_that_was_changed_is_noticed(tmp_path: Path) -> None:
    kept(crowd(), tmp_path / "run")
    kept(undeclared(), tmp_path / "other")
    (tmp_path / "run" / "trace.parquet").write_bytes((tmp_path / "other" / "trace.parquet").read_bytes())
    with pytest.raises(RunError, match="not the one that its run played"):
        open_record(tmp_path / "run")


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no start\.json"):
        open_record(tmp_path)
    with pytest.raises(RunError, match="no directory"):
        open_record(tmp_path / "nowhere")


def test_a_configuration_comes_back_as_it_was() -> None:
    for session in (hosted(), crowd()):
        assert config_of(config_facts(session.config)) == session.config
