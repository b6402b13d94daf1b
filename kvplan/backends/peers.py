"""The other engine of a prefill/decode pair: what it writes into this one's pages, and reads from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvplan.backends.accesses import Groups, NoPage, tables_of
from kvplan.backends.layout import Places
from kvplan.backends.ledger import Ledger
from kvplan.backends.passes import Passes, own_candidates
from kvplan.backends.roll import Roll
from kvplan.backends.signatures import History
from kvplan.scheduler.plan import Batch


@dataclass(slots=True)
class HandOff:
    """A finished prompt on its way to the peer."""

    history: History
    tables: list[Places]
    prompt: int


class Peers:
    """Transfers between engines, as seen from the pages of this one."""

    def __init__(self, groups: Groups, passes: Passes, ledger: Ledger) -> None:
        self._groups = groups
        self._passes = passes
        self._ledger = ledger
        self._leaving: dict[str, HandOff] = {}

    def receive(self, batch: Batch, roll: Roll) -> None:
        """The peer writes each prompt of ``remote_prefill`` into its landing pages. Raises ``Violation``."""
        tables = tables_of(batch)
        for at, request_id in enumerate(batch.request_ids):
            history = roll.history(request_id)
            prompt = batch.prefill_lengths[at]
            hit = batch.extend_prefix_lens[at]
            for group, table in enumerate(tables):
                try:
                    landed = self._groups.landed(group, history, table[at], hit, prompt)
                except NoPage as error:
                    raise self._ledger.no_page(error) from None
                who = "the peer's prefill of"
                rows = self._passes.write(group, [landed], who, own_candidates)
                self._ledger.counts.rows_received += rows
            history.length = prompt + 1

    def send(self, batch: Batch, roll: Roll) -> None:
        """The prompts of ``remote_decode`` start to leave."""
        tables = tables_of(batch)
        for at, request_id in enumerate(batch.request_ids):
            rows = [table[at] for table in tables]
            self._leaving[request_id] = HandOff(roll.history(request_id), rows, batch.prefill_lengths[at])

    def keep_sending(self, leaves: Callable[[str], bool]) -> None:
        """The peer reads what it is sent: in every round until the hand-off has ended, since its last read may
        come right before that. ``leaves`` tells whether a request still does. Raises ``Violation``."""
        for request_id in list(self._leaving):
            if not leaves(request_id):
                del self._leaving[request_id]
                continue
            one = self._leaving[request_id]
            for group, table in enumerate(one.tables):
                try:
                    sent = self._groups.sent(group, one.history, table, one.prompt)
                except NoPage as error:
                    raise self._ledger.no_page(error) from None
                self._ledger.counts.rows_sent += self._passes.read(group, [sent], "sends")
