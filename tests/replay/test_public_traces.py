"""The public traces replay whole, as issue and README say; they are not part of the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.replay.play import Ending
from kvplan.replay.replay import replay
from kvplan.scheduler import CacheGroupConfig, SchedulerConfig
from kvplan.traces import read_trace

TRACES = Path(__file__).parents[3] / "shared" / "traces"


def pool(blocks: int) -> SchedulerConfig:
    return SchedulerConfig(
        prefix_granularity=64,
        num_device_pages=blocks + 1,
        max_scheduled_tokens=8192,
        max_batch_size=256,
        enable_mixed_prefill_decode=True,
        cache_groups=[CacheGroupConfig("full", 64, blocks + 1)],
    )


@pytest.mark.parametrize(
    ("name", "limit", "requests", "prompt_tokens", "generated_tokens"),
    [
        # Sums over the files' own columns, made with awk.
        ("azure_code.csv", None, 8_819, 18_059_974, 245_896),
        ("azure_conv.csv", None, 19_366, 22_361_870, 4_088_665),
        ("mooncake_conversation.jsonl.gz", 2_000, 2_000, None, None),
    ],
)
def test_a_public_trace_replays_whole(
    name: str, limit: int | None, requests: int, prompt_tokens: int | None, generated_tokens: int | None
) -> None:
    path = TRACES / name
    if not path.exists():
        pytest.skip("../shared/traces is not on this machine")
    run = replay(read_trace([path], limit=limit), pool(12_500), max_new_tokens="output")
    figures = run.summary.figures
    assert run.summary.ending is Ending.COMPLETE
    assert figures.requests.finished == requests
    assert figures.retractions.count == 0
    if prompt_tokens is not None:
        assert figures.tokens.prompt_computed == figures.tokens.prompt == prompt_tokens
        assert figures.tokens.cache_rate is None
    if generated_tokens is not None:
        assert figures.tokens.generated == generated_tokens
