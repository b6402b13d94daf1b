"""A trace through prefill and decode workers: the two ends agree, and nothing is left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.replay.accept import parse_accept
from kvplan.replay.disaggregated import Disaggregated, disaggregate, role_config
from kvplan.replay.hand_off import TransferLink
from kvplan.replay.step_time import NS, StepTime
from kvplan.replay.workload import Workload
from kvplan.scheduler import CacheGroupConfig, CacheGroupFamily, CacheRetention, SchedulerConfig
from kvplan.scheduler.config import Role


def workload(shapes: list[tuple[int, int, int]], shared: int = 0, gap_ns: int = 10_000_000) -> Workload:
    """Requests of (prompt, output, declared) tokens, ``gap_ns`` apart; the first ``shared`` prompt tokens agree."""
    prompts = [
        np.concatenate(
            [np.arange(min(shared, n)), 10_000 * (row + 1) + np.arange(n - min(shared, n))]
        ).astype(np.int32)
        for row, (n, _, _) in enumerate(shapes)
    ]
    return Workload(
        request_ids=[f"r{row}" for row in range(len(shapes))],
        prompt_tokens=[n for n, _, _ in shapes],
        output_tokens=[n for _, n, _ in shapes],
        budgets=[n for _, _, n in shapes],
        arrivals_ns=[row * gap_ns for row in range(len(shapes))],
        delays_ns=[None] * len(shapes),
        after=[None] * len(shapes),
        prompt=prompts.__getitem__,
        output=lambda row: list(range(5_000_000 + 1000 * row, 5_000_000 + 1000 * row + shapes[row][1])),
    )


def config(blocks: int = 200, groups: list[CacheGroupConfig] | None = None, **fields: Any) -> SchedulerConfig:
    made = SchedulerConfig(
        prefix_granularity=16,
        num_device_pages=blocks + 1,
        max_scheduled_tokens=64,
        max_batch_size=8,
        enable_mixed_prefill_decode=True,
        cache_groups=groups or [CacheGroupConfig("full", 16, blocks + 1)],
    )
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def played(work: Workload, deployment: SchedulerConfig, **options: Any) -> Disaggregated:
    options.setdefault("accept", parse_accept(None, deployment.decode_input_tokens))
    replay = disaggregate(work, deployment, check=True, max_rounds=20_000, **options)
    replay.play()
    return replay


def assert_nothing_left(replay: Disaggregated) -> None:
    for worker in replay.workers:
        scheduler = worker.scheduler
        scheduler.next_execution_plan()
        assert scheduler.pd_transfer_size() == 0
        assert scheduler.active_lcm_blocks() == 0
        assert scheduler.pool_usage().held == 0
        assert not worker.live


HYBRID = [
    CacheGroupConfig("full", 16, 201),
    CacheGroupConfig(
        "window",
        16,
        201,
        retention=CacheRetention.SlidingWindow,
        sliding_window_tokens=40,
        cache_blocks_per_lcm_block=2,
    ),
    CacheGroupConfig("state", 16, 201, family=CacheGroupFamily.State),
]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 150), st.integers(1, 30), st.sampled_from([0, 40, 9000])),
        min_size=1,
        max_size=12,
    ),
    workers=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    routing=st.sampled_from(["round-robin", "least-loaded"]),
    hybrid=st.booleans(),
    overlap=st.integers(0, 1),
    blocks=st.sampled_from([60, 200]),
    shared=st.sampled_from([0, 48]),
)
def test_every_request_is_handed_off_once_and_generates_what_the_trace_says(
    shapes: list[tuple[int, int, int]],
    workers: tuple[int, int],
    routing: str,
    hybrid: bool,
    overlap: int,
    blocks: int,
    shared: int,
) -> None:
    deployment = config(blocks, HYBRID if hybrid else None, overlap_schedule_depth=overlap)
    replay = played(
        workload(shapes, shared),
        deployment,
        prefill_workers=workers[0],
        decode_workers=workers[1],
        routing=routing,
        link=TransferLink(1_000_000, 1e9),
        page_bytes={"full": 1e5, "window": 1e5, "state": 1e5},
    )
    if replay.ending == "complete":
        ended = {flight.request_id: flight.generated for flight in replay.finished}
        refused = {flight.request_id for flight in replay.refused}
        assert ended.keys() | refused == {f"r{row}" for row in range(len(shapes))}
        assert not ended.keys() & refused
        for row, (_, output, _) in enumerate(shapes):
            if f"r{row}" in ended:
                assert ended[f"r{row}"] == output
                hand = replay.hand_offs[f"r{row}"]
                assert 0 <= max(hand.ready_ns, hand.landing_ns) <= hand.begin_ns <= hand.end_ns
        left = [flight.request_id for worker in replay.prefill for flight in worker.finished]
        assert sorted(left) == sorted(ended)
        assert_nothing_left(replay)
    else:
        # Pressure on undeclared budgets can stop an engine for good: that is told, with who and why.
        assert replay.stuck


def test_a_request_waits_for_its_landing_while_its_pages_stay_pinned() -> None:
    # The decode worker holds one request of 3 + 1 blocks at a time; the second prompt is done long before
    # there is room for it.
    replay = played(
        workload([(48, 16, 16), (48, 16, 16)], gap_ns=0),
        config(5, None, max_batch_size=2),
        prefill_config=config(50),
    )
    first, second = replay.hand_offs["r0"], replay.hand_offs["r1"]
    assert first.landing_wait_ns < second.landing_wait_ns
    end_of_first = next(f.finished_ns for f in replay.finished if f.request_id == "r0")
    assert second.landing_ns >= end_of_first
    assert second.pinned_pages == 4  # three of the prompt and the decode slot behind it
    assert second.landed_pages == 3
    assert_nothing_left(replay)


def test_transfers_share_the_link_one_after_the_other() -> None:
    # 4 pages of 1 GB at 1 GB/s: 4 s each, from when the first is ready.
    replay = played(
        workload([(64, 2, 2), (64, 2, 2)], gap_ns=0),
        config(),
        link=TransferLink(0, 1e9),
        page_bytes={"full": 1e9},
    )
    first, second = (replay.hand_offs[name] for name in ("r0", "r1"))
    assert first.end_ns - first.begin_ns == 4 * NS
    assert second.begin_ns == first.end_ns
    assert second.queue_ns > 3 * NS


def test_the_first_token_reaches_the_client_when_the_transfer_has_ended() -> None:
    replay = played(workload([(64, 3, 3)]), config(), link=TransferLink(7_000_000))
    (flight,) = replay.finished
    hand = replay.hand_offs["r0"]
    # The forward of 64 tokens takes 10 ms + 64 × 35 µs; its token lands, the next plan hands the pages out.
    assert hand.ready_ns == 12_240_000
    assert flight.first_token_ns >= hand.end_ns == 19_240_000


def test_a_prefill_worker_alone_finds_a_peer_that_is_always_ready() -> None:
    replay = played(workload([(64, 3, 3), (32, 9, 9)]), config(), decode_workers=0)
    assert [f.request_id for f in replay.finished] == ["r0", "r1"]
    assert all(hand.landing_wait_ns == 0 for hand in replay.hand_offs.values())
    assert_nothing_left(replay)


def test_a_decode_worker_alone_gets_prompts_after_the_time_of_a_forward() -> None:
    replay = played(workload([(64, 3, 3)]), config(), prefill_workers=0, step_time=StepTime())
    hand = replay.hand_offs["r0"]
    assert hand.ready_ns - hand.landing_ns == 12_240_000
    assert replay.finished[0].generated == 3
    assert_nothing_left(replay)


def test_round_robin_takes_turns_and_least_loaded_looks_at_who_is_busy() -> None:
    shapes = [(64, 40, 40), (64, 1, 1), (64, 40, 40), (64, 1, 1), (64, 40, 40)]
    turns = played(workload(shapes, gap_ns=500_000_000), config(), decode_workers=2)
    assert [turns.hand_offs[f"r{row}"].decode_worker for row in range(5)] == [0, 1, 0, 1, 0]
    busy = played(
        workload([(64, 400, 400), (64, 1, 1), (64, 1, 1)], gap_ns=500_000_000),
        config(),
        decode_workers=2,
        routing="least-loaded",
    )
    assert [busy.hand_offs[f"r{row}"].decode_worker for row in range(3)] == [0, 1, 1]


def test_a_prompt_that_either_end_can_never_hold_is_refused() -> None:
    replay = played(workload([(500, 2, 2), (20, 2, 2)]), config(20), prefill_config=config(100))
    assert [flight.request_id for flight in replay.refused] == ["r0"]
    assert [flight.request_id for flight in replay.finished] == ["r1"]


@pytest.mark.parametrize("role", [Role.P, Role.D])
def test_a_role_has_the_transfer_policies_that_it_needs(role: Role) -> None:
    role_config(config(groups=HYBRID), role).validate()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"routing": "random"}, "routing 'random'"),
        ({"prefill_workers": -1}, "prefill-workers -1"),
        ({"prefill_workers": 0, "decode_workers": 0}, "at least one worker"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        played(workload([(4, 1, 1)]), config(), **options)


def test_two_sides_that_wait_for_each_other_are_a_stall_that_names_both() -> None:
    # r1's 17 pages do not fit beside r0 on the decode worker, which gives room to r2 and r3; their prompts do
    # not fit beside r1's pinned pages on the prefill worker.
    replay = played(
        workload([(80, 40, 40), (256, 4, 4), (64, 4, 4), (64, 4, 4)], gap_ns=0),
        config(20),
    )
    assert replay.ending == "stall"
    assert [flight.request_id for flight in replay.finished] == ["r0"]
    why = {(one.request_id, one.worker): one.why for one in replay.stuck}
    assert why["r1", "prefill 0"] == (
        "its prompt is done; its 17 pages are pinned until decode 0 has room for them"
    )
    assert why["r2", "decode 0"] == "has its pages; its prompt is not done on prefill 0"
    assert "not now" in why["r1", "decode 0"]
    assert "not now" in why["r2", "prefill 0"]


@pytest.mark.parametrize(
    ("field", "value"), [("block_granularity", 8), ("sliding_window_tokens", 41), ("group_id", "other")]
)
def test_pages_that_differ_between_the_two_ends_are_refused(field: str, value: Any) -> None:
    mine = config(groups=HYBRID)
    groups = [replace(group) for group in HYBRID]
    setattr(groups[1], field, value)
    with pytest.raises(ValueError, match="both need the same"):
        played(workload([(40, 2, 2)]), mine, prefill_config=config(groups=groups))
