"""The command line as a whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvplan import __version__, cli
from kvplan.commands import errors

HEAVY = ("numpy", "polars", "rich", "kvplan.scheduler", "kvplan.traces", "kvplan.replay")


def kvplan(*arguments: str) -> int:
    return errors.run(lambda given: cli.app(given, standalone_mode=False), arguments)


def test_the_commands_are_mounted(capsys: pytest.CaptureFixture[str]) -> None:
    assert kvplan("--help") == 0
    shown = capsys.readouterr().out
    for command in ("size-pool", "max-request", "replay-trace"):
        assert f"  {command} " in shown
    assert "..." not in shown.split("Commands:")[1]  # said whole, in 80 columns


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert kvplan("--version") == 0
    assert capsys.readouterr().out == f"kvplan {__version__}\n"


def test_no_command_shows_the_help_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert kvplan() == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Usage: ")


def test_help_imports_nothing_heavy() -> None:
    code = f"import sys, kvplan.cli; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
