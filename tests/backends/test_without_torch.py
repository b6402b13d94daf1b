"""Without torch the backend says which extra brings it, and nothing else changes."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.cli import app
from kvplan.commands import errors

EXAMPLES = Path(__file__).parents[2] / "examples"
SENTENCE = "kvplan: the torch backend needs torch"


def run(*arguments: str) -> int:
    return errors.run(lambda _: app(list(arguments), standalone_mode=False))


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check-plan", str(EXAMPLES / "traces" / "shared_prefixes.jsonl")),
        ("check-plan", "--find-max-blocks"),
        ("measure-device", "-o", "never-written.toml"),
    ],
)
def test_the_extra_is_named(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    deployment = ("-d", str(EXAMPLES / "dense_gqa.toml")) if arguments[0] == "check-plan" else ()
    assert run(*arguments, *deployment) == 2
    error = capsys.readouterr().err
    assert error.startswith(SENTENCE)
    assert "pip install 'kvplan-toolkit[torch]'" in error
    assert error.count("\n") == 1
    assert not Path("never-written.toml").exists()


@pytest.mark.parametrize("command", [(), ("check-plan",), ("measure-device",), ("replay-trace",)])
def test_a_help_text_does_not_import_torch(command: tuple[str, ...]) -> None:
    program = (
        "import sys\nfrom kvplan.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "assert not {'torch', 'numpy', 'polars'} & set(sys.modules), 'imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *command, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage: " in done.stdout


def test_torch_is_imported_in_one_place_only() -> None:
    package = Path(__file__).parents[2] / "kvplan"
    naming = [
        path.relative_to(package).as_posix()
        for path in sorted(package.rglob("*.py"))
        if any(
            line.strip().startswith(("import torch", "from torch")) for line in path.read_text().splitlines()
        )
        or 'import_module("torch")' in path.read_text()
    ]
    assert naming == ["backends/torch_module.py"]
