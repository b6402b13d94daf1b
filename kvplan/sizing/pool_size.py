"""Sizing a pool: what the wanted requests need, and with a pool what of it fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from kvplan.deployment import Deployment
from kvplan.scheduler import CacheGroupConfig, SchedulerConfig
from kvplan.scheduler.capacity import MAX_TOKENS
from kvplan.scheduler.config import GroupKind
from kvplan.sizing.alternatives import Alternative, larger_pool, wish_alternatives
from kvplan.sizing.cautions import Caution, cautions
from kvplan.sizing.cost import GroupCost, group_costs
from kvplan.sizing.fit import Pool
from kvplan.sizing.need import Need, batch_need, single_need
from kvplan.sizing.sure import sure_blocks
from kvplan.sizing.wish import Wish


class Verdict(StrEnum):
    """How what is wanted relates to the pool."""

    NO_POOL = "no_pool"  # nothing to compare with: the need is stated
    FITS = "fits"
    NOT_AT_ONCE = "not_at_once"  # every request fits, but not all of them at once: some wait
    NEVER_FITS = "never_fits"  # not even one request of this length fits, however long it waits


@dataclass(frozen=True, slots=True)
class GroupSize:
    """What one cache group needs. Bytes are None where not known.

    ``pages`` and ``blocks`` are for all wanted requests at once, ``single_request_pages`` for one of them by
    itself at its worst moment; ``bytes`` are those of ``blocks``, padding included. ``basis`` says how
    ``pages`` come about.
    """

    group_id: str
    kind: str
    block_granularity: int
    sliding_window_tokens: int | None
    cache_blocks_per_lcm_block: int
    bytes_per_page: int | None
    padding_bytes_per_block: int | None
    cost: GroupCost
    pages: int
    blocks: int
    bytes: int | None
    single_request_pages: int
    basis: str


@dataclass(frozen=True, slots=True)
class Binding:
    """What stops one more request: ``limit`` is "group" or "max_batch_size".

    ``group_ids`` are in either case the groups that take the largest share of the blocks (``share_of_blocks``)
    when as many requests are there as the pool holds: one group, or several that differ in nothing but their
    names, such as a model's state groups; ``group_id`` is the first of them.
    """

    limit: str
    group_id: str
    group_ids: tuple[str, ...]
    kind: str
    share_of_blocks: float


@dataclass(frozen=True, slots=True)
class PoolFit:
    """What a pool of ``usable_blocks`` LCM blocks does with the wanted requests.

    ``requests_at_once`` fit at once (None: any number): submitted together they all finish and none is
    retracted, if each declares its ``max_new_tokens``, though one may wait some rounds for a page of a window.
    Of ``requests_without_wait``, submitted together to an empty pool, none ever waits for a page, whether they
    declare or not (None: any number, or not known; see ``PoolSize.blocks_without_wait``).
    ``mean_requests`` is the pool over what one request takes by itself at its worst moment: pages alone, no
    slack. ``longest_context`` is for the wanted number of requests, ``longest_request`` for one alone (tokens;
    None: as long as the engine can count).
    """

    usable_blocks: int
    source: str
    memory_bytes: int | None
    used_share: float
    requests_at_once: int | None
    requests_without_wait: int | None
    mean_requests: float | None
    longest_context: int | None
    longest_request: int | None
    binds: Binding


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The answer of ``size_pool``: what is wanted, what it needs, and what a pool makes of it.

    ``needed_blocks`` are usable LCM blocks; ``num_device_pages`` counts the null one in, and so do
    ``pool_bytes``. ``single_request_blocks`` are for one wanted request by itself. In ``blocks_without_wait`` usable
    LCM blocks none of the wanted requests ever waits for a page (None: not known with a host pool, whose transfers
    hold pages, and on roles P and D).
    """

    verdict: Verdict
    max_batch_size: int
    max_context_len: int
    max_total_tokens: int
    max_total_tokens_given: bool
    groups: tuple[GroupSize, ...]
    bytes_per_block: int | None
    needed_blocks: int
    needed_bytes: int | None
    num_device_pages: int
    pool_bytes: int | None
    single_request_blocks: int
    blocks_without_wait: int | None
    pool: PoolFit | None
    alternatives: tuple[Alternative, ...]
    cautions: tuple[Caution, ...]


def size_pool(deployment: Deployment, max_context_len: int, max_total_tokens: int | None = None) -> PoolSize:
    """Return what ``max_batch_size`` requests need at once, none longer than ``max_context_len`` tokens.

    ``max_total_tokens`` is what they hold together (None: batch × context). With a pool in the deployment the
    answer says what fits. Raises ``ValueError`` naming the figure that is out of range.
    """
    config = deployment.config
    wish = Wish(config.max_batch_size, max_context_len, max_total_tokens)
    wish.validate()
    need = batch_need(config, wish)
    single = single_need(config, max_context_len)
    block = deployment.block_bytes
    pool = None if deployment.usable_blocks is None else Pool(config, deployment.usable_blocks)
    verdict = _verdict(pool, wish)
    short = pool is not None and verdict is not Verdict.FITS
    return PoolSize(
        verdict=verdict,
        max_batch_size=wish.max_batch_size,
        max_context_len=max_context_len,
        max_total_tokens=wish.total_tokens,
        max_total_tokens_given=max_total_tokens is not None,
        groups=_group_sizes(deployment, wish, need, single),
        bytes_per_block=block,
        needed_blocks=need.total_blocks,
        needed_bytes=None if block is None else need.total_blocks * block,
        num_device_pages=need.total_blocks + 1,
        pool_bytes=None if block is None else (need.total_blocks + 1) * block,
        single_request_blocks=single.total_blocks,
        blocks_without_wait=sure_blocks(config, wish) if _waits_are_known(deployment) else None,
        pool=_pool_fit(deployment, pool, wish, need, single) if pool else None,
        alternatives=_alternatives(deployment, pool, wish) if pool and short else (),
        cautions=cautions(deployment),
    )


