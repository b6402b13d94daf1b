"""Lines of text that keep to a width: tables that drop columns, and folded sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

GAP = "   "


@dataclass(frozen=True, slots=True)
class Column:
    """A column: a header and a cell a row.

    ``drop`` orders what goes when the width is short: the largest first, and 0 never.
    """

    header: str
    cells: Sequence[str]
    right: bool = False
    drop: int = 0

    def line(self, row: int) -> str:
        """The cell of a row, padded; row −1 is the header."""
        cell = self.header if row < 0 else self.cells[row]
        width = self.width
        return cell.rjust(width) if self.right else cell.ljust(width)

    @property
    def width(self) -> int:
        """The width of the widest cell."""
        return max(len(cell) for cell in (self.header, *self.cells))


def table(columns: Sequence[Column], width: int, header: bool = True) -> list[str]:
    """Return the table's lines in at most ``width`` columns, as far as dropping what may go achieves that."""
    shown = list(columns)
    while sum(c.width for c in shown) + len(GAP) * (len(shown) - 1) > width:
        candidates = [c for c in shown if c.drop]
        if not candidates:
            break
        shown.remove(max(candidates, key=lambda c: c.drop))
    rows = range(-1 if header else 0, len(columns[0].cells))
    return [GAP.join(column.line(row) for column in shown).rstrip() for row in rows]


def folded(label: str, text: str, width: int, indent: int = 8) -> list[str]:
    """Return ``text`` behind ``label``, folded at ``width`` with the label's place left free.

    A flag stays with its value, and a number with its unit.
    """
    lines = wrap(
        text,
        width,
        initial_indent=label.ljust(indent),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines]
