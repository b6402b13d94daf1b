"""The longest request that a pool admits, and whether a given one is."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.deployment import Deployment
from kvplan.scheduler import SchedulerConfig
from kvplan.scheduler.capacity import MAX_TOKENS
from kvplan.sizing.alternatives import Alternative, larger_pool
from kvplan.sizing.fit import Pool
from kvplan.sizing.need import Need, single_need


@dataclass(frozen=True, slots=True)
class GroupUse:
    """What one request takes of a group at its worst moment."""

    group_id: str
    kind: str
    block_granularity: int
    cache_blocks_per_lcm_block: int
    pages: int
    blocks: int


@dataclass(frozen=True, slots=True)
class RequestFit:
    """One request of ``tokens`` tokens (prompt + generation) against the pool.

    ``short_tokens``, ``short_blocks`` and ``short_pages`` (those of ``short_group`` that find no place once
    every other group has its own) are 0 if it fits. ``short_group`` is the largest group of
    those that grow up to this length; None if it fits.
    """

    tokens: int
    fits: bool
    groups: tuple[GroupUse, ...]
    needed_blocks: int
    short_tokens: int
    short_pages: int
    short_blocks: int
    short_group: str | None


@dataclass(frozen=True, slots=True)
class LongestRequest:
    """The answer of ``max_request``.

    ``max_tokens`` is prompt + generation (0: no request is ever admitted), split into ``max_prompt_tokens``
    and the ``generation_tokens`` that the engine counts for it: what the request declares, but at least a
    decode step, and nothing on role P. ``longest`` is that request, ``beyond`` one token more, which never
    fits (None: the engine counts no further); ``grows`` are the groups that need more pages for that token.
    ``asked`` is the request asked about.
    """

    usable_blocks: int
    source: str
    fits: bool
    max_tokens: int
    max_prompt_tokens: int
    generation_tokens: int
    longest: RequestFit
    beyond: RequestFit | None
    grows: tuple[str, ...]
    asked: RequestFit | None
    alternatives: tuple[Alternative, ...]


def max_request(deployment: Deployment, tokens: int | None = None, max_new_tokens: int = 0) -> LongestRequest:
    """Return the longest request that the deployment's pool admits (engine.md §2, §3), alone in it.

    ``tokens`` is a request to check, prompt and generation together; ``max_new_tokens`` what requests
    declare. Raises ``ValueError`` if there is no pool, or a figure is out of range.
    """
    if deployment.usable_blocks is None:
        raise ValueError(
            "the deployment has no pool size; pool_blocks, pool_tokens or pool_gib is needed, in the file or "
            "as a flag (--pool-blocks)"
        )
    for name, value, least in (("tokens", tokens, 1), ("max_new_tokens", max_new_tokens, 0)):
        if value is not None and not least <= value <= MAX_TOKENS:
            raise ValueError(f"{name} is {value}; {least} to {MAX_TOKENS} is possible")
    config = deployment.config
    pool = Pool(config, deployment.usable_blocks)
    generation = generation_tokens(config, max_new_tokens)
    if tokens is not None and tokens <= generation:
        raise ValueError(
            f"tokens is {tokens}, prompt and generation together, of which {generation} count as generation; "
            f"at least {generation + 1} is needed"
        )
    limit = pool.longest_alone()
    longest = _request_fit(pool, limit, limit)
    beyond = None if limit == MAX_TOKENS else _request_fit(pool, limit + 1, limit)
    asked = None if tokens is None else _request_fit(pool, tokens, limit)
    return LongestRequest(
        usable_blocks=pool.usable_blocks,
        source=deployment.sources["num_device_pages"],
        fits=limit > generation if asked is None else asked.fits,
        max_tokens=limit,
        max_prompt_tokens=max(limit - generation, 0),
        generation_tokens=generation,
        longest=longest,
        beyond=beyond,
        grows=_growing(longest, beyond) if beyond else (),
        asked=asked,
        alternatives=_alternatives(deployment, longest, beyond, asked, generation),
    )


def _alternatives(
    deployment: Deployment,
    longest: RequestFit,
    beyond: RequestFit | None,
    asked: RequestFit | None,
    generation: int,
) -> tuple[Alternative, ...]:
    if asked is None or asked.fits:
        return ()
    larger = larger_pool(deployment, asked.needed_blocks)
    pools = () if larger is None else (larger,)
    if beyond is None or longest.tokens <= generation:  # shorter ones are no requests: they have no prompt
        return pools
    usable = deployment.usable_blocks or 0
    shorter = Alternative(
        "tokens",
        {"--tokens": longest.tokens},
        longest.needed_blocks,
        usable,
        {"--tokens": beyond.tokens},
        beyond.needed_blocks,
        usable,
    )
    return shorter, *pools


def generation_tokens(config: SchedulerConfig, max_new_tokens: int) -> int:
    """Return the tokens the engine counts for a request's generation when it is submitted (engine.md §2)."""
    if config.role == SchedulerConfig.Role.P:
        return 0
    return max(max_new_tokens, config.decode_input_tokens)


def _request_fit(pool: Pool, tokens: int, limit: int) -> RequestFit:
    need = single_need(pool.config, tokens)
    fits = tokens <= limit
    short = None if fits else _short_group(pool, need, limit)
    return RequestFit(
        tokens=tokens,
        fits=fits,
        groups=_group_uses(pool, need),
        needed_blocks=need.total_blocks,
        short_tokens=max(tokens - limit, 0),
        short_pages=0 if short is None else _short_pages(pool, need, short),
        short_blocks=max(need.total_blocks - pool.usable_blocks, 0),
        short_group=None if short is None else pool.config.cache_groups[short].group_id,
    )


def _group_uses(pool: Pool, need: Need) -> tuple[GroupUse, ...]:
    return tuple(
        GroupUse(
            group.group_id,
            group.kind.name.lower(),
            group.block_granularity,
            group.cache_blocks_per_lcm_block,
            pages,
            blocks,
        )
        for group, pages, blocks in zip(pool.config.cache_groups, need.pages, need.blocks, strict=True)
    )


def _short_group(pool: Pool, need: Need, limit: int) -> int:
    """The group to blame, by index: of those that take more blocks than at the limit, the one with most."""
    at_limit = single_need(pool.config, limit)
    growing = [index for index, blocks in enumerate(need.blocks) if blocks > at_limit.blocks[index]]
    # Nothing grows where not even a request of no tokens fits.
    return max(growing or range(len(need.blocks)), key=lambda index: (need.blocks[index], -index))


def _short_pages(pool: Pool, need: Need, group: int) -> int:
    """The pages of a group that find no place once every other group has its own."""
    others = need.total_blocks - need.blocks[group]
    packing = pool.config.cache_groups[group].cache_blocks_per_lcm_block
    return need.pages[group] - max(pool.usable_blocks - others, 0) * packing


def _growing(longest: RequestFit, beyond: RequestFit) -> tuple[str, ...]:
    return tuple(
        more.group_id
        for less, more in zip(longest.groups, beyond.groups, strict=True)
        if more.pages > less.pages
    )
