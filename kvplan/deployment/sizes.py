"""Bytes and blocks: what an LCM block costs, and how many a given size makes. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kvplan.deployment.errors import DeploymentError
from kvplan.deployment.fields import GIB, MAX_TOKENS
from kvplan.deployment.given import Given


def block_bytes(group_bytes: Mapping[str, int | None], packing: Mapping[str, int]) -> int | None:
    """Return the bytes of an LCM block, the most that any group's pages take; None if one is unknown.

    A group whose layers are all on other pipeline stages takes 0. Raises ``DeploymentError`` if all do.
    """
    sizes = [None if size is None else size * packing[name] for name, size in group_bytes.items()]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes) and not any(known):
        raise DeploymentError(
            f"bytes_per_page is 0 for every cache group ({', '.join(group_bytes)}); at least one has layers here"
        )
    return max(known) if len(known) == len(sizes) else None


def padding(group_bytes: Mapping[str, int | None], packing: Mapping[str, int]) -> dict[str, int | None]:
    """Return, by group, the bytes of an LCM block that its pages leave unused; None where unknown."""
    block = block_bytes(group_bytes, packing)
    return {
        name: None if block is None or size is None else block - size * packing[name]
        for name, size in group_bytes.items()
    }


def memory_bytes(gib: float) -> int:
    """Return ``gib`` GiB as bytes, rounded down."""
    return math.floor(gib * GIB)


def blocks_in(size: Given, block: int | None, unknown: list[str]) -> int:
    """Return the usable LCM blocks in ``size`` (a number of GiB): what fits, less the null block.

    ``block`` is the bytes of one; ``unknown`` names the groups that give none. Raises ``DeploymentError`` if
    a block's bytes are not known or fewer than two blocks fit.
    """
    if block is None:
        raise DeploymentError(
            f"{size.named} needs the bytes of an LCM block, but cache group {', '.join(unknown)} gives no "
            "bytes_per_page"
        )
    fits = memory_bytes(float(size.value)) // block
    if fits < 2:
        raise DeploymentError(
            f"{size.named} is {size.value:g}, which holds {fits} LCM blocks of {block:,} bytes; at least 2 "
            f"are needed (the null one and a usable one), {2 * block / GIB:.3g} GiB"
        )
    return fits - 1


def check_page_ids(size: Given, usable: int, packing: int) -> None:
    """Raise ``DeploymentError`` if ``usable`` LCM blocks of ``packing`` pages outgrow 32-bit page ids."""
    if usable * packing > MAX_TOKENS:
        raise DeploymentError(
            f"{size.named} is {size.value}, which makes {usable:,} LCM blocks of {packing} pages; page ids "
            f"are 32-bit, so at most {MAX_TOKENS // packing:,} blocks are possible"
        )
