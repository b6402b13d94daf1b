"""What a request costs in a group: a fixed part and a part per token."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kvplan.scheduler import SchedulerConfig
from kvplan.scheduler.cache.geometry import ceil_div
from kvplan.scheduler.config import GroupKind
from kvplan.sizing.need import batch_need
from kvplan.sizing.wish import Wish


@dataclass(frozen=True, slots=True)
class GroupCost:
    """The terms of a group's pages, which add up to them exactly:

    pages = requests × ``fixed_pages_per_request`` + ceil(tokens × ``pages_per_token``) + ``once_pages``

    ``once_pages`` are there for the pool as a whole, whatever the number of requests: one chunk in flight.
    """

    fixed_pages_per_request: int
    pages_per_token: float
    once_pages: int


def group_costs(config: SchedulerConfig, wish: Wish) -> tuple[GroupCost, ...]:
    """Return each group's cost for requests as those of ``wish``, read off the capacity model (§3)."""
    pages = batch_need(config, wish).pages
    # The model is linear in the batch, so a term shows where the others are nothing: no tokens, no requests.
    alone = batch_need(config, Wish(1, wish.max_context_len, 0)).pages
    nobody = batch_need(config, Wish(0, wish.max_context_len, wish.total_tokens)).pages
    one_more = batch_need(
        config, Wish(wish.max_batch_size + 1, wish.max_context_len, wish.total_tokens)
    ).pages
    costs = []
    for index, group in enumerate(config.cache_groups):
        dense = ceil_div(wish.total_tokens, group.block_granularity) + wish.max_batch_size * alone[index]
        windowed_on_d = group.kind == GroupKind.SLIDING and config.role == SchedulerConfig.Role.D
        if group.kind == GroupKind.FULL or (windowed_on_d and pages[index] == dense):
            costs.append(GroupCost(alone[index], float(Fraction(1, group.block_granularity)), 0))
        elif windowed_on_d:
            costs.append(GroupCost(pages[index] // wish.max_batch_size, 0.0, 0))
        else:
            costs.append(GroupCost(one_more[index] - pages[index], 0.0, nobody[index]))
    return tuple(costs)
