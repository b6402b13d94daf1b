"""What makes a configuration invalid, and what the message names (engine.md §2)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from kvplan.scheduler import (
    CacheGroupConfig,
    CacheGroupFamily,
    CacheRetention,
    CacheTransferPolicy,
    CapacityModel,
    Scheduler,
    SchedulerConfig,
)

Role = SchedulerConfig.Role
SLIDING: dict[str, Any] = {"retention": CacheRetention.SlidingWindow, "sliding_window_tokens": 128}
STATE: dict[str, Any] = {"family": CacheGroupFamily.State}


def group(**fields: Any) -> CacheGroupConfig:
    settings: dict[str, Any] = {"group_id": "kv", "block_granularity": 64, "total_pages": 9} | fields
    return CacheGroupConfig(**settings)


def config(*groups: CacheGroupConfig, **fields: Any) -> SchedulerConfig:
    sizing = {
        "prefix_granularity": 64,
        "max_scheduled_tokens": 512,
        "max_batch_size": 4,
        "num_device_pages": 9,
    }
    return SchedulerConfig(**(sizing | {"cache_groups": list(groups) or [group()]} | fields))


# In the order in which §2 checks them: what is wrong, and how the message begins.
SIZING_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"prefix_granularity": 0}, "prefix_granularity is 0"),
    ({"cache_groups": []}, "cache_groups is empty"),
    ({"max_batch_size": -1}, "max_batch_size is -1"),
    ({"decode_input_tokens": -1}, "decode_input_tokens is -1"),
    ({"max_scheduled_tokens": 0}, "max_scheduled_tokens is 0"),
    ({"overlap_schedule_depth": 2}, "overlap_schedule_depth is 2"),
    ({"overlap_schedule_depth": 1, "decode_input_tokens": 0}, "decode_input_tokens is 0"),
]
GROUP_FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"group_id": ""}, "group_id is empty"),
    ({"block_granularity": 0}, "block_granularity is 0"),
    ({"cache_blocks_per_lcm_block": 0}, "cache_blocks_per_lcm_block is 0"),
    ({"shard_count": 0}, "shard_count is 0"),
    ({"shard_count": 2, "cache_blocks_per_lcm_block": 3}, "shard_count is 2"),
    ({"retention": CacheRetention.SlidingWindow}, "sliding_window_tokens is None"),
    (SLIDING | {"sliding_window_tokens": 0}, "sliding_window_tokens is 0"),
    (SLIDING | STATE, "retention is SlidingWindow"),
    ({"replayable": True}, "replayable is set"),
    (STATE | {"replayable": True}, "replayable is set"),
    ({"block_granularity": 48}, "block_granularity is 48"),
]


@pytest.mark.parametrize(("fields", "message"), SIZING_FAULTS)
def test_a_sizing_field_that_is_wrong_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        CapacityModel(config(**fields))


@pytest.mark.parametrize(("fields", "message"), GROUP_FAULTS)
def test_a_group_field_that_is_wrong_is_named_with_its_group(fields: dict[str, Any], message: str) -> None:
    named = "cache group: " if fields.get("group_id") == "" else "cache group 'kv': "
    with pytest.raises(ValueError, match=f"^{named}{message}"):
        CapacityModel(config(group(**fields)))


@pytest.mark.parametrize(
    ("first", "message", "second"),
    [
        (fields, message, later)
        for number, (fields, message) in enumerate(SIZING_FAULTS)
        for later, _ in SIZING_FAULTS[number + 1 :]
        if not set(fields) & set(later)  # one field cannot be wrong in two ways
    ],
)
def test_of_two_wrong_fields_the_first_in_order_is_named(
    first: dict[str, Any], message: str, second: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        CapacityModel(config(**first, **second))


def test_a_field_comes_before_any_group_and_groups_in_their_order() -> None:
    bad = group(group_id="b", block_granularity=0)
    with pytest.raises(ValueError, match="max_scheduled_tokens"):
        CapacityModel(config(bad, max_scheduled_tokens=0))
    with pytest.raises(ValueError, match="'a': shard_count"):
        CapacityModel(config(group(group_id="a", shard_count=0), bad))


@pytest.mark.parametrize("role", [Role.P, Role.D])
@pytest.mark.parametrize(
    ("fields", "policy", "wanted"),
    [
        ({}, "Unspecified", "FullSuffix"),
        ({}, "LatestSnapshot", "FullSuffix"),
        (SLIDING, "LatestSnapshot", "FullSuffix"),
        (STATE, "Unspecified", "LatestSnapshot"),
        (STATE, "FullSuffix", "LatestSnapshot"),
    ],
)
def test_prefill_and_decode_workers_need_the_kinds_transfer_policy(
    role: Role, fields: dict[str, Any], policy: str, wanted: str
) -> None:
    wrong = group(**fields, transfer_policy=CacheTransferPolicy[policy])
    with pytest.raises(ValueError, match=f"'kv': transfer_policy is {policy}.*{wanted}"):
        CapacityModel(config(wrong, role=role))
    CapacityModel(config(wrong))  # a fused engine does not read it
    CapacityModel(config(replace(wrong, transfer_policy=CacheTransferPolicy[wanted]), role=role))


def test_a_state_group_needs_chunks_of_a_prefix_page() -> None:
    with pytest.raises(ValueError, match="'kv': max_scheduled_tokens is 63"):
        CapacityModel(config(group(**STATE), max_scheduled_tokens=63))
    CapacityModel(config(group(**STATE), max_scheduled_tokens=64))
    CapacityModel(config(max_scheduled_tokens=63))


@pytest.mark.parametrize(("window", "least"), [(128, 256), (16, 16 + 64)])
def test_replayable_groups_need_chunks_of_two_windows_or_a_window_and_a_page(window: int, least: int) -> None:
    replayable = group(**SLIDING | {"sliding_window_tokens": window}, replayable=True)
    with pytest.raises(ValueError, match=f"max_scheduled_tokens is {least - 1}.*{least}"):
        CapacityModel(config(replayable, max_scheduled_tokens=least - 1))
    CapacityModel(config(replayable, max_scheduled_tokens=least))


def test_a_state_group_cannot_stand_beside_a_replayable_one() -> None:
    with pytest.raises(ValueError, match="'s': family"):
        CapacityModel(config(group(**SLIDING, replayable=True), group(group_id="s", **STATE)))


@pytest.mark.parametrize(
    "name",
    ["prefix_granularity", "max_batch_size", "decode_input_tokens", "max_scheduled_tokens"],
)
@pytest.mark.parametrize("value", [1.5, "64", None, True])
def test_only_integers_are_counts(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} is {re.escape(repr(value))}; an integer"):
        CapacityModel(config(**{name: value}))


@pytest.mark.parametrize("value", [True, 1.0, None])
def test_an_overlap_depth_is_an_integer(value: object) -> None:
    with pytest.raises(ValueError, match=f"overlap_schedule_depth is {re.escape(repr(value))}; an integer"):
        CapacityModel(config(overlap_schedule_depth=value))


@pytest.mark.parametrize("value", [0, 1, 2, "D", None])
def test_a_role_is_one_of_the_three(value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"role is {value!r}; a Role is needed (P, D, Fused)")):
        CapacityModel(config(role=value))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("retention", "CacheRetention"),
        ("family", "CacheGroupFamily"),
        ("transfer_policy", "CacheTransferPolicy"),
    ],
)
@pytest.mark.parametrize("value", [0, 1, "State", None])
def test_a_groups_kind_is_said_by_its_enums(name: str, kind: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"'kv': {name} is {value!r}; a {kind} is needed"):
        CapacityModel(config(group(**{name: value})))


@pytest.mark.parametrize("value", ["128", 128.0, True])
def test_a_window_is_an_integer(value: object) -> None:
    with pytest.raises(ValueError, match=f"'kv': sliding_window_tokens is {value!r}; an integer"):
        CapacityModel(config(group(**SLIDING | {"sliding_window_tokens": value})))


# --- what a scheduler needs besides ------------------------------------------------------------------


@pytest.mark.parametrize("pages", [0, 1])
def test_a_scheduler_needs_a_page_beside_the_null_one(pages: int) -> None:
    with pytest.raises(ValueError, match=f"num_device_pages is {pages}"):
        Scheduler(config(num_device_pages=pages))
    CapacityModel(config(num_device_pages=pages))  # the capacity model does not read it


@pytest.mark.parametrize("name", ["num_device_pages", "num_host_pages"])
@pytest.mark.parametrize("value", ["9", 9.0, None, True])
def test_pools_are_counted_in_integers(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} is {re.escape(repr(value))}; an integer"):
        Scheduler(config(**{name: value}))


def test_a_scheduler_needs_pages_in_every_group() -> None:
    with pytest.raises(ValueError, match="'kv': total_pages is 0"):
        Scheduler(config(group(total_pages=0)))


def test_a_scheduler_replays_no_negative_tokens() -> None:
    with pytest.raises(ValueError, match="prefix_replay_tokens is -1"):
        Scheduler(config(prefix_replay_tokens=-1))


@pytest.mark.parametrize(
    "fields", [{}, {"num_host_pages": 1}, {"num_host_pages": 9, "disable_l2_cache": True}]
)
def test_l3_needs_a_host_cache(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="enable_l3_storage"):
        Scheduler(config(enable_l3_storage=True, **fields))
    Scheduler(config(enable_l3_storage=True, num_host_pages=9))


def test_a_misspelt_field_is_refused() -> None:
    with pytest.raises(AttributeError, match="max_batchsize"):
        config().max_batchsize = 3
