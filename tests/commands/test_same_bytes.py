"""The same run, played and asked twice in different surroundings, gives the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.asked import LIVELOCK, LIVELOCK_DEPLOYMENT, ROWS, files

HOSTED = """
prefix_granularity = 16
max_scheduled_tokens = 64
max_batch_size = 8
enable_mixed_prefill_decode = true
pool_blocks = 24
num_host_pages = 60
[[cache_groups]]
group_id = "full"
block_granularity = 16
[[cache_groups]]
group_id = "sliding"
block_granularity = 16
cache_blocks_per_lcm_block = 2
retention = "SlidingWindow"
sliding_window_tokens = 40
"""
SHARED: list[dict[str, object]] = [
    row | {"prefix": [{"id": f"p{at % 3}", "tokens": 40}]} for at, row in enumerate(ROWS)
]
QUESTIONS = [
    ["explain-round", "run", "--round", "30"],
    ["explain-round", "run", "--round", "30", "--all", "--format", "json"],
    ["explain-round", "run", "--request", "r5"],
    ["explain-round", "run", "--at", "0.7s"],
    ["explain-round", "trace.jsonl", "-d", "deployment.toml", "--round", "30"],
    ["retractions", "run"],
    ["retractions", "run", "--format", "json"],
    ["prefix", "run"],
    ["prefix", "run", "--format", "json"],
    ["report", "run"],
    ["report", "run", "--format", "json"],
]
ASK = """
import sys
from kvplan import cli
from kvplan.commands import errors
from kvplan.explain.recorder import record
record.__kwdefaults__["every"] = 20
for question in sys.stdin.read().splitlines():
    print("$", question, flush=True)
    status = errors.run(lambda given: cli.app(given, standalone_mode=False), question.split())
    print(f"exit {status}", flush=True)
"""
HERE = {"PYTHONHASHSEED": "1", "TZ": "UTC", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
THERE = {"PYTHONHASHSEED": "271828", "TZ": "Asia/Kathmandu", "LANG": "de_DE.UTF-8", "LC_ALL": "POSIX"}


def asked(folder: Path, surroundings: dict[str, str], questions: list[list[str]]) -> bytes:
    """What a process of its own answers, in these surroundings."""
    temporary = folder / "tmp"
    temporary.mkdir()
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        cwd=folder,
        env={
            "PYTHONPATH": path,
            "COLUMNS": "100",
            "TMPDIR": str(temporary),
            "PYTHONUTF8": "1",
            **surroundings,
        },
        input="\n".join(" ".join(words) for words in questions).encode(),
        capture_output=True,
        check=True,
    )
    assert not list(temporary.iterdir())
    return done.stdout


@pytest.fixture(scope="module", params=["storm", "livelock"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[Path, bytes]]:
    """A run, kept and asked here and there: the folder and what was said."""
    rows, deployed = (SHARED, HOSTED) if request.param == "storm" else (LIVELOCK, LIVELOCK_DEPLOYMENT)
    questions = QUESTIONS if request.param == "storm" else [["explain-round", "run"], ["retractions", "run"]]
    play = ["replay-trace", "trace.jsonl", "-d", "deployment.toml", "-o", "run"]
    told = []
    for name, surroundings in (("here", HERE), ("some where else", THERE)):
        folder = tmp_path_factory.mktemp("same") / name
        folder.mkdir()
        files(folder, rows, deployed)
        told.append((folder, asked(folder, surroundings, [play, *questions])))
    return told


def test_every_answer_is_the_same(both: list[tuple[Path, bytes]]) -> None:
    (_, here), (_, there) = both
    assert here == there
    answers = here.decode().split("$ ")[1:]
    assert len(answers) > 2
    for answer in answers:
        assert answer.endswith(("exit 0\n", "exit 1\n"))
        assert len(answer.splitlines()) > 3


def test_every_file_of_a_run_is_the_same(both: list[tuple[Path, bytes]]) -> None:
    (here, _), (there, _) = both
    names = sorted(str(path.relative_to(here)) for path in here.glob("run/**/*") if path.is_file())
    assert names == sorted(str(path.relative_to(there)) for path in there.glob("run/**/*") if path.is_file())
    assert {"run/run.json", "run/events.parquet", "run/plans.parquet"} <= set(names)
    differ = [name for name in names if (here / name).read_bytes() != (there / name).read_bytes()]
    assert differ == []
    assert len(list(here.glob("run/states/*.state"))) >= 3  # each 20 rounds: what a state holds is in them
