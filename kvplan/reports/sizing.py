"""The report of ``size-pool``: text for people, JSON for programs. Functions of the result alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from rich.text import Text

from kvplan.reports.columns import Column, folded, table
from kvplan.reports.replay_units import counted, digits, grouped, percent
from kvplan.reports.sizing_units import blocks, numbers_grouped, pasted, share, size, tried
from kvplan.sizing import Alternative, Caution, GroupSize, PoolFit, PoolSize, Verdict

STYLES = {"RESULT": "bold", "proof": "bold", "try": "cyan", "warning": "yellow"}


def json_report(result: object, **more: object) -> str:
    """Return a result, and ``more`` behind it, as JSON with a last newline, named as in its dataclasses."""
    document = {**msgspec.to_builtins(result), **more}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def styled(lines: list[str]) -> Text:
    """Return the lines with RESULT and try set off."""
    report = Text(overflow="ignore", no_wrap=True)
    for line in lines:
        report.append(line + "\n", style=STYLES.get(line.split(" ", 1)[0], ""))
    return report


def size_pool_text(
    result: PoolSize, width: int = 80, layers: Mapping[str, int] | None = None, layout: Sequence[str] = ()
) -> Text:
    """Return the report at ``width`` columns.

    Of a model, ``layers`` are the layers of each group, and ``layout`` are lines on what fills an LCM block.
    """
    return styled(
        [
            *_groups(result, width, layers),
            *(["", *layout] if layout else _block(result)),
            "",
            *_wanted(result, width),
            *_pool(result, width),
            "",
            *_result(result, width),
            *(line for one in result.cautions for line in _caution(result, one, width)),
            *(line for one in result.alternatives for line in _try(result, one, width)),
        ]
    )


def _groups(result: PoolSize, width: int, layers: Mapping[str, int] | None) -> list[str]:
    groups = result.groups
    known = any(group.bytes_per_page is not None for group in groups)
    columns = [
        Column("Cache groups", [group.group_id for group in groups]),
        Column("kind", [group.kind for group in groups]),
        Column("layers", [grouped((layers or {}).get(group.group_id, 0)) for group in groups], right=True),
        Column("page", [f"{group.block_granularity:,} t" for group in groups], right=True, drop=1),
        Column("bytes/page", [size(group.bytes_per_page) for group in groups], right=True, drop=3),
        Column(
            "pages/block", [grouped(group.cache_blocks_per_lcm_block) for group in groups], right=True, drop=2
        ),
        Column("a request costs", [_cost(group) for group in groups]),
    ]
    unknown = {header for header, there in (("bytes/page", known), ("layers", layers)) if not there}
    return table([column for column in columns if column.header not in unknown], width)


def _block(result: PoolSize) -> list[str]:
    if result.bytes_per_block is None:
        return []
    padding = max(group.padding_bytes_per_block or 0 for group in result.groups)
    padded = f"up to {percent(padding / result.bytes_per_block)}" if padding else "no"
    return [f"one LCM block: {size(result.bytes_per_block)}, {padded} padding (from bytes_per_page)"]


def _cost(group: GroupSize) -> str:
    cost = group.cost
    parts = []
    if cost.fixed_pages_per_request or not cost.pages_per_token:
        parts.append(counted(cost.fixed_pages_per_request, "page"))
    if cost.pages_per_token:
        parts.append(f"{digits(1000 * cost.pages_per_token)} per 1k tokens")
    once = f"; {grouped(cost.once_pages)} once for all" if cost.once_pages else ""
    return " + ".join(parts) + once


def _wanted(result: PoolSize, width: int) -> list[str]:
    total = "max_total_tokens" if result.max_total_tokens_given else "batch × context"
    lines = folded(
        "Wanted:",
        f"{counted(result.max_batch_size, 'request')} of up to {counted(result.max_context_len, 'token')}, "
        f"{grouped(result.max_total_tokens)} in all ({total})",
        width,
    )
    groups = result.groups
    block_counts = [*(group.blocks for group in groups), result.needed_blocks]
    columns = [
        Column("", [*(f"  {group.group_id}" for group in groups), "  in all"]),
        Column("", [*(counted(group.pages, "page") for group in groups), ""], right=True),
        Column("", [counted(count, "block") for count in block_counts], right=True),
    ]
    if result.bytes_per_block is not None:
        sizes = [*(group.bytes for group in groups), result.needed_bytes]
        columns.append(Column("", [size(count) for count in sizes], right=True, drop=1))
    bases = [*(numbers_grouped(group.basis) for group in groups), "exact: the engine's own demand"]
    columns.append(Column("", bases, drop=2))
    return [*lines, *table(columns, width, header=False)]


def _pool(result: PoolSize, width: int) -> list[str]:
    pool = result.pool
    if pool is None:
        return []
    text = f"{blocks(pool.usable_blocks)} to use"
    if result.bytes_per_block is not None:
        text += f", {size(pool.usable_blocks * result.bytes_per_block)}"
    if pool.memory_bytes is not None:
        text += f" of {size(pool.memory_bytes)} (one block is the null one)"
    text += f"; given by {pool.source.removeprefix('flag ')}"
    return folded("Pool:", text, width)


def _result(result: PoolSize, width: int) -> list[str]:
    pool = result.pool
    if pool is None:
        memory = f", {size(result.pool_bytes)}" if result.pool_bytes is not None else ""
        text = (
            f"needs {blocks(result.needed_blocks)} (num_device_pages {result.num_device_pages}, the null "
            f"block counted in{memory}); no pool is given to compare with (--pool-blocks, --pool-gib or "
            "--pool-tokens)"
        )
        promise = _promise_of_demand(result)
        return [*folded("RESULT", text, width), *(line for one in promise for line in folded("", one, width))]
    sentences = {
        Verdict.FITS: _fits,
        Verdict.NOT_AT_ONCE: _not_at_once,
        Verdict.NEVER_FITS: _never_fits,
    }[result.verdict](result, pool)
    first, *more = sentences
    return [*folded("RESULT", first, width), *(line for text in more for line in folded("", text, width))]


def _fits(result: PoolSize, pool: PoolFit) -> list[str]:
    if result.needed_blocks > pool.usable_blocks:
        use = share(result.single_request_blocks, pool.usable_blocks)
        return [
            f"fits: one request alone takes {use} at its worst moment (a batch of 1 is sized with "
            f"{grouped(result.needed_blocks)}, slack counted in)",
            _bounds(result, pool),
            *_promise(result, pool),
        ]
    batch = result.max_batch_size
    count = pool.requests_at_once
    at_once = "any number of" if count is None else f"up to {grouped(count)}"
    first = "bound by"
    if pool.binds.limit == "max_batch_size":
        first = f"bound by max_batch_size ({grouped(batch)}), then by"
    return [
        f"fits: {share(result.needed_blocks, pool.usable_blocks)}; {at_once} such request{'s' * (count != 1)} at once; "
        f"{first} {_binding(pool)}",
        _bounds(result, pool),
        *_promise(result, pool),
    ]


def _not_at_once(result: PoolSize, pool: PoolFit) -> list[str]:
    there = f"does not fit at once: {_needed(result)}, {grouped(pool.usable_blocks)} there"
    at_once = pool.requests_at_once
    if at_once is None or at_once >= result.max_batch_size:
        return [f"{there}; the requests fit, max_total_tokens is more than they hold", _bounds(result, pool)]
    batch = grouped(result.max_batch_size)
    waiting = f"{grouped(at_once)} of {batch} requests fit, the others wait (not now)"
    return [
        f"{there}; {waiting}; bound by {_binding(pool)}",
        _bounds(result, pool),
        *_promise(result, pool),
    ]


def _never_fits(result: PoolSize, pool: PoolFit) -> list[str]:
    longest = pool.longest_request or 0
    limit = f"the longest that fits has {counted(longest, 'token')}" if longest else "no request fits"
    return [
        f"never fits: one request of {counted(result.max_context_len, 'token')} alone needs "
        f"{blocks(result.single_request_blocks)}, {grouped(pool.usable_blocks)} there; {limit}; "
        f"bound by {_binding(pool)}",
        *(
            [f"all {grouped(result.max_batch_size)} at once need {_needed(result).removesuffix(' needed')}"]
            if result.max_batch_size > 1
            else []
        ),
    ]


def _needed(result: PoolSize) -> str:
    memory = f" ({size(result.needed_bytes)})" if result.needed_bytes is not None else ""
    return f"{blocks(result.needed_blocks)}{memory} needed"


def _binding(pool: PoolFit) -> str:
    binds = pool.binds
    kind = "" if binds.kind == binds.group_id else f"{binds.kind}, "
    names = " + ".join(binds.group_ids)
    return f"{names} ({kind}{100 * binds.share_of_blocks:.0f} % of the blocks)"


def _bounds(result: PoolSize, pool: PoolFit) -> str:
    parts = []
    if result.verdict is Verdict.FITS and result.max_batch_size > 1:
        context = "any length" if pool.longest_context is None else counted(pool.longest_context, "token")
        parts.append(f"{grouped(result.max_batch_size)} requests of up to {context} fit")
    alone = "any length" if pool.longest_request is None else counted(pool.longest_request, "token")
    parts.append(f"one request of up to {alone} fits alone")
    if pool.mean_requests is not None:
        parts.append(f"counting each at its worst moment, {pool.mean_requests:,.2f} such requests")
    return "; ".join(parts)


def _promise(result: PoolSize, pool: PoolFit) -> list[str]:
    """What is sure of the requests that fit, and on which condition."""
    count, sure = pool.requests_at_once, pool.requests_without_wait
    if count is None or sure is None or result.blocks_without_wait is None:
        return []
    fit = min(count, result.max_batch_size)
    if not fit:
        return []
    if sure >= fit:
        which = f"{grouped(fit)} submitted together are surely" if fit > 1 else "it is surely"
        return [f"{which} at once, without a wait for a page, with budgets declared (max_new_tokens) or not"]
    sure_from = f"from {blocks(result.blocks_without_wait)} on"
    if fit == 1:
        return [f"it is admitted; that it finds every page of its own, and so finishes, is sure {sure_from}"]
    some = f"{grouped(sure)} are surely at once, without a wait for a page, declared or not"
    if sure < 2:
        some = "1 is surely there without a wait for a page" if sure else "each may wait for a page"
    if fit == result.max_batch_size:
        some += f" (all {grouped(fit)}: {sure_from})"
    if result.cautions:
        return [some]
    return [
        f"{grouped(fit)} submitted together all finish and none is retracted, if each declares its "
        f"max_new_tokens; {some}"
    ]


def _promise_of_demand(result: PoolSize) -> list[str]:
    """What is sure of the wanted requests in the pool that they need."""
    batch, sure = result.max_batch_size, result.blocks_without_wait
    if sure is None or result.cautions:
        return []
    more = sure > result.needed_blocks
    if batch == 1:
        return (
            [f"that it finds every page of its own, and so finishes, is sure from {blocks(sure)} on"]
            if more
            else []
        )
    waits = f"one may wait for a page; from {blocks(sure)} on none does" if more else "none waits for a page"
    return [
        f"in that pool {grouped(batch)} submitted together all finish and none is retracted, if each declares its "
        f"max_new_tokens; {waits}"
    ]


def _caution(result: PoolSize, one: Caution, width: int) -> list[str]:
    text = (
        f"no request generates while a prefill waits: of max_scheduled_tokens {grouped(one.max_scheduled_tokens)} "
        f"a mixed round keeps {grouped(one.prefill_tokens)} for the prefill, and a decode step takes "
        f"{grouped(one.decode_input_tokens)}; if the prefill waits for their pages, they wait for ever"
    )
    flags = pasted(one.flags).replace(" ", "\u00a0")
    batch = counted(result.max_batch_size, "request")
    why = f"a decode step of {batch} fits beside the prefill"
    return [*folded("warning", text, width), *folded("try", f"{flags}\u00a0\u00a0 {why}", width)]


def _try(result: PoolSize, one: Alternative, width: int) -> list[str]:
    value = next(iter(one.flags.values()))
    need = f"{grouped(one.needed_blocks)} of {blocks(one.usable_blocks)}"
    beyond = grouped(one.beyond_needed_blocks)
    if one.beyond_usable_blocks != one.usable_blocks:  # a pool of its own: a GPU has less left for it
        beyond += f", {grouped(one.beyond_usable_blocks)} there"
    batch = counted(result.max_batch_size, "request")
    why = {
        "max_batch_size": f"{counted(int(value), 'request')} at once: {need}; one more needs {beyond}",
        "max_context_len": f"{batch} at once: {need}; one token more needs {beyond}",
        "one_request": f"one request at a time: {need}; one token more needs {beyond}",
        "max_total_tokens": f"{batch} at once, as long as they hold no more together: {need}",
        "pool": f"{batch} at once: {need}",
    }[one.changes]
    return folded("try", tried(one, why), width)
