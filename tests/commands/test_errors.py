"""How a command ends: one sentence on stderr and 2, findings 1, silence for readers that leave and Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import pytest
import typer

from kvplan.commands import errors
from kvplan.commands.options import Format, OutputFormat
from kvplan.deployment import DeploymentError

App = Callable[[Sequence[str] | None], object]


def program(body: Callable[[], None]) -> App:
    """An app with two commands: ``do`` runs ``body``."""
    app = typer.Typer(rich_markup_mode=None, add_completion=False)

    @app.command("do")
    def do(
        count: Annotated[int, typer.Option("--count", min=1)] = 1,
        length: Annotated[int, typer.Option("--length", "--len")] = 1,
        format: Format = OutputFormat.text,
    ) -> None:
        body()

    @app.command("other")
    def other() -> None: ...

    return lambda arguments: app(arguments, standalone_mode=False)


def raising(error: BaseException) -> App:
    def body() -> None:
        raise error

    return program(body)


def ending(app: App, *arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = errors.run(app, arguments)
    captured = capsys.readouterr()
    assert captured.out == ""
    return status, captured.err


def test_a_command_that_ends_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(program(lambda: None), "do", capsys=capsys) == (0, "")


def test_findings_are_1_and_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(raising(typer.Exit(errors.FINDING)), "do", capsys=capsys) == (1, "")


@pytest.mark.parametrize("arguments", [("do",), ("do", "--format", "json")])
def test_wrong_input_is_one_sentence_on_stderr_whatever_the_format(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status = ending(raising(DeploymentError("d.toml: x is 3;\n  4 is needed")), *arguments, capsys=capsys)
    assert status == (2, "kvplan: d.toml: x is 3; 4 is needed\n")


def test_what_would_steer_a_terminal_is_spelt_out(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ending(raising(ValueError("a\x1b[31m.toml does not exist")), "do", capsys=capsys)
    assert wrong == (2, "kvplan: a\\x1b[31m.toml does not exist\n")


def test_what_the_system_refuses_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    refused = PermissionError(13, "Permission denied", "out/requests.parquet")
    expected = (2, "kvplan: out/requests.parquet: Permission denied\n")
    assert ending(raising(refused), "do", capsys=capsys) == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("do", "--cuont", "3"), "No such option: --cuont; --count is the nearest known flag"),
        (("do", "--zzzz"), "No such option: --zzzz"),
        (("do", "--count", "x"), "--count is 'x'; it should be a valid integer"),
        (("do", "--count", "0"), "--count is '0'; it should be greater than or equal to 1"),
        (("do", "--len", "4k"), "--length / --len is '4k'; it should be a valid integer"),
        (("do", "--format", "xml"), "--format: 'xml' is not one of 'text', 'json'"),
        (("do", "--count"), "Option '--count' requires an argument"),
        (("ohter",), "No such command 'ohter'. Did you mean 'other'?"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(program(lambda: None), *arguments, capsys=capsys) == (2, f"kvplan: {said}\n")


def test_ctrl_c_is_130_and_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(raising(KeyboardInterrupt()), "do", capsys=capsys) == (130, "")


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        errors.run(raising(ZeroDivisionError()), ["do"])


@pytest.mark.parametrize("program", ["write", "lambda arguments: app(arguments, standalone_mode=False)"])
def test_a_reader_that_leaves_ends_the_program_in_silence(program: str) -> None:
    code = (
        "import sys, typer; from kvplan.commands import errors\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def write(arguments: str = ''):\n"
        "    for _ in range(100_000): print('x' * 100)\n"
        f"sys.exit(errors.run({program}))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_streams_that_the_shell_closed_swallow_what_is_written() -> None:
    code = (
        "import sys; from kvplan.commands import errors\n"
        "def program(arguments):\n"
        "    sys.stdout.write('x'); sys.stderr.write('y'); raise ValueError('wrong')\n"
        "sys.exit(errors.run(program))\n"
    )
    done = subprocess.run(["bash", "-c", '"$0" -c "$1" >&- 2>&-', sys.executable, code])
    assert done.returncode == 2


def test_output_that_cannot_be_written_is_told() -> None:
    code = (
        "import sys; from kvplan.commands import errors\nsys.exit(errors.run(lambda arguments: print('x')))\n"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "kvplan: No space left on device\n")
