"""A TOML file, read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from kvplan.deployment.errors import DeploymentError
from kvplan.deployment.fields import GROUPS, REQUIRED

_PLACE = re.compile(r"^(?P<what>.*) \(at line (?P<line>\d+), column (?P<column>\d+)\)$", re.DOTALL)


def read_document(path: Path) -> dict[str, object]:
    """Return what the TOML file at ``path`` says.

    Raises ``DeploymentError`` if it cannot be read, is not UTF-8, is not TOML (with line and column), or is
    empty.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise DeploymentError(f"{path} does not exist; a deployment file (TOML) is needed") from None
    except IsADirectoryError:
        raise DeploymentError(f"{path} is a directory; a deployment file (TOML) is needed") from None
    except OSError as error:
        raise DeploymentError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DeploymentError(
            f"{path} is not UTF-8 text (byte {error.start + 1}); a deployment file (TOML) is needed"
        ) from None
    except ValueError as error:  # a path with a null byte
        raise DeploymentError(f"{str(path)!r} is not a path: {error}") from None
    try:
        document = tomllib.loads(text)
    except ValueError as error:  # a TOMLDecodeError, or an integer of thousands of digits
        raise DeploymentError(_syntax(path, text, str(error))) from None
    except RecursionError:
        raise DeploymentError(f"{path} is nested too deep; a deployment is flat") from None
    if not document:
        raise DeploymentError(
            f"{path} is empty; a deployment needs {', '.join(REQUIRED)} and a [[{GROUPS}]] table for each "
            "group"
        )
    return document


def _syntax(path: Path, text: str, message: str) -> str:
    place = _PLACE.match(message)
    if place is None:
        what, end, _ = message.partition(" (at end of document)")
        last = f", line {len(text.splitlines())}" if end else ""
        return f"{path}{last}: not TOML: {what}"
    return f"{path}, line {place['line']}, column {place['column']}: not TOML: {place['what']}"
