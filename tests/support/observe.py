"""A scenario played to its end with everything noted that the properties speak of."""

from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from kvplan.scheduler import Cache, ExecutionPlan
from tests.support.drive import Run
from tests.support.hashing import block_hashes, prefix_digests
from tests.support.peek import device_pages
from tests.support.record import Record
from tests.support.scenario import Scenario
from tests.support.scenarios import scenario_of

Page = tuple[int, int]  # group index, page


@dataclass
class Retraction:
    """A retraction; ``for_request`` is None for one that the runtime ordered."""

    request_id: str
    state: str
    for_request: str | None
    has_snapshot: bool


@dataclass
class Round:
    """One round: what was so right before its plan, the plan, what was so right after."""

    plan: ExecutionPlan
    record: Record
    states: dict[str, str]  # before the plan
    prefill_sizes: dict[str, int]
    results_out: set[str]
    pinned_sources: set[Page]  # of stores in flight before the plan
    load_pages: set[Page]  # device pages that loads in flight write
    retractions: list[Retraction]
    device: list[dict[bytes, int]]  # the prefix index after the plan


@dataclass
class Observed:
    """A whole run."""

    name: str
    scenario: Scenario
    run: "Observer"
    rounds: list[Round] = field(default_factory=list)


class Observer(Run):
    """A run that looks at the scheduler right before each plan."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.transfers: dict[int, tuple[bool, set[Page]]] = {}  # op id -> (is a load, device pages)
        self.before: dict[str, Any] = {}

    def before_plan(self) -> None:
        done = (Cache.WriteBackDoneEvent, Cache.LoadBackDoneEvent)
        pending = {event.op_id for due in self.head.values() for event in due if isinstance(event, done)}
        out = [self.transfers[op_id] for op_id in pending]
        scheduler = self.scheduler
        self.before = {
            "states": {rid: scheduler.request_state(rid) for rid in self.live},
            "prefill_sizes": {rid: scheduler.request_token_size(rid) for rid in self.live},
            "results_out": {
                step.request_id
                for due in self.tail.values()
                for answer in due
                if isinstance(answer, list)
                for step in answer
            },
            "pinned_sources": {page for is_load, pages in out for page in pages if not is_load},
            "load_pages": {page for is_load, pages in out for page in pages if is_load},
        }

    def note(self, plan: ExecutionPlan) -> Round:
        for op in plan.cache:
            is_load = isinstance(op, Cache.LoadBackOp)
            pages_of = op.dst_pages if is_load else op.src_pages
            for at, op_id in enumerate(op.op_ids):
                pages = set(zip(op.group_ids[at], pages_of[at], strict=True))
                if isinstance(op, Cache.WriteBackOp) and not op.source_pinned[at]:
                    pages = set()
                self.transfers[op_id] = (is_load, pages)
        retractions = [
            Retraction(r.request_id, r.state, r.for_request, r.has_snapshot)
            for r in self.scheduler.take_retractions()
        ]
        return Round(
            plan,
            self.record(plan),
            **self.before,
            retractions=retractions,
            device=device_pages(self.scheduler),
        )

    def tokens(self, rid: str) -> list[int]:
        """A request's tokens so far."""
        return self.prompts[rid] + self.outputs[rid]


@cache
def observed(seed: int, role: str | None = None, tier: str | None = None) -> Observed:
    """The run of a seed's scenario."""
    scenario = scenario_of(Random(seed), role, tier)
    run = Observer(scenario)
    seen = Observed(f"seed {seed} role {role} tier {tier}", scenario, run)
    for plan in run.rounds():
        seen.rounds.append(run.note(plan))
    return seen


def batch_rows(record: Record, part: str) -> list[dict[str, Any]]:
    """The requests of one batch of a round, a dict each."""
    batch = record.get(part)
    if batch is None:
        return []
    rows = []
    for at, rid in enumerate(batch["requests"]):
        extend = at < batch["extends"]
        prefix = batch["prefix"][at] if extend else None
        rows.append(
            {
                "id": rid,
                "extend": extend,
                "inputs": batch["inputs"][at],
                "prefill": batch["prefill"][at],
                "prefix": prefix,
                "replay": batch["replay"][at] if extend else None,
                "end": prefix + batch["inputs"][at] if prefix is not None else None,
                "tables": {group: rows_of[at] for group, rows_of in batch["tables"].items()},
            }
        )
    return rows


def digests_by_pages(run: Run, rid: str, frontier: int) -> set[bytes]:
    """The digests of a request's prefix pages below ``frontier`` tokens."""
    page = run.config.prefix_granularity
    return set(prefix_digests((run.prompts[rid] + run.outputs[rid])[:frontier], page))


def servable(run: Run) -> set[int]:
    """The block hashes of every prefix page all of whose pages, in every group that is matched, are cached on
    the device. This is what a consumer of the cache events must believe."""
    page = run.config.prefix_granularity
    present = device_pages(run.scheduler)
    hashes: set[int] = set()
    for rid, prompt in run.prompts.items():
        tokens = prompt + run.outputs[rid]
        for digest, block in zip(prefix_digests(tokens, page), block_hashes(tokens, page), strict=True):
            keys = [
                (at, digest + offset.to_bytes(4, "little") if page > group.block_granularity else digest)
                for at, group in enumerate(run.config.cache_groups)
                if not group.replayable
                for offset in range(page // group.block_granularity)
            ]
            if all(key in present[at] for at, key in keys):
                hashes.add(block)
    return hashes
