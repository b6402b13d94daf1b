"""Group → pack: how the pages of all groups lie in LCM blocks of one size.

An LCM block is a number of planes, one for each layer of a page, each of so many bytes (the stride). A page of a
group of m layers, b bytes each, takes b bytes in m planes, so a block holds

    floor(planes / m) × floor(stride / b) pages of it

and what is left is padding. Layers of different groups share a plane slot by slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.recipes.errors import RecipeError
from kvplan.recipes.groups import LayerGroup

GOOD_PADDING = 0.05  # a larger block is not worth less than this: it is rounded up to once for each group
_MOST_PER_PLANE = 16
_MOST_STACKED = 4


@dataclass(frozen=True, slots=True)
class Packing:
    """The layout of an LCM block: ``planes`` of ``plane_bytes``, and the pages of each group it holds."""

    planes: int
    plane_bytes: int
    pages_per_block: tuple[int, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of an LCM block."""
        return self.planes * self.plane_bytes


def pack(groups: Sequence[LayerGroup], padding_limit: float = 0.25) -> Packing:
    """Return the smallest block whose padding is below 5 %, or else the one with the least.

    Padding is the share of a block that a group's pages leave unused, averaged over the groups of a kind and
    taken of the worst kind. Raises ``RecipeError`` if it is above ``padding_limit`` in every layout.
    """
    shapes = sorted({(len(group.layers), group.layer_page_bytes) for group in groups})
    found = []
    for layers, page in shapes:
        for stacked in range(1, _MOST_STACKED + 1):
            for pages in range(1, _MOST_PER_PLANE + 1):
                planes, stride = layers * stacked, page * pages
                held = tuple(_pages(group, planes, stride) for group in groups)
                if all(held):
                    layout = Packing(planes, stride, held)
                    found.append((worst_padding(groups, layout), layout.block_bytes, layout))
    if not found:
        raise RecipeError(
            f"no LCM block of up to {_MOST_PER_PLANE} pages a plane holds a page of every group; another "
            "page_tokens is needed"
        )
    good = [entry for entry in found if entry[0] <= GOOD_PADDING]
    padding, _, layout = min(good, key=lambda e: (e[1], e[0])) if good else min(found, key=lambda e: e[:2])
    if padding > padding_limit:
        raise RecipeError(
            f"{100 * padding:.1f} % of an LCM block would be padding, above padding_limit "
            f"({100 * padding_limit:g} %); another page_tokens is needed, or a higher limit"
        )
    return layout


def worst_padding(groups: Sequence[LayerGroup], layout: Packing) -> float:
    """Return the share of a block that is padding, averaged over the groups of a kind, of the worst kind."""
    shares: dict[str, list[float]] = {}
    for group, pages in zip(groups, layout.pages_per_block, strict=True):
        shares.setdefault(group.kind, []).append(1 - pages * group.page_bytes / layout.block_bytes)
    return max(sum(of_kind) / len(of_kind) for of_kind in shares.values())


def _pages(group: LayerGroup, planes: int, plane_bytes: int) -> int:
    return (planes // len(group.layers)) * (plane_bytes // group.layer_page_bytes)
