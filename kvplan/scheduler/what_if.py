"""The same scheduler with more of something: copies on which to try what would change a decision."""

from __future__ import annotations

from kvplan.scheduler.scheduler import Scheduler
from kvplan.scheduler.snapshot import copy_of

__all__ = ["copy_of", "with_batch", "with_blocks", "with_budget", "with_max_new_tokens"]


def with_blocks(scheduler: Scheduler, extra: int) -> Scheduler:
    """A copy whose device pool has ``extra`` more LCM blocks, empty and last in the order of use."""
    changed = copy_of(scheduler)
    changed.add_blocks(extra)
    return changed


def with_budget(scheduler: Scheduler, max_scheduled_tokens: int) -> Scheduler:
    """A copy with another token budget a round."""
    changed = copy_of(scheduler)
    changed.set_budget(max_scheduled_tokens)
    return changed


def with_batch(scheduler: Scheduler, max_batch_size: int) -> Scheduler:
    """A copy with a larger batch. Raises ``ValueError`` for a smaller one: its slots may be taken."""
    changed = copy_of(scheduler)
    changed.enlarge_batch(max_batch_size)
    return changed


def with_max_new_tokens(scheduler: Scheduler, request_id: str, max_new_tokens: int) -> Scheduler:
    """A copy in which one request declares another generation; 0 declares none."""
    changed = copy_of(scheduler)
    for request in changed.requests():
        if request.id == request_id:
            request.max_new = max_new_tokens
            request.exempt = request.covered if request.tables else request.exempt
    return changed
