"""Which rows a plan's batches write and read: positions of requests, turned into pages by the block tables.

Pure: nothing here touches memory. A position is a token's place in its request; the state behind n tokens
stands as position n − 1, in the page that spans it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvplan.backends.layout import Places
from kvplan.backends.signatures import History, Words
from kvplan.scheduler.config import CacheGroupConfig, GroupKind
from kvplan.scheduler.plan import Batch

Tables = dict[str, Places]


class NoPage(Exception):
    """A request needs a position of a group whose slot has no page."""

    def __init__(self, history: History, group: int, slot: int, position: int, null: bool, use: str) -> None:
        self.history = history
        self.group = group
        why = f"slot {slot} of its table is {'null' if null else 'not there'}"
        self.what = f"{why}, but it {use} position {position} there"
        super().__init__(self.what)


@dataclass(slots=True)
class Job:
    """One request's part of a forward.

    Rows [begin, end) are computed and stand, [end, tail) are candidates that may not, nor does anything behind
    the last token of the request; replayable groups start at ``first`` instead of ``begin``. The block tables
    are one row a group.
    """

    history: History
    tables: list[Places]
    first: int
    begin: int
    end: int
    tail: int
    decode: bool = False


@dataclass(slots=True)
class Access:
    """Some positions of one request in one group: their pages, rows in the page, and what each row holds."""

    history: History
    positions: Places
    pages: Places
    rows: Places
    marks: Words


def tables_of(batch: Batch) -> list[Places]:
    """The batch's block tables, an array (requests, slots) a group."""
    return [table.astype(np.int64) for table in batch.block_tables_arrays().values()]


class Groups:
    """The groups of a configuration, and what each is asked for."""

    def __init__(self, groups: Sequence[CacheGroupConfig], prefix: int) -> None:
        self.groups = list(groups)
        self.ids = [group.group_id for group in groups]
        self.prefix = prefix
        self.states = [at for at, group in enumerate(groups) if group.kind == GroupKind.STATE]
        self.histories = [at for at, group in enumerate(groups) if group.kind != GroupKind.STATE]

    # --- a forward ----------------------------------------------------------------------------------

    def written(self, group: int, job: Job) -> Access:
        """The rows of a history group that a job writes (engine.md §5, §7.1; design note §1.3)."""
        first = job.first if self.groups[group].replayable else job.begin
        return self._rows(group, job.history, job.tables[group], first, job.end, job.tail, "writes")

    def read(self, group: int, job: Job) -> Access:
        """The rows of a history group that a job's queries read, its own included."""
        one = self.groups[group]
        low = 0
        if one.kind == GroupKind.SLIDING:
            low = max(job.begin - one.window + 1, 0)
            if one.replayable:
                low = min(low, job.first)
        return self._rows(group, job.history, job.tables[group], low, job.end, job.tail, "reads")

    def state_read(self, group: int, job: Job) -> Access | None:
        """The snapshot that a job continues; ``None`` at the very beginning."""
        if not job.begin:
            return None
        return self._states(group, job.history, job.tables[group], [job.begin], "continues from")

    def states_written(self, group: int, job: Job) -> Access:
        """The snapshots that a job leaves: the aligned checkpoint inside its chunk, and its end (§8)."""
        table = job.tables[group]
        if job.decode:  # a step of any length up to its width may be accepted: each end needs its page
            self._slots(group, job.history, table, np.arange(job.begin, job.tail), "may end at")
        aligned = job.end // self.prefix * self.prefix
        inside = [aligned] if not job.decode and job.begin < aligned < job.end else []
        return self._states(group, job.history, table, [*inside, job.end], "writes")

    # --- a transfer between engines -----------------------------------------------------------------

    def sent(self, group: int, history: History, table: Places, prompt: int) -> Access:
        """What a prefill worker sends of a finished prompt."""
        one = self.groups[group]
        if one.kind == GroupKind.STATE:
            return self._states(group, history, table, [prompt], "sends")
        low = max(prompt - one.window + 1, 0) if one.kind == GroupKind.SLIDING else 0
        return self._rows(group, history, table, low, prompt, prompt, "sends")

    def landed(self, group: int, history: History, table: Places, hit: int, prompt: int) -> Access:
        """What a decode worker receives of a prompt of which it has ``hit`` tokens itself: whole pages of the
        window (the peer sends what its pages hold), the rest of a full group, the last state."""
        one = self.groups[group]
        if one.kind == GroupKind.STATE:
            return self._states(group, history, table, [prompt], "receives")
        low = hit
        if one.kind == GroupKind.SLIDING:
            g = one.block_granularity
            low = max(hit, max(prompt - one.window + 1, 0) // g * g)
        return self._rows(group, history, table, low, prompt, prompt, "receives")

    # --- a page by its key --------------------------------------------------------------------------

    def keyed(self, group: int, history: History, page: int, offset: int) -> tuple[Places, Words]:
        """The rows of a prefix page's part, and what each holds; of a state, the one at the page's end."""
        one = self.groups[group]
        g = one.block_granularity
        begin = page * self.prefix + offset * g
        if one.kind == GroupKind.STATE:
            return np.zeros(1, np.int64), history.rows(one.group_id)[begin + g - 1 : begin + g]
        return np.arange(g), history.rows(one.group_id)[begin : begin + g]

    # --- common -------------------------------------------------------------------------------------

    def _rows(
        self, group: int, history: History, table: Places, low: int, end: int, tail: int, use: str
    ) -> Access:
        positions = np.arange(low, tail)
        pages = self._slots(group, history, table, positions, use)
        marks = history.rows(self.ids[group])[low:end]
        if len(marks) < len(positions):
            marks = np.concatenate((marks, np.full(len(positions) - len(marks), history.draft)))
        rows = positions % self.groups[group].block_granularity
        return Access(history, positions, pages, rows, marks)

    def _states(
        self, group: int, history: History, table: Places, computed: Sequence[int], use: str
    ) -> Access:
        positions = np.array(computed, np.int64) - 1
        pages = self._slots(group, history, table, positions, use)
        own = history.rows(self.ids[group])
        marks = np.where(positions < len(own), own[np.minimum(positions, len(own) - 1)], history.draft)
        return Access(history, positions, pages, np.zeros(len(pages), np.int64), marks)

    def _slots(self, group: int, history: History, table: Places, positions: Places, use: str) -> Places:
        slots = positions // self.groups[group].block_granularity
        if len(slots) and slots[-1] < len(table):
            pages = table[slots]
            if pages.min() > 0:
                return pages
        else:
            pages = np.full(len(slots), -1)
            there = slots < len(table)
            pages[there] = table[slots[there]]
        missing = np.flatnonzero(pages <= 0)
        if not len(missing):
            return pages
        at = int(missing[0])
        raise NoPage(history, group, int(slots[at]), int(positions[at]), pages[at] == 0, use)
