"""What ends a command: input errors as one sentence on stderr (exit 2), findings as exit 1."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

FINDING = 1
USAGE = 2
INTERRUPTED = 130

# What all that typer raises for a wrong command line is: its module is private.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]


def run(program: Callable[[Sequence[str] | None], object], arguments: Sequence[str] | None = None) -> int:
    """Return the exit status of ``program`` (called with ``arguments``; None: those of the process).

    0, or what the program returns or exits with; 1 are findings. A wrong command line, wrong input
    (``ValueError``) and what the system refuses (``OSError``) are one sentence on stderr and 2. A reader that
    goes away ends the program in silence (0), and so does Ctrl-C (130). Anything else is a bug and raised.
    """
    _open_streams()
    try:
        status = program(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as end:
        if isinstance(
            end.__context__, BrokenPipeError
        ):  # typer makes an exit with 1 of it, which is a finding
            return _reader_left()
        raise
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except _CommandLineError as error:
        return _say(_command_line(error))
    except OSError as error:
        return _say(_system(error))
    except ValueError as error:
        return _say(str(error))
    except OverflowError:
        # Times are whole nanoseconds in 64 bits, and so the one thing that gets too large to be counted.
        return _say(
            "the times given go beyond 292 years, the largest that fits; shorter step times, latencies or gaps "
            "between arrivals, or more bandwidth, are needed"
        )
    except MemoryError:
        return _say("what was given needs more memory than this machine has; shorter requests are needed")
    return status if isinstance(status, int) else 0


def _open_streams() -> None:
    # Python has None for a stream that the shell closed (kvplan … >&-); what is written there goes nowhere.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the end


def _say(sentence: str) -> int:
    line = " ".join(sentence.split())
    # A name from outside may hold what would steer the terminal.
    print("kvplan: " + "".join(c if c.isprintable() else repr(c)[1:-1] for c in line), file=sys.stderr)
    return USAGE


def _command_line(error: Any) -> str:
    """The sentence of a usage error: with the value that is wrong, or the nearest name of an unknown flag."""
    sentence = str(error.format_message()).rstrip(".")
    near = getattr(error, "possibilities", None)
    if near:
        return f"{str(error.message).rstrip('.')}; {near[0]} is the nearest known flag"
    details = getattr(error.__cause__, "errors", None)  # of the validation of a value
    if details is None or error.param is None:
        return sentence
    value = details()[0]["input"]
    wanted = str(error.message).rstrip(".").split(", unable")[0]
    wanted = wanted.removeprefix("Value error, ").removeprefix("Input ")
    named = error.param.get_error_hint().replace("'", "")  # '--tokens', '--a' / '--b'
    if wanted.startswith(repr(value)):
        return f"{named}: {wanted}"
    return f"{named} is {value!r}; it {wanted}"


def _system(error: OSError) -> str:
    what = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {what}" if error.filename else what


def _reader_left() -> int:
    # What is still buffered has no reader: without this the interpreter complains about it as it exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
