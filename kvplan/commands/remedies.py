"""What else of a model's deployment would let the wanted requests fit: a smaller cache type, more GPUs.

Imports nothing heavy before a function is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from kvplan.commands.model_options import ModelFlags
from kvplan.deployment.fields import FLAG_FIELDS, POOL

if TYPE_CHECKING:
    from kvplan.deployment import Deployment
    from kvplan.reports.memory import MoreGpus, NarrowCache
    from kvplan.sizing import PoolSize

MOST_TP = 64
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
    return NarrowCache("fp8", None if after is None else after * plan.ranks.dp, found.needed_blocks)


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
    return bool({"gpu", "gpu_memory_gib"} & model.given.keys()) and not POOL_FLAGS & overrides.keys()
