"""`kvplan max-request` as people and scripts call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan import cli
from kvplan.commands import errors


@pytest.fixture
def dense(tmp_path: Path) -> str:
    """One full group with pages of 16 tokens."""
    path = tmp_path / "deployment.toml"
    path.write_text(
        "prefix_granularity = 16\nmax_scheduled_tokens = 8192\nmax_batch_size = 16\n"
        '[[cache_groups]]\ngroup_id = "kv"\nblock_granularity = 16\n',
        encoding="utf-8",
    )
    return str(path)


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def max_request(*arguments: str) -> int:
    return errors.run(lambda given: cli.app(given, standalone_mode=False), ("max-request", *arguments))


def unfolded(text: str) -> str:
    return " ".join(text.split())


def test_the_limit_its_split_and_why_not_one_token_more(
    dense: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert max_request("-d", dense, "--pool-blocks", "1478") == 0
    out = capsys.readouterr().out
    assert "RESULT  the longest request that fits has 23,648 tokens: prompt 23,647 + generation 1\n" in out
    assert (
        "one token more never fits: kv needs 1,479 pages (1,479 blocks); 1,479 LCM blocks in all, 1,478 there"
        in unfolded(out)
    )
    assert "try" not in out


def test_s3_short_by_tokens_pages_and_blocks(dense: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("-d", dense, "--pool-blocks", "1478", "--tokens", "29000")
    assert max_request(*given) == 1
    out = capsys.readouterr().out
    assert (
        "RESULT  never fits: 29,000 tokens; short by 5,352 tokens, 335 pages of kv, 335 LCM blocks\n" in out
    )
    assert "not now" not in out
    tried = [line.removeprefix("try") for line in out.splitlines() if line.startswith("try")]
    flags = [line.strip().split("   ")[0] for line in tried]
    assert flags == ["--tokens 23648", "--pool-blocks 1813"]
    for one in flags:
        assert max_request(*given, *one.split()) == 0, one
    assert max_request(*given, "--tokens", "23649") == 1
    assert max_request(*given, "--pool-blocks", "1812") == 1


def test_s5_never_fits_with_need_and_limit(dense: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert max_request("-d", dense, "--pool-tokens", "76640", "--tokens", "100000") == 1
    out = unfolded(capsys.readouterr().out)
    assert "RESULT never fits: 100,000 tokens; short by 23,360 tokens" in out
    assert "the longest request that fits has 76,640 tokens" in out
    assert max_request("-d", dense, "--pool-tokens", "76640", "--tokens", "500") == 0
    assert "RESULT fits: 500 tokens, which need 32 of 4,790 LCM blocks" in unfolded(capsys.readouterr().out)


def test_a_generation_declared_takes_from_the_prompt(dense: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert max_request("-d", dense, "--pool-blocks", "100", "--max-new-tokens", "600") == 0
    assert "prompt 1,000 + generation 600" in capsys.readouterr().out
    assert max_request("-d", dense, "--pool-blocks", "100", "--max-new-tokens", "1600") == 1
    assert "RESULT  never fits: 1,600 generated tokens leave no prompt" in capsys.readouterr().out


def test_json_has_the_same_facts_under_stable_names(dense: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("-d", dense, "--pool-blocks", "1478", "--tokens", "29000", "--format", "json")
    assert max_request(*given) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["max_tokens"], result["max_prompt_tokens"], result["generation_tokens"]) == (
        23648,
        23647,
        1,
    )
    assert result["fits"] is False
    assert (result["beyond"]["tokens"], result["beyond"]["needed_blocks"]) == (23649, 1479)
    asked = result["asked"]
    assert (asked["short_tokens"], asked["short_pages"], asked["short_blocks"]) == (5352, 335, 335)
    assert result["alternatives"][0]["flags"] == {"--tokens": 23648}


def test_the_report_keeps_to_80_columns(
    dense: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    max_request("-d", dense, "--pool-blocks", "1478", "--tokens", "29000")
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


def test_80_columns_lose_the_length_just_beyond_before_the_one_asked_about(
    dense: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = tmp_path / "long.toml"
    long.write_text(Path(dense).read_text().replace('"kv"', f'"{"attention_" * 3}"'), encoding="utf-8")
    max_request("-d", str(long), "--pool-blocks", "1000000", "--tokens", "29000000")
    out = capsys.readouterr().out
    header = next(line for line in out.splitlines() if line.startswith("One request alone needs"))
    assert header.split()[4:] == ["16,000,000", "t", "29,000,000", "t"]
    assert max(len(line) for line in out.splitlines()) <= 80


def test_json_is_utf_8_whatever_the_terminal(dense: str) -> None:
    command = [sys.executable, "-m", "kvplan.cli", "size-pool", "-d", dense, "--max-context-len", "64"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*command, "--format", "json"], capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "×" in json.loads(done.stdout.decode("utf-8"))["groups"][0]["basis"]
    text = subprocess.run(command, capture_output=True, env=environment)
    assert text.stdout.isascii()
    assert b"batch ? context" in text.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "pool_blocks"),
        (("--pool-blocks", "9", "--tokens", "0"), "tokens is 0"),
        (("--pool-blocks", "9", "--tokens", "-4"), "tokens is -4"),
        (("--pool-blocks", "9", "--tokens", "nan"), "nan"),
        (("--pool-blocks", "9", "--max-new-tokens", "-1"), "max_new_tokens is -1"),
        (("--pool-blocks", "9", "--tokens", "8", "--max-new-tokens", "8"), "tokens is 8"),
        (("--pool-gib", "1"), "bytes_per_page"),
    ],
)
def test_wrong_input_is_one_sentence_on_stderr(
    arguments: tuple[str, ...], said: str, dense: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert max_request("-d", dense, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_without_a_deployment_both_ways_to_name_the_groups_are_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    groups = (
        "cache_groups is missing; declare each cache group as a [[cache_groups]] table of a deployment file"
    )
    assert max_request() == 2
    assert capsys.readouterr().err == (
        f"kvplan: {groups} (--deployment FILE), or name the model whose groups they are (--model)\n"
    )
    path = tmp_path / "bare.toml"
    path.write_text("max_batch_size = 16\n", encoding="utf-8")
    assert max_request("-d", str(path)) == 2
    assert capsys.readouterr().err == f"kvplan: {path}: {groups} (--deployment FILE)\n"
