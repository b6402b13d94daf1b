"""Reading and writing what accesses name: all requests of a batch at once, a violation where one is hurt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvplan.backends.accesses import Access
from kvplan.backends.arena import Arena
from kvplan.backends.layout import Places
from kvplan.backends.ledger import Ledger, pages_of
from kvplan.backends.signatures import FRESH, Words

Verdicts = NDArray[np.bool_]
Allowed = Callable[[Access, Words], Verdicts]


class Passes:
    """The device's arena, read and written by position."""

    def __init__(self, arena: Arena, ledger: Ledger) -> None:
        self.arena = arena
        self.ledger = ledger

    def read(self, group: int, accesses: Sequence[Access], use: str) -> int:
        """Check that every row holds its request's own history; the rows read.

        Raises ``Violation`` at the first that does not. ``use`` is a verb: reads, sends.
        """
        if not accesses:
            return 0
        pages = np.concatenate([one.pages for one in accesses])
        rows = np.concatenate([one.rows for one in accesses])
        marks = np.concatenate([one.marks for one in accesses])
        wrong = self.arena.differing(group, pages, rows, marks)
        if wrong is not None:
            at, mark = wrong
            one, position = _owner(accesses, at)
            wanted = self.ledger.expected(one.history, group, int(marks[at]), position)
            what = f"{use} {wanted} and finds {self.ledger.found(group, mark)}"
            raise self.ledger.violation(one.history.request_id, "device", group, int(pages[at]), what)
        return len(pages)

    def write(self, group: int, accesses: Sequence[Access], who: str, allowed: Allowed) -> int:
        """Write the rows' marks; the rows written. ``who`` comes before the request's name in later words.

        Raises ``Violation`` where a row holds what nobody may overwrite: by ``allowed``, given an access and
        what its rows hold, or anything but zeros.
        """
        if not accesses:
            return 0
        pages = np.concatenate([one.pages for one in accesses])
        rows = np.concatenate([one.rows for one in accesses])
        found = self.arena.read(group, pages, rows)
        if found.any():
            self._guard(group, accesses, pages, found, allowed)
        self.arena.write(group, pages, rows, np.concatenate([one.marks for one in accesses]))
        for one in accesses:
            writer = self.ledger.writer(f"{who} {one.history.request_id}")
            self.ledger.device.note(group, pages_of(one.pages), writer)
        return len(pages)

    def _guard(
        self, group: int, accesses: Sequence[Access], pages: Places, found: Words, allowed: Allowed
    ) -> None:
        start = 0
        for one in accesses:
            held = found[start : start + len(one.pages)]
            wrong = np.flatnonzero((held != FRESH) & ~allowed(one, held))
            if len(wrong):
                at = int(wrong[0])
                what = f"writes position {one.positions[at]} over {self.ledger.found(group, int(held[at]))}"
                if held[at] == one.marks[at]:
                    what += ", which is there already and may be shared"
                else:
                    what += ": the page was not zeroed, or is another's"
                page = int(pages[start + at])
                raise self.ledger.violation(one.history.request_id, "device", group, page, what)
            start += len(one.pages)


def own_candidates(access: Access, held: Words) -> Verdicts:
    """A request may overwrite its own candidates."""
    kept: Verdicts = held == access.history.draft
    return kept


def _owner(accesses: Sequence[Access], at: int) -> tuple[Access, int]:
    for one in accesses:
        if at < len(one.pages):
            return one, int(one.positions[at])
        at -= len(one.pages)
    raise AssertionError("a row beyond all accesses")
