"""How a long command is watched: its progress on stderr, and Ctrl-C that ends it in good order."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvplan.replay.play import Progress


@contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether Ctrl-C was pressed; pressed again, it interrupts as ever."""
    pressed: list[int] = []

    def press(number: int, _: object) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, before)

    try:
        before = signal.signal(signal.SIGINT, press)
    except ValueError:  # not the main thread: whoever runs it there has it in hand
        yield lambda: False
        return
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def progress_bar(requests: int) -> Iterator[Callable[[Progress], None] | None]:
    """Give a function that shows progress on stderr; None where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    with Bar(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=requests)

        def show(progress: Any) -> None:
            more = f", {progress.retractions:,} retractions" if progress.retractions else ""
            bar.update(task, completed=progress.ended, description=f"round {progress.rounds:,}{more}")

        yield show
