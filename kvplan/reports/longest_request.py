"""The report of ``max-request``: text for people. A function of the result alone."""

from __future__ import annotations

from rich.text import Text

from kvplan.reports.columns import Column, folded, table
from kvplan.reports.replay_units import counted, grouped
from kvplan.reports.sizing import styled
from kvplan.reports.sizing_units import blocks, share, tried
from kvplan.sizing import Alternative, LongestRequest, RequestFit


def max_request_text(result: LongestRequest, width: int = 80) -> Text:
    """Return the report at ``width`` columns."""
    source = result.source.removeprefix("flag ")
    return styled(
        [
            *folded("Pool:", f"{blocks(result.usable_blocks)} to use; given by {source}", width),
            *_requests(result, width),
            "",
            *_result(result, width),
            *_why_not_more(result, width),
            *(line for one in result.alternatives for line in _try(result, one, width)),
        ]
    )


def _requests(result: LongestRequest, width: int) -> list[str]:
    """A column for the longest request, for one token more and for the one asked about."""
    groups = result.longest.groups
    at = [result.longest, *([result.beyond] if result.beyond else [])]
    if result.asked is not None and result.asked.tokens not in [request.tokens for request in at]:
        at.append(result.asked)
    columns = [
        Column("One request alone needs", [*(f"  {group.group_id}" for group in groups), "  in all"]),
        Column("kind", [*(group.kind for group in groups), ""], drop=4),
        Column("page", [*(f"{group.block_granularity:,} t" for group in groups), ""], right=True, drop=2),
        Column(
            "pages/block",
            [*(grouped(group.cache_blocks_per_lcm_block) for group in groups), ""],
            right=True,
            drop=3,
        ),
        # What one token more needs is said below the RESULT, too.
        *(
            Column(
                f"{grouped(request.tokens)} t",
                _pages(request),
                right=True,
                drop=int(request is result.beyond),
            )
            for request in at
        ),
    ]
    return table(columns, width)


def _pages(request: RequestFit) -> list[str]:
    return [
        *(counted(group.pages, "page") for group in request.groups),
        counted(request.needed_blocks, "block"),
    ]


def _result(result: LongestRequest, width: int) -> list[str]:
    limit = _limit(result)
    asked = result.asked
    if asked is None:
        if not result.max_tokens:
            text = f"never fits: no request does, not even one of 1 token; {_beyond(result)}"
        elif not result.fits:
            text = (
                f"never fits: {grouped(result.generation_tokens)} generated tokens leave no prompt; {limit}"
            )
        else:
            text = limit
        return folded("RESULT", text, width)
    if asked.fits:
        use = share(asked.needed_blocks, result.usable_blocks)
        return [
            *folded("RESULT", f"fits: {counted(asked.tokens, 'token')}, which need {use}", width),
            *folded("", limit, width),
        ]
    short = (
        f"short by {counted(asked.short_tokens, 'token')}, {counted(asked.short_pages, 'page')} of "
        f"{asked.short_group}, {blocks(asked.short_blocks)}"
    )
    return [
        *folded("RESULT", f"never fits: {grouped(asked.tokens)} tokens; {short}", width),
        *folded("", limit, width),
    ]


def _limit(result: LongestRequest) -> str:
    if not result.max_tokens:
        return "no request fits, not even one of 1 token"
    if result.beyond is None:
        return f"the longest request is as long as the engine can count ({grouped(result.max_tokens)} tokens)"
    split = f": prompt {grouped(result.max_prompt_tokens)} + generation {grouped(result.generation_tokens)}"
    return f"the longest request that fits has {counted(result.max_tokens, 'token')}" + (
        split if result.max_prompt_tokens else ""
    )


def _why_not_more(result: LongestRequest, width: int) -> list[str]:
    if result.beyond is None or not result.max_tokens:
        return []
    return folded("", f"one token more never fits: {_beyond(result)}", width)


def _beyond(result: LongestRequest) -> str:
    beyond = result.beyond
    assert beyond is not None
    needs = [
        f"{group.group_id} needs {counted(group.pages, 'page')} ({counted(group.blocks, 'block')})"
        for group in beyond.groups
        if group.group_id in result.grows or not result.grows
    ]
    return f"{', '.join(needs)}; {blocks(beyond.needed_blocks)} in all, {grouped(result.usable_blocks)} there"


def _try(result: LongestRequest, one: Alternative, width: int) -> list[str]:
    asked = result.asked
    assert asked is not None
    need = f"{grouped(one.needed_blocks)} of {blocks(one.usable_blocks)}"
    why = {
        "tokens": f"fits: {need}",
        "pool": f"{grouped(asked.tokens)} tokens fit: {need}",
    }[one.changes]
    return folded("try", tried(one, why), width)
