"""The forward of a round: every row that it computes is written, every row that it attends to is read."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.backends.accesses import Access, Groups, Job, NoPage, tables_of
from kvplan.backends.layout import Places
from kvplan.backends.ledger import Ledger
from kvplan.backends.passes import Allowed, Passes, Verdicts, own_candidates
from kvplan.backends.roll import Roll
from kvplan.backends.signatures import History, Words
from kvplan.scheduler.plan import Batch


class Forward:
    """Runs batches against the arena. ``width`` is a decode step's tokens."""

    def __init__(self, groups: Groups, passes: Passes, ledger: Ledger, width: int) -> None:
        self._groups = groups
        self._passes = passes
        self._ledger = ledger
        self._width = width

    def jobs(self, batch: Batch, roll: Roll) -> list[Job]:
        """What each request of the batch computes; moves the histories on."""
        tables = tables_of(batch)
        jobs = []
        extends = batch.num_extends()
        for at, request_id in enumerate(batch.request_ids):
            history = roll.history(request_id)
            rows = [table[at] for table in tables]
            if at < extends:
                jobs.append(self._chunk(batch, at, history, rows))
                continue
            begin = history.length - 1
            accepted = min(max(roll.script.accepted(request_id, history.steps), 1), self._width)
            history.steps += 1
            history.length += accepted
            # A step may be planned before the last token has landed (overlap): the device then runs on behind
            # the end of the script.
            end, tail = begin + accepted, begin + self._width
            jobs.append(Job(history, rows, begin, begin, end, tail, decode=True))
        return jobs

    def _chunk(self, batch: Batch, at: int, history: History, rows: list[Places]) -> Job:
        first = batch.extend_prefix_lens[at]
        begin = first + batch.extend_replay_lens[at]
        end = tail = first + batch.input_lengths[at]
        if end > len(history.tokens):
            raise ValueError(
                f"request {history.request_id}: a chunk ends at {end}, but its script has "
                f"{len(history.tokens)} tokens"
            )
        if end == batch.prefill_lengths[at]:
            history.length = end + 1
            if self._width > 1:  # the drafter writes the first candidates behind the prompt (design note §1)
                tail = end + self._width
        return Job(history, rows, first, begin, end, tail)

    def run(self, jobs: Sequence[Job]) -> None:
        """Carry the jobs out as one forward. Raises ``Violation``."""
        try:
            self._states(jobs)
            self._rows(jobs)
        except NoPage as error:
            raise self._ledger.no_page(error) from None

    def _states(self, jobs: Sequence[Job]) -> None:
        counts = self._ledger.counts
        for group in self._groups.states:
            reads = [self._groups.state_read(group, job) for job in jobs]
            continued = [one for one in reads if one is not None]
            counts.rows_read += self._passes.read(group, continued, "continues from the state behind")
            written = [self._groups.states_written(group, job) for job in jobs]
            counts.rows_written += self._passes.write(
                group, written, "the forward of", self._own_state(group)
            )
            counts.rows_read += self._passes.read(group, written, "reads back the state behind")

    def _own_state(self, group: int) -> Allowed:
        g = self._groups.groups[group].block_granularity
        group_id = self._groups.ids[group]

        def allowed(access: Access, held: Words) -> Verdicts:
            """A state may replace an earlier one of its request in the same page."""
            own = access.history.rows(group_id)
            kept: Verdicts = held == access.history.draft
            for at, position in enumerate(access.positions.tolist()):
                kept[at] |= held[at] in own[position // g * g : position]
            return kept

        return allowed

    def _rows(self, jobs: Sequence[Job]) -> None:
        counts = self._ledger.counts
        for group in self._groups.histories:
            written = [self._groups.written(group, job) for job in jobs]
            counts.rows_written += self._passes.write(group, written, "the forward of", own_candidates)
            read = [self._groups.read(group, job) for job in jobs]
            counts.rows_read += self._passes.read(group, read, "reads")
