"""What a backend has done, and who wrote what: shared by the parts that carry a round out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvplan.backends.accesses import Groups, NoPage
from kvplan.backends.errors import Place, Violation
from kvplan.backends.layout import Places
from kvplan.backends.roll import Roll
from kvplan.backends.signatures import History
from kvplan.backends.writers import Writer, Writers


@dataclass(slots=True)
class Counts:
    """What was carried out so far: pages and rows, over all groups."""

    rounds: int = 0
    forwards: int = 0
    rows_written: int = 0
    rows_read: int = 0
    pages_zeroed: int = 0
    pages_stored: int = 0
    pages_loaded: int = 0
    pages_lost: int = 0
    rows_sent: int = 0
    rows_received: int = 0


class Ledger:
    """The round that is being carried out, the last writers of both tiers, and violations in their words."""

    def __init__(self, groups: Groups, roll: Roll) -> None:
        self.groups = groups
        self.roll = roll
        self.round = 0
        self.counts = Counts()
        self.device = Writers(len(groups.ids))
        self.host = Writers(len(groups.ids))

    def writer(self, who: str) -> Writer:
        """A writer of this round."""
        return Writer(self.round, who)

    def violation(self, request_id: str, tier: str, group: int, page: int, what: str) -> Violation:
        """A violation at a page, with who wrote it last."""
        writers = self.host if tier == "host" else self.device
        return Violation(
            self.round,
            request_id,
            Place(self.groups.ids[group], page, tier),
            what,
            writers.of(group, page) if page > 0 else "nobody",
        )

    def no_page(self, error: NoPage) -> Violation:
        """The violation of a position that has no page."""
        return self.violation(error.history.request_id, "device", error.group, 0, error.what)

    def found(self, group: int, mark: int) -> str:
        """What a mark stands for, in words."""
        return self.roll.meaning(mark, self.groups.ids[group], self.groups.ids)

    def expected(self, history: History, group: int, mark: int, position: int) -> str:
        """What should have been there, in words."""
        if mark == history.draft:
            return f"its own candidate at position {position}"
        return f"its own position {position}"


def pages_of(pages: Places) -> list[int]:
    """The distinct pages of an access, in which a page's rows are neighbours."""
    if len(pages) == 0:
        return []
    kept = np.flatnonzero(np.diff(pages, prepend=-1))
    distinct: list[int] = pages[kept].tolist()
    return distinct
