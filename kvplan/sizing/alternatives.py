"""What could be asked for instead: flags and values, each checked to fit and to be the last one that does."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kvplan.deployment import Deployment, DeploymentError
from kvplan.deployment.fields import GIB, flag
from kvplan.deployment.sizes import memory_bytes
from kvplan.sizing.fit import Pool
from kvplan.sizing.wish import Wish

Flags = dict[str, int | float]


@dataclass(frozen=True, slots=True)
class Alternative:
    """Flags that make it fit, appended to what was given.

    ``changes`` is the field they are about, or "pool", or "one_request". With them ``needed_blocks`` of
    ``usable_blocks`` are needed; with ``beyond_flags``, one step further, it does not fit. ``replaces`` is a flag
    that must go, as it says the same in another unit.
    """

    changes: str
    flags: Flags
    needed_blocks: int
    usable_blocks: int
    beyond_flags: Flags
    beyond_needed_blocks: int
    beyond_usable_blocks: int
    replaces: str | None = None

    def __post_init__(self) -> None:
        # Whoever reads "try" pastes it: one that does not fit, or is not the last to, is a bug in the search.
        if self.needed_blocks > self.usable_blocks or self.beyond_needed_blocks <= self.beyond_usable_blocks:
            raise AssertionError(f"{self} is not at the boundary of what fits")


def wish_alternatives(deployment: Deployment, pool: Pool, wish: Wish) -> tuple[Alternative, ...]:
    """Return what to wish for instead of ``wish``: fewer requests, shorter ones, one, or fewer tokens in all."""
    found = []
    requests = pool.largest_batch(wish)
    if 1 <= requests < wish.max_batch_size:
        fits, beyond = wish.with_batch(requests), wish.with_batch(requests + 1)
        found.append(_lowered(deployment, pool, wish, "max_batch_size", fits, beyond))
    context = pool.longest_context(wish)
    if 1 <= context < wish.max_context_len:
        fits, beyond = wish.with_context(context), wish.with_context(context + 1)
        found.append(_lowered(deployment, pool, wish, "max_context_len", fits, beyond))
    alone = pool.longest_alone()
    if not requests and alone and wish.max_batch_size > 1:
        one = wish.with_batch(1)
        fits, beyond = one.with_context(alone), one.with_context(alone + 1)
        found.append(_lowered(deployment, pool, wish, "one_request", fits, beyond))
    total = pool.largest_total(wish)
    if 1 <= total < wish.total_tokens:
        fits, beyond = (replace(wish, max_total_tokens=tokens) for tokens in (total, total + 1))
        found.append(_lowered(deployment, pool, wish, "max_total_tokens", fits, beyond))
    return tuple(found)


def larger_pool(deployment: Deployment, needed_blocks: int) -> Alternative | None:
    """Return the smallest pool of ``needed_blocks`` usable LCM blocks, in the unit the pool was given in.

    None if no deployment can have one so large.
    """
    given = _given_flag(deployment, "num_device_pages")
    value: int | float = needed_blocks
    below: int | float = needed_blocks - 1
    usable, usable_below = needed_blocks, needed_blocks - 1
    name, replaces = flag("pool_blocks"), given if given == flag("pool_tokens") else None
    if deployment.memory_bytes is not None and deployment.block_bytes is not None:
        name = given or flag("pool_gib")
        value, below = _gib_around((needed_blocks + 1) * deployment.block_bytes)
        usable, usable_below = (memory_bytes(v) // deployment.block_bytes - 1 for v in (value, below))
    elif given == flag("num_device_pages"):
        name, value, below = given, needed_blocks + 1, needed_blocks  # the null block is counted in
    try:
        deployment.replace(**{name.removeprefix("--").replace("-", "_"): value})
    except DeploymentError:
        return None
    return Alternative(
        "pool", {name: value}, needed_blocks, usable, {name: below}, needed_blocks, usable_below, replaces
    )


def flag_of(deployment: Deployment, name: str) -> str:
    """Return a field's flag: the one it was given by, as two names of a field are refused; else its own."""
    return _given_flag(deployment, name) or flag(name)


def _given_flag(deployment: Deployment, name: str) -> str | None:
    source = deployment.sources.get(name, "")
    return source.removeprefix("flag ") if source.startswith("flag --") else None


def _lowered(
    deployment: Deployment, pool: Pool, wish: Wish, field: str, fits: Wish, beyond: Wish
) -> Alternative:
    return Alternative(
        changes=field,
        flags=_changed(deployment, wish, fits),
        needed_blocks=pool.least_blocks(fits),
        usable_blocks=pool.usable_blocks,
        beyond_flags=_changed(deployment, wish, beyond),
        beyond_needed_blocks=pool.least_blocks(beyond),
        beyond_usable_blocks=pool.usable_blocks,
    )


def _changed(deployment: Deployment, before: Wish, after: Wish) -> Flags:
    names = ("max_batch_size", "max_context_len", "max_total_tokens")
    return {
        flag_of(deployment, name): getattr(after, name)
        for name in names
        if getattr(after, name) != getattr(before, name)
    }


def _gib_around(needed_bytes: int) -> tuple[float, float]:
    """The least GiB that hold ``needed_bytes``, and one step less: steps of 0.01 GiB, finer below 1 GiB."""
    steps = 100
    while needed_bytes * steps < 100 * GIB:
        steps *= 10
    count = math.ceil(needed_bytes * steps / GIB)
    while memory_bytes(count / steps) < needed_bytes:  # the decimal fraction may round to just below
        count += 1
    return count / steps, (count - 1) / steps
