"""A file that a command writes: whole or not at all, and not over another unless told."""

from __future__ import annotations

import os
from pathlib import Path


def check_new(path: Path, named: str, force: bool) -> None:
    """Raise ``ValueError`` if something is at ``path`` and must not be replaced; ``named`` is its flag."""
    if path.is_dir():
        raise ValueError(f"{named} {path} is a directory; the name of a file is needed")
    if path.exists() and not force:
        raise ValueError(f"{named} {path} is there already; a new file is expected, or --force to replace it")


def write_whole(path: Path, text: str, named: str, force: bool = False) -> None:
    """Write ``text`` to ``path``, as UTF-8. Raises ``ValueError`` if it cannot be written."""
    check_new(path, named, force)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise ValueError(f"{named} {path} cannot be written: {error.strerror or error}") from None
