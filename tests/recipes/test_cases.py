"""The cases from the field that are about bytes and pools (S3, S6 to S11), and the issue's own figures."""

import pytest

from kvplan.recipes import Attention, Latent, plan_memory
from tests.recipes.small import GIB, attention, model, state


def test_s3_llama_8b_in_pages_of_16() -> None:
    # 1,478 usable pages of 2 MiB, and the null one.
    plan = plan_memory(
        "llama-3.1-8b", cache_gib=1479 * 2 / 1024, page_tokens=16, max_num_seqs=1, max_context_len=29_000
    )
    assert plan.bytes_per_token == 32 * 2 * 8 * 128 * 2 == 131_072
    assert plan.stage.block_bytes == 16 * 131_072 == 2 * 2**20
    assert plan.usable_blocks == 1_478
    assert plan.longest_request() == 1_478 * 16 == 23_648 == 29_000 - 5_352
    assert -(-29_000 // 16) - 1_478 == 335


def test_s3_1952_pages_serve_20000_token_requests_one_at_a_time_and_half_of_another() -> None:
    plan = plan_memory(
        "llama-3.1-8b", cache_gib=1953 * 2 / 1024, page_tokens=16, max_num_seqs=1, max_context_len=20_000
    )
    assert plan.requests_at_once() == 1
    assert plan.longest_request() == 1_952 * 16
    assert round(1_952 * 16 / 20_000, 2) == 1.56


def test_s6_fp8_halves_a_token() -> None:
    plan = plan_memory("qwen3-30b-a3b", cache_gib=10.55, kv_dtype="fp8", max_context_len=8192)
    assert plan.bytes_per_token == 48 * 2 * 4 * 128 == 49_152
    assert round(221_000 * plan.bytes_per_token / GIB, 2) == 10.12
    assert plan.flat_tokens == int(10.55 * GIB) // 49_152 == 230_468
    wide = plan_memory("qwen3-30b-a3b", cache_gib=10.55, max_context_len=8192)
    assert round(221_000 * wide.bytes_per_token / GIB, 2) == 20.23


def test_s7_head_dim_and_kv_heads_are_the_files_own() -> None:
    plan = plan_memory("qwen2.5-7b", cache_gib=1)
    assert plan.bytes_per_token == 28 * 2 * 4 * 128 * 2 == 57_344
    assert 3_072 * plan.bytes_per_token == 168 * 2**20


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_s8_a_latent_is_whole_on_every_rank(tp: int) -> None:
    layers = [Latent(query_heads=32, latent_dim=256, rope_dim=64)] * 36
    plan = plan_memory(model(*layers), cache_gib=23, tp=tp, max_context_len=1_048_576)
    assert plan.bytes_per_token == 36 * (256 + 64) * 2 == 23_040
    assert plan.stage.held_bytes(1, 1_048_576) / GIB == 22.5


def test_s9_sliding_layers_cost_their_window() -> None:
    layers = [Attention(64, 8, 64, window) for window in (128, None)] * 12
    plan = plan_memory(model(*layers), cache_gib=20, max_num_seqs=32, max_context_len=8_192)
    assert round(plan.stage.held_bytes(32, 8_192) / GIB, 2) == 6.09
    assert plan.stage.unwindowed_bytes(32, 8_192) / GIB == 12.0
    # What the engine asks for is in between: whole pages, open pages, and a chunk in flight.
    assert plan.demand is not None
    assert plan.stage.held_bytes(32, 8_192) < plan.demand.bytes < plan.stage.unwindowed_bytes(32, 8_192)


def test_s10_a_window_that_no_context_outgrows_is_the_context() -> None:
    windowed = plan_memory(
        model(*[attention(window=32_768)] * 4), cache_gib=1, max_num_seqs=4, max_context_len=512
    )
    full = plan_memory(model(*[attention()] * 4), cache_gib=1, max_num_seqs=4, max_context_len=512)
    assert windowed.demand == full.demand
    assert [one.group.kind for one in windowed.stage.groups] == ["full"]


def test_s10_a_window_one_token_shorter_than_the_context_is_a_window() -> None:
    plan = plan_memory(model(attention(window=511)), cache_gib=1, max_num_seqs=4, max_context_len=512)
    assert [one.group.group_id for one in plan.stage.groups] == ["sliding_511"]


@pytest.mark.parametrize(("slots", "batch", "at_once"), [(47, 32, 9), (10, 8, 2)])
def test_s11_state_slots_bound_a_batch(slots: int, batch: int, at_once: int) -> None:
    recurrent = model(state())
    # A step of 33 tokens, one more in flight: 2 snapshots behind, and (63 + 66) / 64 → 3 ahead: 5 a request.
    plan = plan_memory(recurrent, cache_gib=1, width=33, overlap=1, max_num_seqs=batch, max_context_len=4_096)
    assert plan.demand is not None
    assert plan.demand.pages == (5 * batch,)
    small = plan_memory(
        recurrent,
        cache_gib=(slots + 1) * plan.stage.block_bytes / GIB,
        width=33,
        overlap=1,
        max_num_seqs=batch,
        max_context_len=4_096,
    )
    assert small.usable_blocks == slots
    assert small.requests_at_once() == at_once == slots // 5
    assert small.demand is not None
    assert small.demand.fits is False
    assert small.binding_group() == ("linear", "state")


def test_llama_70b_takes_40_gib_for_131072_tokens() -> None:
    plan = plan_memory("llama-3.1-70b", cache_gib=41)
    assert plan.bytes_per_token == 80 * 2 * 8 * 128 * 2 == 327_680
    assert plan.stage.held_bytes(1, 131_072) / GIB == 40.0


def test_qwen3_30b_takes_24_gib_for_262144_tokens() -> None:
    plan = plan_memory("qwen3-30b-a3b", cache_gib=25)
    assert plan.bytes_per_token == 48 * 2 * 4 * 128 * 2 == 98_304
    assert plan.stage.held_bytes(1, 262_144) / GIB == 24.0


def test_the_tightest_pipeline_stage_binds() -> None:
    plan = plan_memory(
        "qwen3-30b-a3b",
        pp=2,
        pp_layers=(16, 32),
        cache_gib=(3.18, 12.0),
        page_tokens=16,
        max_num_seqs=1,
        max_context_len=8_192,
    )
    first, second = plan.stages
    assert first.bytes_per_token == 16 * 2 * 4 * 128 * 2 == 32_768
    assert second.bytes_per_token == 65_536
    assert plan.tightest == 0
    assert plan.flat_tokens == int(3.18 * GIB) // 32_768 == 104_202
    assert second.cache_bytes is not None
    assert second.cache_bytes // 65_536 == 196_608
    # Whole pages of 16 tokens, one of them the null page.
    assert plan.longest_request() == (104_202 // 16 - 1) * 16 == 104_176


def test_the_larger_half_binds_where_both_have_as_much() -> None:
    plan = plan_memory("qwen3-30b-a3b", pp=2, pp_layers=(16, 32), cache_gib=3.18, max_context_len=8_192)
    assert plan.tightest == 1
