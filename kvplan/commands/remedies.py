"""What else of a model's deployment would let the wanted requests fit: fewer or shorter ones, a smaller cache type,
more GPUs.

Imports nothing heavy before a function is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvplan.commands.model_options import ModelFlags, batch_flag
from kvplan.deployment.fields import FLAG_FIELDS, POOL

if TYPE_CHECKING:
    from kvplan.deployment import Deployment
    from kvplan.recipes import MemoryPlan
    from kvplan.reports.memory import MoreGpus, NarrowCache
    from kvplan.sizing import Alternative, PoolSize
    from kvplan.sizing.wish import Wish

MOST_TP = 64
GPU_FLAGS = {"gpu", "gpu_memory_gib"}
POOL_FLAGS = {name for known in FLAG_FIELDS if known.place == POOL for name in known.names}


def narrow_cache(
    model: ModelFlags,
    overrides: dict[str, object],
    max_context_len: int,
    max_total_tokens: int | None,
    result: PoolSize,
) -> NarrowCache | None:
    """What a cache in 8 bits holds, where that is more; the wanted requests are those of one replica."""
    from kvplan.reports.memory import NarrowCache
    from kvplan.sizing import size_pool as sized

    narrow = replace(model, given={**model.given, "kv_dtype": "fp8"}, emit=None)
    try:
        loaded, plan = narrow.load(None, overrides, max_context_len, batch_needed=True)
    except ValueError:
        return None  # its pages do not pack, or no block of them fits: no remedy
    found = sized(loaded, max_context_len, max_total_tokens)
    before, after = (0 if one.pool is None else one.pool.requests_at_once for one in (result, found))
    if plan is None or before is None or (after is not None and after <= before):
        return None
    dp = plan.ranks.dp
    return NarrowCache(
        "fp8", None if after is None else after * dp, found.needed_blocks, result.max_batch_size * dp
    )


def more_gpus(
    model: ModelFlags,
    overrides: dict[str, object],
    tp: int,
    fitting: Callable[[Deployment], tuple[int, int] | None],
    max_context_len: int | None = None,
) -> MoreGpus | None:
    """The first doubling of ``tp`` with which it fits; None if there is none up to ``MOST_TP``.

    ``fitting`` gives the LCM blocks needed and usable of a deployment in which it does, and None of another.
    """
    from kvplan.reports.memory import MoreGpus

    if "weights_gib" in model.given:
        return None  # given for GPUs as they are divided now
    while (tp := 2 * tp) <= MOST_TP:
        try:
            wider = replace(model, given={**model.given, "tp": tp}, emit=None)
            loaded, _ = wider.load(None, overrides, max_context_len)
        except ValueError:
            return None  # heads do not divide further
        found = fitting(loaded)
        if found is not None:
            return MoreGpus(tp, *found)
    return None


def bound_by_gpu(model: ModelFlags, overrides: dict[str, object]) -> bool:
    """Whether the pool is what a GPU's memory leaves: a larger one takes more of them."""
    return bool(GPU_FLAGS & model.given.keys()) and not POOL_FLAGS & overrides.keys()


def held_by_gpu(
    model: ModelFlags, overrides: dict[str, object], plan: MemoryPlan, needed_blocks: int
) -> bool:
    """Whether a pool of so many LCM blocks can be given: where a GPU is, it has to hold them."""
    if bound_by_gpu(model, overrides):
        return False
    return not GPU_FLAGS & model.given.keys() or needed_blocks <= (plan.usable_blocks or 0)


