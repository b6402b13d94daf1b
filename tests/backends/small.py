"""Scenarios of a few pages of four tokens, in which one thing goes wrong."""

from collections.abc import Callable, Sequence
from typing import Any

from kvplan.scheduler import ExecutionPlan
from tests.backends.carrying import CarriedRun
from tests.support.scenario import Scenario

Mutation = Callable[[ExecutionPlan, CarriedRun], None]


def group(kind: str = "full", **fields: Any) -> dict[str, Any]:
    """A group of the kind (full, sliding, replay, state), four tokens a page, one page a block, of that name."""
    made: dict[str, Any] = {"group_id": kind, "block_granularity": 4, "total_pages": 1000}
    if kind in ("sliding", "replay"):
        made |= {"retention": "SlidingWindow", "sliding_window_tokens": 6, "replayable": kind == "replay"}
    if kind == "state":
        made["family"] = "State"
    return made | fields


def request(at: int, *segments: Sequence[int], output: int = 12, **fields: Any) -> dict[str, Any]:
    """Request ``r<at>`` with a prompt of (seed, start, length) segments."""
    return {"id": f"r{at}", "prompt": [list(one) for one in segments], "output": output} | fields


def scenario(
    *requests: dict[str, Any], groups: Sequence[str | dict[str, Any]] = ("full",), **settings: Any
) -> Scenario:
    """A fused engine with 64 blocks on the device and no host tier, unless ``settings`` say otherwise."""
    made = [group(one) if isinstance(one, str) else one for one in groups]
    timing = settings.pop("timing", {})
    if settings.get("role", "Fused") != "Fused":
        for one in made:
            one["transfer_policy"] = "LatestSnapshot" if one.get("family") == "State" else "FullSuffix"
    config = {
        "prefix_granularity": 4,
        "num_device_pages": 65,
        "max_scheduled_tokens": 64,
        "max_batch_size": 8,
        "enable_mixed_prefill_decode": True,
        "cache_groups": made,
    }
    return {
        "config": config | settings,
        "requests": list(requests),
        "timing": timing,
        "max_rounds": 200,
    }


def play(one: Scenario, mutate: Mutation | None = None, **options: Any) -> CarriedRun:
    """Carry a scenario out, each plan changed by ``mutate`` on its way from the scheduler to the backend."""
    run = CarriedRun(one, **options)
    carry_out = run.backend.carry_out

    def mutated(plan: ExecutionPlan, scheduler: Any) -> None:
        if mutate is not None:
            mutate(plan, run)
        carry_out(plan, scheduler)

    run.backend.carry_out = mutated  # type: ignore[method-assign, assignment]
    for _ in run.rounds():
        pass
    return run
