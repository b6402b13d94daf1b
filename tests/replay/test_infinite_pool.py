"""With room for everything, the cache gives what the trace's shared prefixes allow: no page more or less."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.scheduler import (
    CacheGroupConfig,
    ExecutionEvent,
    ForwardEvent,
    RequestSpec,
    Scheduler,
    SchedulerConfig,
)
from kvplan.traces import read_trace
from kvplan.traces.facts import page_hits

CONVERSATION = Path(__file__).parents[3] / "shared" / "traces" / "mooncake_conversation.jsonl.gz"
PAGE = 64


@pytest.mark.skipif(not CONVERSATION.exists(), reason="../shared/traces is not on this machine")
def test_one_after_the_other_the_conversation_reuses_37_4_percent_of_its_prompt_tokens() -> None:
    # The definition: leading whole pages of 64 tokens that an earlier prompt computed, at most
    # (prompt − 1) // 64 of a prompt, over all prompt tokens. Counted by hash references instead, a partial
    # last one as a whole, the same trace gives the 36.6 % that is published with it.
    trace = read_trace([CONVERSATION])
    blocks = 1_600_000
    config = SchedulerConfig(
        prefix_granularity=PAGE,
        num_device_pages=blocks + 1,
        max_scheduled_tokens=131_072,
        max_batch_size=1,
        disable_l2_cache=True,
        cache_groups=[CacheGroupConfig("full", PAGE, blocks + 1)],
    )
    scheduler = Scheduler(config)
    reused = total = 0
    for row in range(len(trace)):
        name = str(row)
        prompt = trace.prompt(row)
        scheduler.submit_requests([RequestSpec(name, prompt, max_new_tokens=1)])
        batch = scheduler.next_execution_plan().forward[0]
        assert batch.extend_prefix_lens[0] + batch.input_lengths[0] == len(prompt)
        reused += batch.extend_prefix_lens[0]
        total += len(prompt)
        scheduler.advance(ExecutionEvent([ForwardEvent.ExtendResult(name, [0]), ForwardEvent.Finish(name)]))
    assert total == 144_793_823
    assert reused == sum(page_hits(trace, PAGE)) * PAGE
    assert round(100 * reused / total, 2) == 37.36
