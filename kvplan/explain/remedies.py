"""What would have let a waiting request into a round, found by trying it on copies of the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvplan.scheduler import CapacityModel, ExecutionPlan, Scheduler, SchedulerConfig
from kvplan.scheduler.cache.coordinator import PageKeys
from kvplan.scheduler.request import Request
from kvplan.scheduler.snapshot import load, save

DOUBLINGS = 5
"""Small changes that are tried where a large one does not do it."""

LEAPS = 8
"""Budgets that are tried because a plan with less left so many tokens of unfinished prompts."""

Change = Callable[[Scheduler, int], None]


@dataclass(frozen=True, slots=True)
class Remedies:
    """For each setting the value that lets the request in while one unit less does not; None: none does.

    ``extra_blocks`` are LCM blocks on top of the pool, ``max_scheduled_tokens`` the round's budget,
    ``max_batch_size`` requests, ``max_new_tokens`` what the request may declare at the most (one more does
    not do; None also where it declares nothing).
    """

    extra_blocks: int | None
    max_scheduled_tokens: int | None
    max_batch_size: int | None
    max_new_tokens: int | None


@dataclass(frozen=True, slots=True)
class Tried:
    """What a plan came to: the requests in it, and the tokens of their prompts that it leaves for later."""

    inside: frozenset[str]
    left: int


@dataclass(slots=True)
class Trials:
    """Copies of a scheduler just before a plan, on which to try what would change it."""

    before: Scheduler
    config: SchedulerConfig
    warm: dict[str, PageKeys] = field(default_factory=dict)
    """Prefix keys that are known already, by request id: they are the same in every copy."""
    _saved: bytes = field(init=False)
    _known: dict[tuple[str, int], Tried] = field(init=False, default_factory=dict)
    """What became of changes that are the same whoever they are tried for."""

    def __post_init__(self) -> None:
        self._saved = save(self.before)

    def enters(self, request_id: str, change: Change, value: int) -> bool:
        """Whether the request is in the plan of a copy to which ``change`` was made."""
        return request_id in self._try(change, value).inside

    def _try(self, change: Change, value: int) -> Tried:
        """The plan of a copy to which ``change`` was made."""
        shared = change in (Scheduler.add_blocks, Scheduler.set_budget, Scheduler.enlarge_batch)
        if shared and (change.__name__, value) in self._known:
            return self._known[change.__name__, value]
        requests = self.before.requests()
        prompts = {request.id: request.tokens.prompt for request in requests}
        trial = load(self._saved, prompts.__getitem__)
        for request in trial.requests():
            keys = self.warm.get(request.id)
            if keys is not None and not request.tables:
                request.keys = keys
        change(trial, value)
        inside = frozenset(scheduled(trial.next_execution_plan()))
        left = sum(max(one.prefill_size - one.end, 0) for one in trial.requests() if one.id in inside)
        tried = Tried(inside, left)
        if shared:
            self._known[change.__name__, value] = tried
        return tried

    def remedies(self, request_id: str, short: int = 0) -> Remedies:
        """What lets a request in that the plan leaves out; ``short``: LCM blocks that it seems to lack."""
        request = self._request(request_id)
        return Remedies(
            self.extra_blocks(request_id, short),
            self.budget(request_id),
            self.batch(request_id),
            self.max_new(request) if request.max_new else None,
        )

    def extra_blocks(self, request_id: str, short: int = 0) -> int | None:
        """LCM blocks on top of the pool."""
        model = CapacityModel(self.config)
        width = self.config.decode_input_tokens

        def most() -> int:
            needed = 0
            for request in self.before.requests():
                tokens = len(request.tokens) + max(request.headroom, width)
                needed += model.lcm_blocks_needed_for(model.single_request_group_pages(tokens))
            return needed

        return self._least(request_id, Scheduler.add_blocks, 0, max(short, 0), most)

    def budget(self, request_id: str) -> int | None:
        """The round's budget in tokens."""
        now = self.config.max_scheduled_tokens

        def most() -> int:
            requests = self.before.requests()
            tokens = sum(len(request.tokens) for request in requests)
            return (
                now + tokens + len(requests) * (self.config.decode_input_tokens + self.config.replay_window)
            )

        # A prompt that goes on next round is what keeps those behind it out: with a budget that ends it they come next.
        at = now
        for _ in range(LEAPS):
            left = self._try(Scheduler.set_budget, at).left
            if not left:
                break
            last, at = at, at + left + 1
            if self.enters(request_id, Scheduler.set_budget, at):
                return self._between(request_id, Scheduler.set_budget, last, at)
        return self._least(request_id, Scheduler.set_budget, now, 0, most)

    def batch(self, request_id: str) -> int | None:
        """The most requests that run at once."""
        now = self.config.max_batch_size
        return self._least(
            request_id, Scheduler.enlarge_batch, now, 0, lambda: now + len(self.before.requests())
        )

    def max_new(self, request: Request) -> int | None:
        """The most that a request may declare, below what it does."""

        def declare(trial: Scheduler, tokens: int) -> None:
            for one in trial.requests():
                if one.id == request.id:
                    one.max_new = tokens

        low, high = max(request.generated, 0) + 1, request.max_new
        if low >= high or not self.enters(request.id, declare, low):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if self.enters(request.id, declare, middle):
                low = middle
            else:
                high = middle
        return low

    def _least(
        self, request_id: str, change: Change, low: int, guess: int, most: Callable[[], int]
    ) -> int | None:
        """A value that does it where one less does not; ``low`` is known not to, ``guess`` is tried first.

        More is not always better: with much more, others come first, or a chunk asks for more. So where the most
        does not do it, values at doubling distances are tried, from ``low`` on: small changes, not all there are.
        """
        if guess > low and self.enters(request_id, change, guess):
            return self._between(request_id, change, low, guess)
        high = most()
        if high <= low:
            return None
        if self.enters(request_id, change, high):
            return self._between(request_id, change, max(low, guess), high)
        last = low
        for at in (low + 2**step for step in range(DOUBLINGS)):
            if at >= high:
                break
            if at != guess and self.enters(request_id, change, at):
                return self._between(request_id, change, last, at)
            last = at
        return None

    def _between(self, request_id: str, change: Change, low: int, high: int) -> int:
        """A value above ``low``, which does not do it, up to ``high``, which does, where one less does not."""
        if high - 1 > low and not self.enters(request_id, change, high - 1):
            return high
        while high - low > 1:
            middle = (low + high) // 2
            if self.enters(request_id, change, middle):
                high = middle
            else:
                low = middle
        return high

    def _request(self, request_id: str) -> Request:
        return next(request for request in self.before.requests() if request.id == request_id)


def scheduled(plan: ExecutionPlan) -> set[str]:
    """The requests in a plan."""
    batches = [*plan.forward, plan.remote_prefill, plan.remote_decode]
    return {name for batch in batches if batch is not None for name in batch.request_ids}
