"""Random scenarios, all valid: every role, tier and kind of group, in pools small enough to hurt."""

from random import Random
from typing import Any

from hypothesis import strategies as st

from kvplan.scheduler import CapacityModel
from tests.support.scenario import Scenario, config_of

MIXES = (
    ("full",),
    ("sliding",),
    ("full", "full"),
    ("full", "sliding"),
    ("full", "state"),
    ("full", "replay"),
    ("full", "sliding", "sliding"),
    ("full", "sliding", "state"),
    ("full", "sliding", "replay"),
    ("full", "state", "state", "state"),
)
ROLES = ("Fused", "P", "D")
TIERS = ("device", "host", "storage")


def scenario_of(
    rng: Random, role: str | None = None, tier: str | None = None, events: bool = False
) -> Scenario:
    """A scenario of the role and tier, or of any. The same ``rng`` state gives the same scenario."""
    role = role or rng.choice(ROLES)
    tier = tier or rng.choice(TIERS)
    prefix = rng.choice((2, 4, 8))
    groups = [_group(rng, kind, at, prefix, role) for at, kind in enumerate(rng.choice(MIXES))]
    window = max((g["sliding_window_tokens"] for g in groups if g.get("replayable")), default=0)
    least = window + max(window, prefix) if window else prefix
    width = rng.choice((1, 1, 2, 3))
    config: dict[str, Any] = {
        "prefix_granularity": prefix,
        "num_device_pages": 2,
        "num_host_pages": 0 if tier == "device" else rng.randint(3, 60),
        "max_scheduled_tokens": least + rng.randint(0, 4 * prefix),
        "max_batch_size": rng.randint(1, 6),
        "decode_input_tokens": width,
        "overlap_schedule_depth": rng.randint(0, 1),
        "role": role,
        "cache_groups": groups,
        "enable_l3_storage": tier == "storage",
        "enable_kv_cache_events": events,
        "enable_mixed_prefill_decode": rng.random() < 0.5,
        "disable_prefix_cache": rng.random() < 0.1,
        "prefix_replay_tokens": rng.choice((0, 0, 3)),
    }
    requests = [_request(rng, at, prefix) for at in range(rng.randint(2, 10))]
    longest = max(
        sum(length for _, _, length in r["prompt"]) + max(r["max_new_tokens"], width) for r in requests
    )
    model = CapacityModel(config_of(config))
    need = model.lcm_blocks_needed_for(model.single_request_group_pages(longest))
    # From just too small for the longest request to room for two of it.
    config["num_device_pages"] = 1 + max(1, need - rng.choice((0, 0, 0, 1)) + rng.randint(0, need))
    for group in groups:
        group["total_pages"] = config["num_device_pages"] * group["cache_blocks_per_lcm_block"]
    scenario: Scenario = {
        "config": config,
        "requests": requests,
        "timing": {
            "result": config["overlap_schedule_depth"],
            "write_back": rng.randint(1, 4),
            "load_back": rng.randint(1, 3),
            "bootstrap": rng.randint(0, 2),
            "remote_prefill": rng.randint(0, 4),
            "remote_decode": rng.randint(0, 4),
        },
        "accept": [rng.randint(1, width) for _ in range(rng.randint(1, 3))],
        "update_reserve": rng.random() < 0.5,
        "max_rounds": 120,
    }
    if rng.random() < 0.4:
        scenario["aborts"] = [
            {"round": rng.randint(0, 30), "id": f"r{rng.randrange(len(requests))}"}
            for _ in range(rng.randint(1, 3))
        ]
    if tier == "storage":
        scenario["storage"] = [[[0, 0, prefix * rng.randint(1, 8)]] for _ in range(rng.randint(0, 2))]
        scenario["failing_loads"] = [op for op in range(20) if rng.random() < 0.15]
    if rng.random() < 0.3:
        scenario["clears"] = [
            {"round": rng.randint(1, 40), "what": rng.choice(("clear_l1_cache", "clear_cache"))}
            for _ in range(rng.randint(1, 3))
        ]
    return scenario


def _group(rng: Random, kind: str, at: int, prefix: int, role: str) -> dict[str, Any]:
    packing = rng.choice((1, 1, 2, 3, 4))
    group: dict[str, Any] = {
        "group_id": f"{kind}{at}",
        "block_granularity": rng.choice([g for g in (1, 2, 4, 8) if g <= prefix]),
        "total_pages": 1,
        "cache_blocks_per_lcm_block": packing,
        "shard_count": rng.choice([s for s in (1, 2, 3) if packing % s == 0]),
    }
    if kind == "state":
        group["family"] = "State"
    if kind in ("sliding", "replay"):
        group["retention"] = "SlidingWindow"
        group["sliding_window_tokens"] = rng.randint(1, 2 * prefix)
        group["replayable"] = kind == "replay"
    if role != "Fused":
        group["transfer_policy"] = "LatestSnapshot" if kind == "state" else "FullSuffix"
    return group


def _request(rng: Random, at: int, prefix: int) -> dict[str, Any]:
    prompt = [[100 + at, 0, rng.randint(1, 3 * prefix)]]
    if rng.random() < 0.7:
        prompt.insert(0, [rng.randint(0, 1), 0, rng.randint(1, 6 * prefix)])
    output = rng.randint(1, 24)
    request: dict[str, Any] = {
        "id": f"r{at}",
        "submit": rng.choice((0, 0, 1, 2, rng.randint(0, 30))),
        "prompt": prompt,
        "max_new_tokens": rng.choice((0, 0, 0, output, output + 5)),
        "output": output,
    }
    if rng.random() < 0.15:
        request["max_cached_prefix_tokens"] = rng.randint(0, 4 * prefix)
    return request


def scenarios(
    role: str | None = None, tier: str | None = None, events: bool = False
) -> st.SearchStrategy[Scenario]:
    """The same as a hypothesis strategy, which shrinks a scenario that fails."""
    return st.randoms(use_true_random=False).map(lambda rng: scenario_of(rng, role, tier, events))
