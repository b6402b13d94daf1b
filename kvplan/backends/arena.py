"""One allocation that holds a tier's pages, and what can be done to them: zero, copy, write and read marks.

A mark is the first 8 bytes of a row in each field of each layer (all of a row that is smaller). Marks are what a
forward writes and reads here; zeroing and copying take whole pages, as an engine's do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kvplan.backends.allocator import available_bytes
from kvplan.backends.errors import BackendError
from kvplan.backends.layout import WORD, Layout, Places
from kvplan.backends.signatures import POISON, Words
from kvplan.backends.torch_module import load_torch

MOST_AT_ONCE = 1 << 22  # marks that one gather takes, so that its index stays small beside the arena

DTYPES = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "int8": "int8",
    "e8m0": "float8_e8m0fnu",
}


class Arena:
    """The pages of one tier on one device."""

    def __init__(self, layout: Layout, device: Any, *, pinned: bool = False) -> None:
        """Allocate ``layout.bytes`` at once and fill them with a poison that no signature equals.

        ``pinned`` is for a host arena beside a CUDA device. Raises ``BackendError`` where memory is short.
        """
        self._torch = load_torch()
        self.layout = layout
        self.device = device
        if (
            device.type == "cpu"
        ):  # which promises memory that it does not have, and ends the process for it later
            there = available_bytes()
            if there is not None and layout.bytes > there:
                raise BackendError(
                    f"{layout.bytes:,} bytes cannot be had on {device}: {there:,} are available; a smaller pool, "
                    "or a larger --scale-down, is needed"
                )
        try:
            self.words = self._torch.empty(
                layout.bytes // WORD, dtype=self._torch.int64, device=device, pin_memory=pinned
            )
        except RuntimeError as error:  # torch's out-of-memory errors are all of this kind
            reason = str(error).splitlines()[0]
            raise BackendError(f"{layout.bytes:,} bytes cannot be had on {device}: {reason}") from None
        self.words.fill_(POISON)
        self.bytes = self.words.view(self._torch.uint8)
        # A strided copy between a device and pinned memory would go through a temporary and wait for it.
        self._in_parts = pinned or device.type == "cuda"
        self._pages = [self._view_of_pages(group) for group in range(len(layout.groups))]
        self._words_fit = [
            [layout.whole(group, field, WORD) for field in range(len(spec.fields))]
            for group, spec in enumerate(layout.groups)
        ]

    def _view_of_pages(self, group: int) -> Any:
        if self.layout.whole_pages(group, WORD):
            return self.words.as_strided(**self.layout.page_view(group, WORD))
        return self.bytes.as_strided(**self.layout.page_view(group, 1))

    def field(self, group: int, field: int) -> Any:
        """A strided view of a field in all layers: (block, stack, slot, layer, row, elements of the row).

        Elements have the field's own type and shape where they are known and aligned; else they are words of 8
        bytes, or bytes where rows are no whole words.
        """
        spec = self.layout.groups[group].fields[field]
        if spec.dtype:
            dtype = getattr(self._torch, DTYPES[spec.dtype])
            if self.layout.whole(group, field, dtype.itemsize):
                view = self.layout.field_view(group, field, dtype.itemsize, spec.shape or (1,))
                return self.bytes.view(dtype).as_strided(**view)
        unit = WORD if self._words_fit[group][field] else 1
        flat = self.words if unit == WORD else self.bytes
        return flat.as_strided(**self.layout.field_view(group, field, unit, (spec.row_bytes // unit,)))

    def page(self, group: int, page: int) -> Any:
        """A view of one page: (layer, word), or (layer, byte) where its parts are no whole words."""
        block, stack, slot = (int(at) for at in self.layout.slots(group, np.int64(page)))  # type: ignore[arg-type]
        return self._pages[group][block, stack, slot]

    def parts(self, group: int, page: int) -> Sequence[Any]:
        """What to copy a page by: all of it at once on a CPU, layer by layer where copies go on beside."""
        whole = self.page(group, page)
        return whole.unbind(0) if self._in_parts else (whole,)

    def zero(self, group: int, pages: Sequence[int]) -> None:
        """Zero whole pages."""
        at = self.layout.slots(group, np.asarray(pages, np.int64))
        self._pages[group][tuple(self._index(one) for one in at)] = 0

    def spoil(self, group: int, page: int) -> None:
        """Put the poison back into a page: what should have come did not, and what was there must not be used."""
        view = self.page(group, page)
        if view.dtype == self._torch.int64:
            view.fill_(POISON)
        else:
            view.fill_(POISON & 0xFF)

    def write(self, group: int, pages: Places, rows: Places, marks: Words) -> None:
        """Write the mark of each (page, row) pair, in every field of every layer."""
        values = self._index(marks)
        for field, places in self._places(group, pages, rows):
            whole = self._words_fit[group][field]
            flat = self.words if whole else self.bytes
            flat[places] = self._shown(group, field, values)

    def read(self, group: int, pages: Places, rows: Places) -> Words:
        """The mark of each (page, row) pair in the group's main field, in its first layer."""
        field = self.layout.groups[group].main
        places = self.layout.rows_at(group, field, pages, rows)
        return self._read(group, field, places)

    def differing(self, group: int, pages: Places, rows: Places, marks: Words) -> tuple[int, int] | None:
        """The first pair whose mark is another in some field of some layer, and that mark; ``None`` where all
        agree. Of a row too small for a mark, its bytes stand for one."""
        wanted = self._index(marks)
        for field, places in self._places(group, pages, rows):
            flat = self.words if self._words_fit[group][field] else self.bytes
            found = flat.index_select(0, places.reshape(-1)).view(places.shape)  # faster than flat[places]
            differs = found != self._shown(group, field, wanted)
            if differs.any():
                layer, first = (int(at) for at in differs.nonzero()[0, :2])
                at = self.layout.rows_at(group, field, pages[first : first + 1], rows[first : first + 1])
                mark = self._read(group, field, at + layer * self.layout.strides[group].layer)
                return first, int(mark[0])
        return None

    def _read(self, group: int, field: int, places: Places) -> Words:
        """The marks at places in bytes; of a row too small for one, its bytes and zeros."""
        if self._words_fit[group][field]:
            marks: Words = self.words.index_select(0, self._index(places // WORD)).cpu().numpy()
            return marks
        width = self.layout.groups[group].fields[field].mark_bytes
        found = np.zeros((len(places), WORD), np.uint8)
        found[:, :width] = self.bytes[self._index(places[:, None] + np.arange(width))].cpu().numpy()
        return found.view(np.int64)[:, 0]

    def _places(self, group: int, pages: Places, rows: Places) -> Iterator[tuple[int, Any]]:
        """Each field, the main one first, with an index of the rows' marks in some of its layers: (layer, pair)
        in words, or (layer, pair, byte)."""
        spec = self.layout.groups[group]
        order = [spec.main, *(field for field in range(len(spec.fields)) if field != spec.main)]
        for field in order:
            starts = self.layout.rows_at(group, field, pages, rows)
            whole = self._words_fit[group][field]
            unit, width = (WORD, 1) if whole else (1, spec.fields[field].mark_bytes)
            here = self._index(starts // unit)[None, :]
            for layers in self.layout.layers(group, MOST_AT_ONCE // max(len(starts) * width, 1)):
                places = here + self._index(layers // unit)
                if whole:
                    yield field, places
                else:
                    yield field, places[:, :, None] + self._torch.arange(width, device=self.device)

    def _shown(self, group: int, field: int, marks: Any) -> Any:
        """Marks as a field holds them: words, or the bytes there is room for."""
        if self._words_fit[group][field]:
            return marks
        width = self.layout.groups[group].fields[field].mark_bytes
        return marks.view(self._torch.uint8).view(-1, WORD)[:, :width]

    def _index(self, values: Places) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
