"""`kvplan size-pool` as people and scripts call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan import cli
from kvplan.commands import errors

HEAD = "prefix_granularity = 64\nmax_scheduled_tokens = 8192\nmax_batch_size = 16\n"
FULL = '[[cache_groups]]\ngroup_id = "full"\nblock_granularity = 64\ncache_blocks_per_lcm_block = 12\n'
STATE = '[[cache_groups]]\ngroup_id = "state"\nblock_granularity = 64\nfamily = "State"\n'
SWA = (
    '[[cache_groups]]\ngroup_id = "swa"\nblock_granularity = 64\ncache_blocks_per_lcm_block = 3\n'
    'retention = "SlidingWindow"\nwindow = 128\n'
)
SPECULATIVE = "decode_input_tokens = 4\noverlap_schedule_depth = 1\n"
BYTES = {FULL: 786_432, STATE: 9_437_184, SWA: 3_145_728}


@pytest.fixture
def s1(tmp_path: Path) -> str:
    """The deployment of case S1, with bytes."""
    text = HEAD + SPECULATIVE + "".join(group + f"bytes_per_page = {size}\n" for group, size in BYTES.items())
    return written(tmp_path, text)


def written(folder: Path, text: str) -> str:
    path = folder / "deployment.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def size_pool(*arguments: str) -> int:
    return errors.run(lambda given: cli.app(given, standalone_mode=False), ("size-pool", *arguments))


def result_lines(text: str) -> str:
    """What the RESULT line says, folding undone."""
    after = text[text.index("RESULT") :]
    return " ".join(after.split("\ntry", 1)[0].split())


def tried(text: str) -> list[str]:
    """The flags of the try lines."""
    lines = [line for line in text.splitlines() if line.startswith("try ")]
    return [line.removeprefix("try").strip().split("   ")[0] for line in lines]


def test_s1_in_text(s1: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert size_pool("-d", s1, "--max-context-len", "4096") == 0
    out = capsys.readouterr().out
    assert "2 pages + 15.6 per 1k tokens" in out
    assert "Wanted: 16 requests of up to 4,096 tokens, 65,536 in all (batch × context)" in out
    for figures in (
        "full     1,056 pages    88 blocks   792.00 MiB   65,536 / 64 + 16 × 2 open",
        "state       64 pages    64 blocks   576.00 MiB   16 × 4 at the worst moment",
        "swa        194 pages    65 blocks   585.00 MiB   16 × 4 of window + 130 for a chunk",
    ):
        assert figures in out
    assert result_lines(out).startswith("RESULT needs 217 LCM blocks (num_device_pages 218")
    assert "try" not in out


def test_s1_in_json(s1: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("-d", s1, "--max-context-len", "4096", "--max-total-tokens", "65536", "--format", "json")
    assert size_pool(*arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert [group["pages"] for group in result["groups"]] == [1056, 64, 194]
    assert result["groups"][0]["cost"] == {
        "fixed_pages_per_request": 2,
        "pages_per_token": 1 / 64,
        "once_pages": 0,
    }
    assert result["groups"][0]["basis"] == "65536 / 64 + 16 × 2 open"
    assert (result["verdict"], result["needed_blocks"], result["pool"]) == ("no_pool", 217, None)
    assert result["needed_bytes"] == 217 * 9_437_184


def test_a_pool_that_is_large_enough(s1: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert size_pool("-d", s1, "--max-context-len", "4096", "--pool-gib", "3") == 0
    out = capsys.readouterr().out
    assert "Pool:   340 LCM blocks to use, 2.99 GiB of 3.00 GiB (one block is the null one)" in out
    assert result_lines(out).startswith(
        "RESULT fits: 217 of 340 LCM blocks (64 %); up to 27 such requests at once; "
        "bound by max_batch_size (16), then by full"
    )
    assert tried(out) == []


def test_a_pool_that_is_too_small_says_what_waits_and_what_to_try(
    s1: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("-d", s1, "--max-context-len", "4096", "--pool-blocks", "150")
    assert size_pool(*given) == 1
    out = capsys.readouterr().out
    assert result_lines(out).startswith(
        "RESULT does not fit at once: 217 LCM blocks (1.91 GiB) needed, 150 there; "
        "9 of 16 requests fit, the others wait (not now); bound by swa"
    )
    assert "never" not in out
    flags = tried(out)
    assert [one.split()[0] for one in flags] == [
        "--max-batch-size",
        "--max-context-len",
        "--max-total-tokens",
        "--pool-blocks",
    ]
    for one in flags:  # each can be pasted behind what was typed
        assert size_pool(*given, *one.split()) == 0, one
        capsys.readouterr()


def test_a_request_that_never_fits_is_not_one_that_waits(s1: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("-d", s1, "--max-context-len", "50000", "--pool-blocks", "100", "--max-num-seqs", "8")
    assert size_pool(*given) == 1
    out = capsys.readouterr().out
    assert "RESULT  never fits: one request of 50,000 tokens alone needs" in out
    assert "the longest that fits has 39,932 tokens" in " ".join(out.split())
    assert "not now" not in out
    assert "--max-num-seqs 1 --max-context-len 39932" in tried(out)


def test_a_pool_in_tokens_gives_way_to_one_in_blocks(s1: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert size_pool("-d", s1, "--max-context-len", "4096", "--pool-tokens", "10000") == 1
    assert "--pool-blocks 217   instead of --pool-tokens" in capsys.readouterr().out


def test_s11_names_the_state_as_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, HEAD.replace("64\n", "128\n") + STATE)
    for slots, asked, at_once in (("47", "32", 9), ("10", "8", 2)):
        given = ("--max-context-len", "4096", "--pool-blocks", slots, "--max-batch-size", asked)
        assert size_pool("-d", path, *given) == 1
        out = result_lines(capsys.readouterr().out)
        assert f"{at_once} of {asked} requests fit" in out
        assert "bound by state" in out


def test_s12_tokens_would_fit_but_pages_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = HEAD.replace("64\n", "128\n") + '[[cache_groups]]\ngroup_id = "kv"\nblock_granularity = 128\n'
    given = ("-d", written(tmp_path, text), "--max-context-len", "2", "--pool-blocks", "1")
    assert size_pool(*given, "--max-batch-size", "2") == 1
    assert "1 of 2 requests fit, the others wait (not now)" in result_lines(capsys.readouterr().out)
    assert size_pool(*given, "--max-batch-size", "1") == 0
    assert "fits: one request alone takes 1 of 1 LCM block" in result_lines(capsys.readouterr().out)


@pytest.mark.parametrize("width", ["80", "100", "40"])
def test_a_narrow_terminal_loses_detail_and_not_sense(
    width: str, s1: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert size_pool("-d", s1, "--max-context-len", "4096", "--pool-blocks", "100") == 1
    out = capsys.readouterr().out
    if width != "40":
        assert max(len(line) for line in out.splitlines()) <= int(width)
    assert "per 1k tokens" in out
    assert "5 of 16 requests fit" in result_lines(out)
    assert ("bytes/page" in out) == (width == "100")


def test_no_colour_where_there_is_no_terminal(s1: str, capsys: pytest.CaptureFixture[str]) -> None:
    size_pool("-d", s1, "--max-context-len", "4096", "--pool-blocks", "100")
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--max-context-len"),
        (("--max-context-len", "-1"), "max_context_len is -1"),
        (("--max-context-len", "0"), "max_context_len is 0"),
        (("--max-context-len", "nan"), "nan"),
        (("--max-context-len", "4096", "--max-total-tokens", "4095"), "max_total_tokens is 4095"),
        (("--max-context-len", "4096", "--max-batch-size", "0"), "--max-batch-size is 0"),
        (("--max-context-len", "4096", "--pool-gib", "nan"), "--pool-gib is nan"),
        (("--max-context-len", "4096", "--pool-gib", "0"), "--pool-gib is 0"),
        (("--max-context-len", "4096", "--pool-blocks", "0"), "--pool-blocks is 0"),
    ],
)
def test_wrong_input_is_one_sentence_on_stderr(
    arguments: tuple[str, ...], said: str, s1: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert size_pool("-d", s1, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_a_deployment_without_groups_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert size_pool("-d", written(tmp_path, HEAD), "--max-context-len", "4096") == 2
    assert "cache_groups" in capsys.readouterr().err


def test_the_installed_command_answers(s1: str) -> None:
    command = [sys.executable, "-m", "kvplan.cli", "size-pool", "-d", s1, "--max-context-len", "4096"]
    done = subprocess.run([*command, "--pool-blocks", "216"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "RESULT  does not fit at once: 217 LCM blocks" in done.stdout


def test_what_is_sure_and_on_which_condition(s1: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert size_pool("-d", s1, "--max-context-len", "4096", "--pool-blocks", "217") == 0
    out = result_lines(capsys.readouterr().out)
    assert (
        "16 submitted together all finish and none is retracted, if each declares its max_new_tokens" in out
    )
    assert "surely at once, without a wait for a page, declared or not (all 16: from " in out
    blocks = out.split("(all 16: from ")[1].split()[0].replace(",", "")
    assert size_pool("-d", s1, "--max-context-len", "4096", "--pool-blocks", blocks) == 0
    out = result_lines(capsys.readouterr().out)
    assert "16 submitted together are surely at once, without a wait for a page" in out
    assert size_pool("-d", s1, "--max-context-len", "4096", "--pool-blocks", str(int(blocks) - 1)) == 0
    assert "(all 16: from " in result_lines(capsys.readouterr().out)


def test_without_a_pool_the_promise_is_that_of_the_pool_that_is_needed(
    s1: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert size_pool("-d", s1, "--max-context-len", "4096") == 0
    out = result_lines(capsys.readouterr().out)
    assert "in that pool 16 submitted together all finish and none is retracted, if each declares" in out
    assert size_pool("-d", s1, "--max-context-len", "4096", "--format", "json") == 0
    sure = json.loads(capsys.readouterr().out)["blocks_without_wait"]
    assert sure > 217
    assert f"one may wait for a page; from {sure:,} LCM blocks on none does" in out


def test_mixed_rounds_without_budget_for_a_decode_step_are_warned_of(
    s1: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("-d", s1, "--max-context-len", "4096", "--pool-blocks", "300", "--enable-mixed-prefill-decode")
    assert size_pool(*given, "--max-scheduled-tokens", "67") == 0
    out = capsys.readouterr().out
    assert "warning no request generates while a prefill waits" in out
    assert tried(out) == ["--max-scheduled-tokens 128"]  # a snapshot span of 64 and 16 steps of 4 tokens
    assert "all finish" not in out
    assert size_pool(*given, "--max-scheduled-tokens", "68") == 0
    assert "warning" not in capsys.readouterr().out


def test_prove_plays_the_given_pool_or_the_smallest_that_is_enough(
    s1: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("-d", s1, "--max-context-len", "4096", "--prove")
    assert size_pool(*given) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        "proof replayed 16 requests of 4,096 tokens, 256 of them generated and declared, submitted together to "
        "217 LCM blocks: all 16 finish, no retraction; at most 16 at once" in out
    )
    assert size_pool(*given, "--output-tokens", "10", "--pool-blocks", "150", "--format", "json") == 1
    proof = json.loads(capsys.readouterr().out)["proof"]
    assert (proof["usable_blocks"], proof["output_tokens"], proof["finished"]) == (150, 10, 16)
    assert proof["dead_end"] is None
    assert proof["holds"] is True


def test_a_proof_that_fails_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = "[[cache_groups]]\ngroup_id = '{}'\nblock_granularity = 16\npages_per_block = {}\n"
    window = "retention = 'SlidingWindow'\nwindow = 5\n"
    text = (
        "prefix_granularity = 16\nmax_scheduled_tokens = 16\nmax_batch_size = 5\nenable_mixed_prefill_decode = true\n"
        + group.format("full", 10)
        + group.format("near", 15)
        + window
        + "".join(group.format(name, k) + "family = 'State'\n" for name, k in (("a", 2), ("b", 3)))
    )
    given = ("-d", written(tmp_path, text), "--max-context-len", "120", "--prove", "--output-tokens", "16")
    assert size_pool(*given) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "0 of 5 finish, the others never do" in out
    assert "stall in round" in out
    size_pool(*given, "--format", "json")
    assert json.loads(capsys.readouterr().out)["proof"]["holds"] is False
    assert size_pool(*given, "--max-scheduled-tokens", "21") == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--output-tokens", "5"), "--output-tokens is given without --prove"),
        (("--prove", "--max-total-tokens", "9000"), "--prove and --max-total-tokens are given"),
        (("--prove", "--compare", "max-num-seqs=1,2"), "--prove and --compare are given"),
        (("--prove", "--output-tokens", "4096"), "output_tokens is 4096"),
    ],
)
def test_a_proof_of_something_else_is_refused(
    more: tuple[str, ...], said: str, s1: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert size_pool("-d", s1, "--max-context-len", "4096", *more) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