def _verdict(pool: Pool | None, wish: Wish) -> Verdict:
    if pool is None:
        return Verdict.NO_POOL
    if pool.holds(wish):
        return Verdict.FITS
    if wish.max_context_len > pool.longest_alone():
        return Verdict.NEVER_FITS
    return Verdict.NOT_AT_ONCE


def _group_sizes(deployment: Deployment, wish: Wish, need: Need, single: Need) -> tuple[GroupSize, ...]:
    costs = group_costs(deployment.config, wish)
    block = deployment.block_bytes
    return tuple(
        GroupSize(
            group_id=group.group_id,
            kind=group.kind.name.lower(),
            block_granularity=group.block_granularity,
            sliding_window_tokens=group.sliding_window_tokens,
            cache_blocks_per_lcm_block=group.cache_blocks_per_lcm_block,
            bytes_per_page=deployment.group_bytes[group.group_id],
            padding_bytes_per_block=deployment.padding[group.group_id],
            cost=costs[index],
            pages=need.pages[index],
            blocks=need.blocks[index],
            bytes=None if block is None else need.blocks[index] * block,
            single_request_pages=single.pages[index],
            basis=_basis(group, costs[index], wish),
        )
        for index, group in enumerate(deployment.config.cache_groups)
    )


def _basis(group: CacheGroupConfig, cost: GroupCost, wish: Wish) -> str:
    fixed = f"{wish.max_batch_size} × {cost.fixed_pages_per_request}"
    if cost.pages_per_token:
        return f"{wish.total_tokens} / {group.block_granularity} + {fixed} open"
    if group.kind == GroupKind.STATE:
        return f"{fixed} at the worst moment"
    window = f"{fixed} of window"
    return f"{window} + {cost.once_pages} for a chunk" if cost.once_pages else window


def _pool_fit(deployment: Deployment, pool: Pool, wish: Wish, need: Need, single: Need) -> PoolFit:
    requests = pool.largest_batch(wish)
    context, alone = pool.longest_context(wish), pool.longest_alone()
    return PoolFit(
        usable_blocks=pool.usable_blocks,
        source=deployment.sources["num_device_pages"],
        memory_bytes=deployment.memory_bytes,
        used_share=need.total_blocks / pool.usable_blocks,
        requests_at_once=None if requests == MAX_TOKENS else requests,
        requests_without_wait=(
            pool.largest_batch_without_wait(wish)
            if _waits_are_known(deployment) and requests < MAX_TOKENS
            else None
        ),
        mean_requests=_mean_requests(pool, single),
        longest_context=None if context == MAX_TOKENS else context,
        longest_request=None if alone == MAX_TOKENS else alone,
        binds=_binding(pool, wish, requests),
    )


def _waits_are_known(deployment: Deployment) -> bool:
    return deployment.config.role == SchedulerConfig.Role.Fused and not deployment.host_blocks


def _mean_requests(pool: Pool, single: Need) -> float | None:
    """None where a request takes no page. Requests share LCM blocks: no rounding to whole ones."""
    groups = pool.config.cache_groups
    blocks = sum(p / g.cache_blocks_per_lcm_block for p, g in zip(single.pages, groups, strict=True))
    return pool.usable_blocks / blocks if blocks else None


def _binding(pool: Pool, wish: Wish, requests: int) -> Binding:
    at_limit = wish.with_batch(max(requests, 1))
    need = batch_need(pool.config, at_limit)
    alike: list[tuple[CacheGroupConfig, list[int]]] = []
    for at, group in enumerate(pool.config.cache_groups):
        nameless = replace(group, group_id="")
        for known, members in alike:
            if known == nameless:
                members.append(at)
                break
        else:
            alike.append((nameless, [at]))
    largest, members = max(alike, key=lambda entry: sum(need.blocks[at] for at in entry[1]))
    names = tuple(pool.config.cache_groups[at].group_id for at in members)
    return Binding(
        limit="max_batch_size" if requests > wish.max_batch_size else "group",
        group_id=names[0],
        group_ids=names,
        kind=largest.kind.name.lower(),
        share_of_blocks=sum(need.blocks[at] for at in members) / max(need.total_blocks, 1),
    )


def _alternatives(deployment: Deployment, pool: Pool, wish: Wish) -> tuple[Alternative, ...]:
    larger = larger_pool(deployment, pool.least_blocks(wish))
    return (*wish_alternatives(deployment, pool, wish), *(() if larger is None else (larger,)))
