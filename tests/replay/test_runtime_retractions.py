"""Retractions that the runtime asks for: failed loads, and those made on purpose."""

import polars as pl
import pytest

from kvplan.replay.play import Ending
from kvplan.replay.replay import replay
from kvplan.replay.run import Run
from kvplan.replay.storage import Storage
from kvplan.reports.replay import replay_text
from kvplan.scheduler import SchedulerConfig
from tests.replay.small import config, row, trace


def with_storage() -> SchedulerConfig:
    made = config(blocks=64)
    made.num_host_pages = 129
    made.enable_l3_storage = True
    return made


def stored(failure_rate: float, seed: int = 0) -> Run:
    """Eight requests whose prompts storage holds, in part loaded with failures."""
    rows = [row(0.2 * i, 70 + i, 6, prefix=[]) for i in range(8)]
    storage = Storage(1.0, failure_rate, seed)
    return replay(trace(*rows), with_storage(), storage=storage, check=True)


def test_what_storage_holds_is_loaded_and_not_computed() -> None:
    figures = stored(0.0).summary.figures
    assert figures.requests.finished == 8
    assert figures.tokens.prompt_from_cache == 8 * 64
    assert figures.tokens.prompt_computed == figures.tokens.prompt - 8 * 64
    assert figures.retractions.count == 0


def test_a_forward_whose_load_failed_computes_nothing_and_finds_nothing() -> None:
    run = stored(0.4, seed=1)
    figures = run.summary.figures
    assert figures.tiers is not None
    assert figures.tiers.loads_failed > 0
    assert figures.requests.finished == 8
    assert figures.retractions.count == figures.retractions.by_runtime >= figures.tiers.loads_failed
    # A prompt is found in storage once, however often its load has failed before.
    assert figures.tokens.prompt_from_cache + figures.tokens.prompt_computed == figures.tokens.prompt
    assert figures.tokens.prefill == run.rounds["prefill_tokens"].sum()
    lost = run.events.filter(pl.col("event") == "lost")
    assert len(lost) == figures.retractions.by_runtime
    first = lost.row(0, named=True)
    assert run.rounds.filter(pl.col("round") == first["round"])["prefill_tokens"].item() == 0


def test_loads_that_always_fail_are_a_livelock_of_the_runtime_s_making() -> None:
    run = stored(1.0)
    dead_end = run.summary.dead_end
    assert run.summary.ending is Ending.LIVELOCK
    assert dead_end is not None
    assert dead_end.requests[0].by_runtime
    assert run.summary.figures.tokens.prefill == 0
    text = " ".join(str(replay_text(run.summary)).split())
    assert "retracted by the runtime each time round" in text
    assert "try --max-new-tokens" not in text


@pytest.mark.parametrize("seed", range(5))
def test_loads_that_may_succeed_the_next_time_are_none(seed: int) -> None:
    assert stored(0.9, seed).summary.ending is Ending.COMPLETE


def test_retractions_on_purpose_are_the_runtime_s() -> None:
    rows = [row(0, 40, 60), row(0.1, 40, 60)]
    run = replay(trace(*rows), config(), force_retract_every=10, check=True)
    retractions = run.summary.figures.retractions
    assert run.summary.ending is Ending.COMPLETE
    assert retractions.count == retractions.by_runtime > 5
    assert run.summary.figures.tokens.generated == 120
    assert not any(line.startswith("try") for line in str(replay_text(run.summary)).splitlines())


def test_a_request_retracted_in_every_round_never_ends() -> None:
    run = replay(trace(row(0, 40, 60)), config(), force_retract_every=1)
    assert run.summary.ending is Ending.LIVELOCK
    assert run.summary.dead_end is not None
    assert run.summary.dead_end.period_rounds == 1