def replanned(
    model: ModelFlags, overrides: dict[str, object], plan: MemoryPlan, result: PoolSize
) -> PoolSize:
    """Return ``result`` with what to wish for as the model is planned for it, where that changes its pool.

    Fewer requests leave a GPU more memory for the cache, and a window that no context outgrows is none: its
    layers go to another group. No pool is tried that the GPU could not hold. ``result`` is one
    replica's, its flags those of all.
    """
    from kvplan.sizing.search import largest

    try_plan = _Replan(model, overrides, plan.ranks.dp, result)
    batch, context = result.max_batch_size, result.max_context_len
    at_gpu = bound_by_gpu(model, overrides)
    kept = {one.changes: one for one in result.alternatives}
    if not held_by_gpu(model, overrides, plan, result.needed_blocks):
        kept.pop("pool", None)
    if at_gpu:
        requests = largest(lambda n: try_plan.holds(n, context), 1, batch - 1)
        kept.pop("max_batch_size", None)
        if requests:
            kept.pop("one_request", None)
            found = try_plan.boundary("max_batch_size", (requests, context), (requests + 1, context))
            kept |= {} if found is None else {"max_batch_size": found}
    windows = {group.sliding_window_tokens or 0 for group in result.groups}
    for changes, requests in (("max_context_len", batch), ("one_request", 1)):
        wanted = "max_batch_size" not in kept and batch > 1 if requests == 1 else True
        now = kept.get(changes)
        same_groups = now is not None and now.flags["--max-context-len"] > max(windows)
        if not wanted or (same_groups and not (at_gpu and requests == 1)):
            continue
        kept.pop(changes, None)
        ends = {window for window in windows if 0 < window < context} | {context - 1}
        tokens = try_plan.longest(requests, sorted(ends - {0}))
        if tokens:
            found = try_plan.boundary(changes, (requests, tokens), (requests, tokens + 1))
            kept |= {} if found is None else {changes: found}
    order = ("max_batch_size", "max_context_len", "one_request", "max_total_tokens", "pool")
    return replace(result, alternatives=tuple(kept[name] for name in order if name in kept))


def largest_batch(
    model: ModelFlags, overrides: dict[str, object], plan: MemoryPlan, result: PoolSize
) -> int | None:
    """Return the most requests, of all replicas, for which the model can be planned so that they fit at once.

    That is fewer than fit the pool of ``result``, in which the wanted ones do: each takes of the memory beside the
    cache. None where the pool does not depend on it.
    """
    from kvplan.sizing.search import largest

    if result.pool is None or result.pool.requests_at_once is None or not bound_by_gpu(model, overrides):
        return None
    planned = _Replan(model, overrides, plan.ranks.dp, result)
    context = result.max_context_len
    wanted, most = result.max_batch_size, result.pool.requests_at_once
    found = largest(lambda n: planned.holds(n, context), wanted, max(wanted, most))
    return None if found is None else found * plan.ranks.dp


@dataclass(frozen=True)
class _Replan:
    """The model's plan for other wishes; requests and blocks are those of one of ``replicas``."""

    model: ModelFlags
    overrides: dict[str, object]
    replicas: int
    result: PoolSize

    def fit(self, requests: int, context: int) -> tuple[int, int] | None:
        """The LCM blocks needed and usable; None where there is no such plan."""
        from kvplan.sizing.fit import Pool

        flags = {**self.overrides, self._batch_name: requests * self.replicas}
        try:
            loaded, _ = replace(self.model, emit=None).load(None, flags, context)
        except ValueError:
            return None
        usable = loaded.usable_blocks or 0
        return Pool(loaded.config, usable).least_blocks(self._wish(requests, context)), usable

    def holds(self, requests: int, context: int) -> bool:
        """Whether they fit at once."""
        found = self.fit(requests, context)
        return found is not None and found[0] <= found[1]

    def longest(self, requests: int, upto: list[int]) -> int | None:
        """The longest context that fits; within each range that ends at one of ``upto`` the groups are the same."""
        from kvplan.sizing.search import largest

        for below, end in reversed(list(zip([0, *upto], upto, strict=False))):
            found = largest(lambda tokens: self.holds(requests, tokens), below + 1, end)
            if found:
                return found
        return None

    def boundary(self, changes: str, last: tuple[int, int], beyond: tuple[int, int]) -> Alternative | None:
        """The flags for ``last`` (requests, context), one step before ``beyond``, where it does not fit."""
        from kvplan.sizing import Alternative

        fits, fails = self.fit(*last), self.fit(*beyond)
        if fits is None or fails is None:
            return None
        return Alternative(changes, self._flags(*last), *fits, self._flags(*beyond), *fails)

    @property
    def _batch_name(self) -> str:
        return batch_flag(self.overrides).removeprefix("--").replace("-", "_")

    def _wish(self, requests: int, context: int) -> Wish:
        from kvplan.sizing.wish import Wish

        given = self.result.max_total_tokens if self.result.max_total_tokens_given else None
        return Wish(requests, context, None if given is None else min(given, requests * context))

    def _flags(self, requests: int, context: int) -> dict[str, int | float]:
        result, total = self.result, self._wish(requests, context).max_total_tokens
        flags: dict[str, int | float] = {}
        if requests != result.max_batch_size:
            flags[batch_flag(self.overrides)] = requests * self.replicas
        if context != result.max_context_len:
            flags["--max-context-len"] = context
        if total is not None and total != result.max_total_tokens:
            flags["--max-total-tokens"] = total * self.replicas
        return flags
