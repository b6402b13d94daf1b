"""What else of a model's deployment would let the wanted requests fit: a smaller cache type, more GPUs.

Imports nothing heavy before a function is called.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvplan.commands.model_options import ModelFlags

if TYPE_CHECKING:
    from kvplan.reports.memory import MoreGpus, NarrowCache
    from kvplan.sizing import PoolSize

MOST_TP = 64


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
    max_context_len: int,
    max_total_tokens: int | None,
    tp: int,
) -> MoreGpus | None:
    """The first doubling of ``tp`` with which it fits at once; None if there is none up to ``MOST_TP``."""
    from kvplan.reports.memory import MoreGpus
    from kvplan.sizing import Verdict
    from kvplan.sizing import size_pool as sized

    if "weights_gib" in model.given:
        return None  # given for GPUs as they are divided now
    while (tp := 2 * tp) <= MOST_TP:
        try:
            wider = replace(model, given={**model.given, "tp": tp}, emit=None)
            loaded, _ = wider.load(None, overrides, max_context_len, batch_needed=True)
        except ValueError:
            return None  # heads do not divide further
        found = sized(loaded, max_context_len, max_total_tokens)
        if found.verdict is Verdict.FITS and found.pool is not None:
            return MoreGpus(tp, found.needed_blocks, found.pool.usable_blocks)
    return None
