"""What prompts found cached, what the rest missed for, and what an infinite cache would have found."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvplan.explain.prefix_story import PrefixStory, prefix_story
from kvplan.replay.session import begin
from kvplan.reports.prefix_story import prefix_text
from kvplan.scheduler import CacheGroupConfig
from tests.explain.runs import kept, sessions
from tests.replay.small import config, row, trace
from tests.support.groups import full, sliding, state

SHARED = [{"id": "s", "tokens": 64}]


def story(
    tmp_path: Path, *rows: dict[str, object], blocks: int = 40, groups: list[CacheGroupConfig] | None = None
) -> PrefixStory:
    made = kept(begin(trace(*rows), config(blocks, chunk=256, groups=groups)), tmp_path / "run")
    return prefix_story(made, made.trace, made.config)


def by_cause(told: PrefixStory) -> dict[str, int]:
    return {miss.cause: miss.tokens for miss in told.misses}


@pytest.mark.parametrize("name", [name for name, _ in sessions()])
def test_every_prompt_token_is_a_hit_or_a_miss_with_a_cause(name: str, tmp_path: Path) -> None:
    made = kept(dict(sessions())[name], tmp_path / "run")
    told = prefix_story(made, made.trace, made.config)
    tokens = made.summary.figures.tokens
    assert told.device_tokens + told.host_tokens + sum(by_cause(told).values()) == told.prompt_tokens
    assert told.prompt_tokens == tokens.prompt
    assert told.device_tokens + told.host_tokens <= told.infinite_tokens
    # A full group has every token of a hit on the tier that it was found on.
    full_hits = [hit for hit in told.group_hits or [] if hit.group_id == "full"]
    assert {hit.tier: hit.tokens for hit in full_hits} == {
        "device": told.device_tokens,
        **({"host": told.host_tokens} if made.config.has_host_cache else {}),
    }


def test_pages_that_nobody_had_computed_were_never_seen(tmp_path: Path) -> None:
    told = story(tmp_path, row(0, 80, 2), row(1, 80, 2))
    # 79 tokens may match: 4 pages of 16; the fifth page holds the prompt's end.
    assert by_cause(told) == {"never seen": 2 * 64, "below one page": 2 * 16}
    assert (told.device_tokens, told.infinite_tokens) == (0, 0)


def test_a_shared_prefix_that_is_there_hits(tmp_path: Path) -> None:
    told = story(tmp_path, row(0, 80, 2, prefix=SHARED), row(1, 80, 2, prefix=SHARED))
    assert told.device_tokens == told.infinite_tokens == 64


def test_an_evicted_prefix_names_whom_it_made_way_for(tmp_path: Path) -> None:
    rows = [row(0, 80, 2, prefix=SHARED), row(1, 150, 2), row(2, 80, 2, prefix=SHARED)]
    told = story(tmp_path, *rows, blocks=10)
    assert by_cause(told)["evicted"] == 64
    assert told.infinite_tokens == 64
    [evictor] = told.evictors
    assert (evictor.request_id, evictor.hits_ended) == ("r1", 1)
    assert [(group.cause, group.group_id) for group in told.groups][-1] == ("evicted", "full")


def test_pages_behind_an_evicted_one_are_of_no_use(tmp_path: Path) -> None:
    # r1 wants the shared 64 tokens and 64 of r0's own; the suffix goes first, so a small eviction leaves
    # the prefix: a longer one with the prefix gone and the rest still there cannot come from this rule.
    rows = [row(0, 80, 2, prefix=SHARED), row(1, 110, 2), row(2, 80, 2, prefix=SHARED)]
    told = story(tmp_path, *rows, blocks=10)
    assert 0 < told.device_tokens < 64
    assert by_cause(told)["evicted"] == 64 - told.device_tokens


def test_a_window_that_was_not_kept_breaks_the_hit(tmp_path: Path) -> None:
    long = [{"id": "s", "tokens": 192}]
    groups = [full(16, total_pages=81), sliding(40, 16, total_pages=81)]
    first, second = row(0, 192, 40, prefix=long), row(5, 200, 2, prefix=[{"id": "s", "tokens": 100}])
    told = story(tmp_path, first, second, blocks=80, groups=groups)
    assert by_cause(told)["broken window"] == 96
    assert ("broken window", "sliding") in [(group.cause, group.group_id) for group in told.groups]
    assert told.full_groups_tokens - told.device_tokens == 96
    assert "full groups alone could have served 96 tokens" in prefix_text(told, 100).plain


def test_a_state_that_was_not_kept_at_a_boundary_ends_the_hit(tmp_path: Path) -> None:
    long = [{"id": "s", "tokens": 192}]
    groups = [full(16, total_pages=81), state(16, total_pages=81)]
    first, second = row(0, 192, 40, prefix=long), row(5, 200, 2, prefix=[{"id": "s", "tokens": 100}])
    told = story(tmp_path, first, second, blocks=80, groups=groups)
    assert by_cause(told)["state not on a boundary"] == 96
    assert ("state not on a boundary", "state") in [(group.cause, group.group_id) for group in told.groups]


def test_where_the_trace_says_nothing_of_prefixes_the_rate_is_unknown(tmp_path: Path) -> None:
    told = story(tmp_path, row(0, 80, 2))
    assert not told.known
    assert "RESULT  unknown" in prefix_text(told, 80).plain


def test_hits_are_told_by_group_a_window_and_a_snapshot_each(tmp_path: Path) -> None:
    rows = [row(0, 80, 2, prefix=SHARED), row(1, 80, 2, prefix=SHARED), row(2, 80, 2, prefix=SHARED)]
    groups = [full(16, total_pages=41), sliding(40, 16, 1, total_pages=41), state(16)]
    told = story(tmp_path, *rows, groups=groups)
    found = {hit.group_id: (hit.tier, hit.pages, hit.tokens) for hit in told.group_hits or []}
    hits = told.device_tokens // 64  # each of 4 prefix pages
    assert hits >= 1
    assert found["full"] == ("device", 4 * hits, 64 * hits)
    assert found[groups[1].group_id] == ("device", 3 * hits, 48 * hits)  # a window of 40 tokens: 3 pages
    assert found[groups[2].group_id] == ("device", hits, None)
    assert "snapshots" in prefix_text(told, 80).plain


def test_a_run_that_has_no_pages_by_group_is_told_without(tmp_path: Path) -> None:
    made = kept(begin(trace(row(0, 80, 2)), config(40)), tmp_path / "run")
    admissions = made.table("admissions").drop("device_pages", "host_pages")
    admissions.write_parquet(tmp_path / "run" / "admissions.parquet")
    told = prefix_story(made, made.trace, made.config)
    assert told.group_hits is None
    assert "hit in" not in prefix_text(told, 80).plain
