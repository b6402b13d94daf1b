"""One allocation that holds a tier's pages, and what can be done to them: zero, copy, write and read marks.

A mark is the first word of a row in each field. Marks are what a forward writes and reads here; zeroing and
copying take whole pages, as an engine's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvplan.backends.errors import BackendError
from kvplan.backends.layout import Layout, Places
from kvplan.backends.signatures import POISON, Words
from kvplan.backends.torch_module import load_torch


class Arena:
    """The pages of one tier on one device."""

    def __init__(self, layout: Layout, device: Any, *, pinned: bool = False) -> None:
        """Allocate ``layout.bytes`` at once and fill them with a poison that no signature equals.

        ``pinned`` is for a host arena beside a CUDA device. Raises ``BackendError`` where memory is short.
        """
        self._torch = load_torch()
        self.layout = layout
        self.device = device
        try:
            self.words = self._torch.empty(
                layout.words, dtype=self._torch.int64, device=device, pin_memory=pinned
            )
        except RuntimeError as error:  # torch's out-of-memory errors are all of this kind
            reason = str(error).splitlines()[0]
            raise BackendError(f"{layout.bytes:,} bytes cannot be had on {device}: {reason}") from None
        self.words.fill_(POISON)
        self._pages = [
            self.words.as_strided(
                (layout.blocks, group.packing, page_words), (layout.block_words, page_words, 1)
            )
            for group, page_words in zip(layout.groups, layout.page_words, strict=True)
        ]

    def field(self, group: int, field: int) -> Any:
        """A strided view of a field's plane: (block, page of the block, row, word)."""
        return self.words.as_strided(**self.layout.view_shape(group, field))

    def page(self, group: int, page: int) -> Any:
        """A view of one page's words."""
        packing = self.layout.groups[group].packing
        return self._pages[group][(page - 1) // packing, (page - 1) % packing]

    def zero(self, group: int, pages: Sequence[int]) -> None:
        """Zero whole pages."""
        at = np.asarray(pages, np.int64) - 1
        packing = self.layout.groups[group].packing
        self._pages[group][self._index(at // packing), self._index(at % packing)] = 0

    def write(self, group: int, pages: Places, rows: Places, marks: Words) -> None:
        """Write the mark of each (page, row) pair, in every field."""
        values = self._index(marks)
        for places in self.layout.rows_at(group, pages, rows):
            self.words.index_put_((self._index(places),), values)

    def read(self, group: int, pages: Places, rows: Places) -> Words:
        """The mark of each (page, row) pair in the first field."""
        places = self.layout.rows_at(group, pages, rows)[0]
        marks: Words = self.words.index_select(0, self._index(places)).cpu().numpy()
        return marks

    def differing(self, group: int, pages: Places, rows: Places, marks: Words) -> tuple[int, int] | None:
        """The first pair whose mark is another in some field, and that mark; ``None`` where all agree."""
        wanted = self._index(marks)
        for places in self.layout.rows_at(group, pages, rows):
            found = self.words.index_select(0, self._index(places))
            if not self._torch.equal(found, wanted):
                first = int((found != wanted).nonzero()[0, 0])
                return first, int(found[first])
        return None

    def _index(self, values: Places) -> Any:
        return self._torch.from_numpy(values).to(self.device)
