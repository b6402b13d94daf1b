"""Tensor, pipeline and data parallelism."""

import pytest

from kvplan.recipes import RecipeError, plan_memory
from kvplan.recipes.ranks import stage_layers


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1), (32, 1)])
def test_kv_heads_are_divided_but_a_rank_has_one_at_least(tp: int, heads: int) -> None:
    plan = plan_memory("llama-3.1-8b", tp=tp, max_context_len=4096)
    assert plan.bytes_per_token == 32 * 2 * heads * 128 * 2


def test_a_gated_delta_net_is_divided_by_heads() -> None:
    plan = plan_memory("qwen3-next-80b-a3b", tp=4, max_context_len=4096)
    assert plan.state_bytes_per_snapshot == 36 * (8 * 128 * 128 * 4 + (2 * 4 * 128 + 8 * 128) * 3 * 2)
    assert plan.bytes_per_token == 12 * 2 * 1 * 256 * 2  # two KV heads on four ranks: one each


def test_kimi_delta_attention_is_divided_and_its_latent_is_not() -> None:
    plan = plan_memory("kimi-linear-48b-a3b", tp=8, max_context_len=4096)
    assert plan.state_bytes_per_snapshot == 20 * (4 * 128 * 128 * 4 + 3 * 4 * 128 * 3 * 2)
    assert plan.bytes_per_token == 7 * 576 * 2


def test_a_group_of_mamba_2_is_whole_on_every_rank_that_has_a_part_of_it() -> None:
    # Bamba has one group for all heads, Nemotron-H eight.
    bamba = plan_memory("bamba-9b", tp=4, max_context_len=4096)
    assert bamba.state_bytes_per_snapshot == 29 * (32 * 64 * 128 * 4 + (32 * 64 + 2 * 128) * 3 * 2)
    nemotron = plan_memory("nemotron-h-8b", tp=4, max_context_len=4096)
    assert nemotron.state_bytes_per_snapshot == 24 * (32 * 64 * 128 * 4 + (32 * 64 + 2 * 2 * 128) * 3 * 2)


def test_mamba_1_is_divided_by_channels() -> None:
    plan = plan_memory("jamba-v0.1", tp=4, max_context_len=4096)
    assert plan.state_bytes_per_snapshot == 28 * (2048 * 16 * 4 + 2048 * 3 * 2)


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (
            "qwen2.5-7b",
            {"tp": 8},
            "28 query heads cannot be divided over 8 ranks; tp / dp must be one of 1, 2, 4, 7",
        ),
        (
            "qwen3-next-80b-a3b",
            {"tp": 32},
            "16 groups of the recurrent state cannot be divided over 32 ranks",
        ),
        ("llama-3.1-8b", {"tp": 0}, "tp is 0; an integer of at least 1 is needed"),
        ("llama-3.1-8b", {"tp": 4, "dp": 3}, r"dp is 3; it must divide tp \(4\)"),
        ("llama-3.1-8b", {"pp": 33}, "pp is 33; the model has 32 layers"),
        ("llama-3.1-8b", {"pp": 2, "pp_layers": (20, 13)}, "pp_layers is 20,13; 2 counts"),
        ("llama-3.1-8b", {"pp": 2, "pp_layers": (32, 0)}, "pp_layers is 32,0; 2 counts"),
    ],
)
def test_what_does_not_divide_is_refused(model: str, options: dict[str, int], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        plan_memory(model, max_context_len=4096, **options)  # type: ignore[arg-type]


def test_layers_are_split_evenly_and_the_last_stage_gets_no_more_than_the_others() -> None:
    assert [len(stage) for stage in stage_layers(32, 4)] == [8, 8, 8, 8]
    assert [len(stage) for stage in stage_layers(61, 4)] == [15, 15, 16, 15]
    assert [len(stage) for stage in stage_layers(62, 4)] == [15, 16, 16, 15]
    assert stage_layers(10, 1) == (range(10),)


def test_stages_add_up_to_the_model_and_draft_layers_are_in_the_last() -> None:
    plan = plan_memory("deepseek-v3", pp=4, width=2, max_context_len=4096)
    assert [stage.bytes_per_token // 1152 for stage in plan.stages] == [15, 15, 16, 16]
    assert plan.bytes_per_token == 62 * 1152


def test_stages_of_a_hybrid_share_one_layout_of_pages() -> None:
    plan = plan_memory("qwen3-next-80b-a3b", pp=4, cache_gib=10, max_context_len=4096)
    for stage in plan.stages:
        assert [one.pages_per_block for one in stage.groups] == list(plan.packing.pages_per_block)
        assert [len(one.group.layers) for one in stage.groups] == [3, 3, 3, 3]
    assert plan.usable_blocks == min(stage.usable_blocks or 0 for stage in plan.stages)


def test_data_parallel_attention_divides_the_batch_and_not_the_cache() -> None:
    plan = plan_memory("deepseek-v3", tp=8, dp=8, max_num_seqs=100, max_context_len=4096)
    assert plan.config.max_batch_size == 13  # 100 requests over 8 replicas
    assert plan.bytes_per_token == 61 * 1152
    grouped = plan_memory("llama-3.1-70b", tp=8, dp=4, max_num_seqs=100, max_context_len=4096)
    assert grouped.bytes_per_token == 80 * 2 * 4 * 128 * 2  # heads over the 2 GPUs of a replica
