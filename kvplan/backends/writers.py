"""Who wrote each page last, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Writer:
    """Something that wrote a page in a round."""

    round: int
    who: str

    def __str__(self) -> str:
        return f"{self.who} in round {self.round}"


class Writers:
    """The last writer of every page of one tier."""

    def __init__(self, groups: int) -> None:
        self._last: list[dict[int, Writer]] = [{} for _ in range(groups)]

    def note(self, group: int, pages: Iterable[int], writer: Writer) -> None:
        """These pages were written."""
        last = self._last[group]
        for page in pages:
            last[page] = writer

    def of(self, group: int, page: int) -> str:
        """Who wrote the page last."""
        writer = self._last[group].get(page)
        return "nobody" if writer is None else str(writer)
