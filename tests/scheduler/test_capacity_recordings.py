"""The capacity model against 1,200 recorded cases of the reference engine."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvplan.scheduler import (
    CacheGroupConfig,
    CacheGroupFamily,
    CacheRetention,
    CacheTransferPolicy,
    CapacityModel,
    SchedulerConfig,
)

RECORDING = Path(__file__).parent.parent / "recordings" / "capacity.jsonl.gz"
GROUP_ENUMS = {
    "retention": CacheRetention,
    "family": CacheGroupFamily,
    "transfer_policy": CacheTransferPolicy,
}
# What the message of each category of refusal has to name.
NAMED_BY = {
    "prefix-granularity": "prefix_granularity",
    "no-groups": "cache_groups",
    "max-batch-size": "max_batch_size",
    "decode-input-tokens": "decode_input_tokens",
    "max-scheduled-tokens": "max_scheduled_tokens",
    "overlap-depth": "overlap_schedule_depth",
    "overlap-without-decode": "decode_input_tokens",
    "group-id": "group_id",
    "block-granularity": "block_granularity",
    "packing": "cache_blocks_per_lcm_block",
    "shard-count": "shard_count",
    "block-does-not-divide": "block_granularity",
    "replayable-not-sliding": "replayable",
    "state-with-window": "retention",
    "transfer-policy-missing": "transfer_policy",
    "transfer-policy-wrong": "transfer_policy",
    "chunk-below-state-checkpoint": "max_scheduled_tokens",
    "chunk-below-replay-budget": "max_scheduled_tokens",
}
GROUP_CATEGORIES = {
    "block-granularity",
    "packing",
    "shard-count",
    "block-does-not-divide",
    "replayable-not-sliding",
    "state-with-window",
    "transfer-policy-missing",
    "transfer-policy-wrong",
    "chunk-below-state-checkpoint",
}

with gzip.open(RECORDING, "rt", encoding="utf-8") as lines:
    CASES: list[dict[str, Any]] = [json.loads(line) for line in lines]
SIZED = [(i, case) for i, case in enumerate(CASES) if "error" not in case]
REFUSED = [(i, case) for i, case in enumerate(CASES) if "error" in case]


def config_of(case: dict[str, Any]) -> SchedulerConfig:
    fields = dict(case["config"])
    groups = []
    for group in fields.pop("cache_groups"):
        settings: dict[str, Any] = {k: GROUP_ENUMS[k][v] if k in GROUP_ENUMS else v for k, v in group.items()}
        groups.append(CacheGroupConfig(**settings))
    role = SchedulerConfig.Role[fields.pop("role")]
    return SchedulerConfig(**fields, role=role, cache_groups=groups)


def test_the_recording_is_whole() -> None:
    assert len(CASES) == 1200
    assert set(Counter(case["error"] for _, case in REFUSED)) == set(NAMED_BY)


@pytest.mark.parametrize(("number", "case"), SIZED, ids=lambda v: f"case{v}" if isinstance(v, int) else "")
def test_recorded_figures(number: int, case: dict[str, Any]) -> None:
    model = CapacityModel(config_of(case))
    for tokens, pages in case["single"]:
        assert model.single_request_group_pages(tokens) == pages, f"single({tokens})"
    for total, context, pages, blocks in case["concurrent"]:
        assert model.concurrent_group_pages(total, context) == pages, f"concurrent({total}, {context})"
        assert model.lcm_blocks_needed_for(pages) == blocks
    for blocks, tokens in case["max_request"]:
        assert model.max_single_request_tokens(blocks) == tokens, f"max_request({blocks})"


@pytest.mark.parametrize(("number", "case"), REFUSED, ids=lambda v: f"case{v}" if isinstance(v, int) else "")
def test_recorded_refusals_name_the_field(number: int, case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=NAMED_BY[case["error"]]) as caught:
        CapacityModel(config_of(case))
    if case["error"] in GROUP_CATEGORIES:
        ids = [group["group_id"] for group in case["config"]["cache_groups"]]
        assert any(f"cache group {name!r}" in str(caught.value) for name in ids)


def test_the_model_reads_sizing_inputs_only() -> None:
    for _, case in SIZED[:50]:
        config = config_of(case)
        other = replace(config, num_device_pages=7, num_host_pages=9, enable_kv_cache_events=True)
        for total, context, pages, _ in case["concurrent"]:
            assert CapacityModel(other).concurrent_group_pages(total, context) == pages
