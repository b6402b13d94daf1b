"""A recorded scenario as a file: it plays as the recordings' own driver plays it, and what is none is told."""

import gzip
import json
from pathlib import Path

import pytest

from kvplan.backends.check import check_scenario
from kvplan.backends.recorded import read_scenario
from kvplan.cli import app
from kvplan.commands import errors
from tests.backends.carrying import carry_out
from tests.backends.small import request, scenario
from tests.support.scenario import RECORDINGS, load_recording, recording_names

pytest.importorskip("torch", reason="carrying plans out needs the extra kvplan-toolkit[torch]")

FAILING = [name for name in recording_names() if load_recording(name)["scenario"].get("failing_loads")]
NAMES = sorted({*recording_names()[::5], *FAILING})


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_is_played_as_its_own_driver_plays_it(name: str) -> None:
    result = check_scenario(read_scenario(RECORDINGS / f"{name}.json.gz"))
    recording = load_recording(name)
    assert result.safe
    assert result.counts == carry_out(recording["scenario"]).backend.counts
    assert result.counts.rounds == len(recording["result"]["rounds"])
    assert (result.ending == "complete") == (not recording["result"]["unfinished"])


def test_there_are_recordings_whose_loads_fail() -> None:
    assert FAILING
    assert sum(
        check_scenario(read_scenario(RECORDINGS / f"{name}.json.gz")).counts.pages_lost for name in FAILING
    )


def run(*arguments: str) -> int:
    return errors.run(lambda _: app(list(arguments), standalone_mode=False))


def test_check_plan_takes_one(capsys: pytest.CaptureFixture[str]) -> None:
    name = "d-full+swa+replay-retractdecode-loadback-streamordered-replay-s1607"
    assert run("check-plan", "--scenario", str(RECORDINGS / f"{name}.json.gz"), "--format", "json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["safe"], result["role"], result["ending"]) == (True, "D", "complete")
    assert result["counts"]["pages_loaded"] > 0


def test_one_that_is_not_safe_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gap of ``test_remote_landings``, handed on as a file that was not packed."""
    replay = {"group_id": "r", "block_granularity": 4, "total_pages": 1000, "replayable": True}
    replay |= {"retention": "SlidingWindow", "sliding_window_tokens": 8}
    gap = scenario(
        request(0, (1, 0, 20)),
        request(1, (1, 0, 16), (2, 0, 6), submit=10),
        groups=("full", replay),
        role="D",
    )
    path = tmp_path / "gap.json"
    path.write_text(json.dumps({"scenario": gap}))
    assert run("check-plan", "--scenario", str(path)) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "RESULT not safe: round" in out
    assert "request r1, page 0 of r: slot 3 of its table is null, but it reads position 15 there" in out


def changed(**fields: object) -> bytes:
    return json.dumps({"scenario": scenario(request(0, (1, 0, 8))) | fields}).encode()


CONFIG = scenario(request(0, (1, 0, 8)))["config"]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"{", "input data was truncated; a recorded scenario is expected"),
        (b"nonsense", ": JSON is malformed"),
        (b"\xff", "a recorded scenario is expected"),
        (gzip.compress(b"{}")[:-9], "not a whole gzip file"),
        (b"\x1f\x8bnonsense", "not a whole gzip file"),
        (gzip.compress(b"{}", mtime=0)[:10] + b"\xff" * 20, "not a whole gzip file"),
        (b"{}", "missing required field `scenario`; a recorded scenario is expected"),
        (changed(requests=[{"id": "r0", "prompt": [[1, 0, 8]]}]), "missing required field `output`"),
        (changed(requests=[request(0, (1, 0, 8), output=0)]), "request 'r0' has an output of 0 tokens; 1 at"),
        (changed(requests=[request(0, (1, 0, 8))] * 2), "request 'r0' is there twice"),
        (changed(requests=[request(0, (1, 0, -8))]), "a prompt has the segment [1, 0, -8]"),
        (changed(requests=[request(0, (1, 0, 2**40))]), "tokens; at most 16,777,216 are played"),
        (changed(timing={"result": -1}), "timing.result is -1; 0 rounds or more are needed"),
        (changed(timing={"result": 1}), "timing.result is 1; config.overlap_schedule_depth allows 0 at most"),
        (changed(storage=[[[1, 0, 2**40]]]), "tokens; at most 16,777,216 are played"),
        (changed(max_rounds=0), "max_rounds is 0; 1 or more is needed"),
        (changed(aborts=[{"round": 1, "id": "r7"}]), "aborts names the request 'r7', which is not there"),
        (changed(requests=[request(0, (1, 0, 8), submit=-1)]), "request 'r0' comes in round -1; 0 or later"),
        (changed(accept=[2]), "accept is [2]; config.decode_input_tokens allows lengths of up to 1"),
        (
            changed(config=CONFIG | {"max_batch_size": 2**40}),
            "config.max_batch_size is 1099511627776; at most",
        ),
        (changed(config=CONFIG | {"decode_input_tokens": 0}), "config.decode_input_tokens is 0; a step of 1"),
        (changed(accept=[]), "accept is []; lengths of 1 or more are needed"),
        (changed(clears=[{"round": 1, "what": "__init__"}]), "clears names '__init__'; clear_l1_cache or"),
        (changed(config=CONFIG | {"role": "X"}), "config.role is 'X'; one of P, D, Fused is needed"),
        (changed(config=CONFIG | {"colour": 1}), "config.colour is given; a scheduler has no such field"),
        (changed(config=CONFIG | {"num_device_pages": "many"}), "num_device_pages"),
        (changed(config=CONFIG | {"cache_groups": 3}), "config.cache_groups is 3; a list"),
        (changed(config=CONFIG | {"cache_groups": [3]}), "config.cache_groups[0] is 3; an object is needed"),
        (changed(config=CONFIG | {"cache_groups": [{"size": 3}]}), "config.cache_groups[0].size is given"),
        (
            changed(config=CONFIG | {"cache_groups": [{"group_id": "a", "family": "b"}]}),
            "one of History, State",
        ),
        (changed(config=CONFIG | {"cache_groups": [{"block_granularity": 4}]}), "group_id is empty"),
    ],
)
def test_what_is_no_scenario_is_one_sentence(
    tmp_path: Path, data: bytes, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(data)
    assert run("check-plan", "--scenario", str(path)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"kvplan: --scenario {path}: ")
    assert sentence in error
    assert error.count("\n") == 1


def test_a_scenario_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        assert run("check-plan", "--scenario", str(path)) == 2
        assert f"kvplan: --scenario {path}: " in capsys.readouterr().err
    assert run("check-plan", "--scenario", "x", "--scale-down", "2") == 2
    assert "a recorded scenario says nothing of bytes" in capsys.readouterr().err
