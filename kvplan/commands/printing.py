"""Results on stdout: text at the terminal's width, or JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

WIDEST = 100


def print_json(report: str) -> None:
    """Print ``report``, JSON with a last newline, as UTF-8 whatever the terminal's encoding."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8")
    sys.stdout.write(report)


def print_text(report: Callable[[int], Text]) -> None:
    """Print what ``report`` makes of a width in columns; in colour on a terminal only."""
    from rich.console import Console

    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:  # where a character of ours is not known, ? stands instead of a failure
        reconfigure(errors="replace")
    console = Console(highlight=False, soft_wrap=True)
    console.print(report(min(console.width, WIDEST)), end="")
