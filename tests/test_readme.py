"""The README is true: its commands are run and what they print is compared.

`python tests/test_readme.py` writes what they print now into the README.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kvplan.deployment.fields import FLAG_FIELDS, GROUP_FIELDS
from kvplan.traces import FORMAT_NAMES

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"^```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


def printed(command: str, directory: Path) -> str:
    """What a shell prints for ``command``, stdout and stderr, on a terminal of 100 columns."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "COLUMNS": "100", "PYTHONUTF8": "1"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=120,
    )
    return done.stdout


def played(block: str, directory: Path) -> str:
    """``block`` with each command's output as it is now; ``directory`` has the examples."""
    commands = [line for line in block.splitlines() if line.startswith("$ ")]
    return "".join(f"{command}\n{printed(command[2:], directory)}" for command in commands)


def with_examples(directory: Path) -> Path:
    shutil.copytree(ROOT / "examples", directory / "examples")
    return directory


def blocks() -> list[str]:
    return [match["body"] for match in BLOCK.finditer(README.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block.splitlines()[0][2:60])
def test_a_console_block_shows_what_its_commands_print(block: str, tmp_path: Path) -> None:
    if block.startswith("$ kvplan check-plan"):
        pytest.importorskip("torch", reason="the extra torch is not installed")
    assert block == played(block, with_examples(tmp_path))


def test_the_python_block_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=with_examples(tmp_path), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_two_commands_set_up_and_test_and_ci_does_the_same() -> None:
    first, second = re.findall(r"^```sh\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)[:2]
    setup, install, job = first.strip().split(" && ")
    ci = (ROOT / ".ci" / "run").read_text()
    assert setup == "python3 -m venv .venv"
    assert install == ".venv/bin/pip install -e '.[test]'"
    assert "pip\" install --quiet -e '.[test]'" in ci
    assert job.replace(".venv/bin/", "$ ") == blocks()[0].splitlines()[0]
    assert second.strip() == ".venv/bin/pytest -n auto"
    assert ci.endswith('pytest" -n auto\n')


def test_every_field_alias_and_trace_format_is_documented() -> None:
    text = README.read_text()
    names = [name for field in FLAG_FIELDS + GROUP_FIELDS for name in field.names]
    assert [name for name in [*names, *FORMAT_NAMES] if f"`{name}`" not in text] == []


def test_the_example_of_a_deployment_is_one(tmp_path: Path) -> None:
    from kvplan.deployment import load_deployment

    (toml,) = re.findall(r"^```toml\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "d.toml").write_text(toml)
    assert load_deployment(tmp_path / "d.toml").usable_blocks == 255


def rewrite() -> None:
    def now(match: re.Match[str]) -> str:
        with tempfile.TemporaryDirectory() as scratch:
            return f"```console\n{played(match['body'], with_examples(Path(scratch)))}```"

    README.write_text(BLOCK.sub(now, README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    rewrite()
