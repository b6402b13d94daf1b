"""Layers → groups → LCM blocks."""

import pytest

from kvplan.recipes import Attention, Latent, MemoryPlan, Mixer, RecipeError, plan_memory
from kvplan.recipes.cache_fields import cache_fields
from kvplan.recipes.dtypes import cache_dtype
from tests.recipes.small import attention, model, state


def planned(*mixers: Mixer, **options: object) -> MemoryPlan:
    return plan_memory(model(*mixers), **({"max_context_len": 4096, "padding_limit": 0.99} | options))  # type: ignore[arg-type]


def grouped(plan: MemoryPlan) -> dict[str, tuple[int, ...]]:
    return {one.group.group_id: one.group.layers for one in plan.stage.groups}


def test_layers_alike_share_a_group_and_others_do_not() -> None:
    plan = planned(
        attention(window=64),
        attention(),
        attention(window=128),
        attention(),
        attention(window=64),
        attention(4),
    )
    assert grouped(plan) == {
        "full_attention": (1, 3),
        "full_attention_2": (5,),
        "sliding_64": (0, 4),
        "sliding_128": (2,),
    }


def test_state_layers_split_into_as_many_groups_as_pair_with_attention_slot_by_slot() -> None:
    layers: list[Mixer] = [state(), state(), state(), attention()] * 2
    assert grouped(planned(*layers)) == {
        "full_attention": (3, 7),
        "linear_0": (0, 4),
        "linear_1": (1, 5),
        "linear_2": (2, 6),
    }


def test_states_that_do_not_divide_leave_a_slot_free_in_the_last_groups() -> None:
    plan = plan_memory("kimi-linear-48b-a3b", max_context_len=4096)
    assert [len(layers) for layers in grouped(plan).values()] == [7, 7, 7, 6]


def test_states_alone_are_one_group() -> None:
    assert grouped(planned(state(), state(), state())) == {"linear": (0, 1, 2)}


def test_a_layer_with_both_is_in_both_groups() -> None:
    plan = plan_memory("falcon-h1-7b", max_context_len=4096)
    assert grouped(plan) == {"full_attention": tuple(range(44)), "mamba": tuple(range(44))}


def test_draft_layers_join_the_group_of_their_kind() -> None:
    without = plan_memory("deepseek-v3", max_context_len=4096)
    assert without.bytes_per_token == 61 * 1152
    drafting = plan_memory("deepseek-v3", width=2, max_context_len=4096)
    assert grouped(drafting) == {"full_attention": tuple(range(62))}
    assert drafting.bytes_per_token == 62 * 1152
    both = plan_memory("qwen3.5-397b-a17b", width=4, max_context_len=4096)
    assert len(grouped(both)["full_attention"]) == 16


def test_draft_layers_are_refused_where_the_model_has_none() -> None:
    with pytest.raises(RecipeError, match="draft_layers is 1; llama has no draft layers"):
        plan_memory("llama-3.1-8b", draft_layers=1, max_context_len=4096)


@pytest.mark.parametrize(
    ("dtype", "token"),
    [
        ("bf16", 2 * 8 * 128 * 2),
        ("fp16", 2 * 8 * 128 * 2),
        ("fp8", 2 * 8 * 128),
        ("fp8_e4m3", 2 * 8 * 128),
        ("fp8_e5m2", 2 * 8 * 128),
        ("int8", 2 * 8 * 128),
        # One byte of scale for 32 elements.
        ("mxfp8", 2 * 8 * (128 + 128 // 32)),
    ],
)
def test_bytes_a_token_by_cache_dtype(dtype: str, token: int) -> None:
    plan = plan_memory("llama-3.1-8b", kv_dtype=dtype, max_context_len=4096)
    assert plan.bytes_per_token == 32 * token


def test_scales_are_fields_of_their_own() -> None:
    fields = cache_fields(Attention(8, 2, 64), cache_dtype("mxfp8"), "fp32", "bf16")
    assert [(f.name, f.shape, f.dtype) for f in fields] == [
        ("keys", (2, 64), "fp8_e4m3"),
        ("keys_scales", (2, 2), "e8m0"),
        ("values", (2, 64), "fp8_e4m3"),
        ("values_scales", (2, 2), "e8m0"),
    ]


def test_index_keys_keep_their_own_type() -> None:
    fields = cache_fields(Latent(8, 512, 64, 128), cache_dtype("bf16"), "fp32", "bf16")
    assert [(f.name, f.shape, f.dtype, f.bytes) for f in fields] == [
        ("latent", (512,), "bf16", 1024),
        ("rotary_key", (64,), "bf16", 128),
        ("index_keys", (128,), "fp8_e4m3", 128),
        ("index_scales", (1,), "fp32", 4),
    ]


def test_a_state_has_a_type_of_its_own() -> None:
    wide = plan_memory("qwen3-next-80b-a3b", max_context_len=4096, kv_dtype="fp8")
    narrow = plan_memory("qwen3-next-80b-a3b", max_context_len=4096, kv_dtype="fp8", state_dtype="bf16")
    conv = 8192 * 3 * 2
    assert wide.state_bytes_per_snapshot == 36 * (2**21 + conv)
    assert narrow.state_bytes_per_snapshot == 36 * (2**20 + conv)
    assert wide.bytes_per_token == narrow.bytes_per_token == 12 * 2 * 2 * 256


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kv_dtype": "fp4"}, "kv_dtype is 'fp4'; one of bf16, fp16, fp8_e4m3"),
        ({"state_dtype": "fp8"}, "state_dtype is 'fp8'; one of fp32, bf16, fp16"),
        ({"page_tokens": 0}, "page_tokens is 0; at least 1 is needed"),
        (
            {"page_tokens": 64, "prefix_tokens": 96},
            "prefix_tokens is 96; it must be a multiple of page_tokens",
        ),
        ({"max_num_seqs": 0}, "max_num_seqs is 0; at least 1 is needed"),
        ({"max_context_len": -1}, "max_context_len is -1; at least 1 is needed"),
        (
            {"max_context_len": 100, "max_total_tokens": 10, "max_num_seqs": 1},
            "max_total_tokens is 10, below",
        ),
        ({"width": 0}, "width is 0; at least 1 is needed"),
        ({"overlap": 2}, "overlap_schedule_depth is 2; 0 or 1 is needed"),
        ({"role": "X"}, "role is 'X'; one of P, D, Fused"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], said: str) -> None:
    with pytest.raises(RecipeError, match=said.replace("(", r"\(")):
        planned(attention(), **options)


def test_mxfp8_that_does_not_divide_a_head_is_refused() -> None:
    with pytest.raises(RecipeError, match="does not divide the 80 of keys"):
        planned(attention(head_dim=80), kv_dtype="mxfp8")


def test_a_model_that_states_no_dtype_needs_one() -> None:
    with pytest.raises(RecipeError, match="torch_dtype is missing; give it there, or kv_dtype"):
        plan_memory(model(attention(), dtype=None), max_context_len=64)


def test_full_pages_lie_behind_each_other_in_a_plane_that_a_state_fills() -> None:
    # 12 planes of a state and its convolution; a page of 64 tokens has 131,072 bytes a layer, so 16 fit.
    plan = plan_memory("qwen3-next-80b-a3b", max_context_len=4096)
    state_bytes = 32 * 128 * 128 * 4 + 8192 * 3 * 2
    assert (plan.packing.planes, plan.packing.plane_bytes) == (12, state_bytes)
    assert (
        [one.pages_per_block for one in plan.stage.groups]
        == [state_bytes // 131_072, 1, 1, 1]
        == [16, 1, 1, 1]
    )
    assert plan.stage.block_bytes == 12 * state_bytes == 25_755_648
    assert [one.padding_bytes for one in plan.stage.groups] == [12 * (state_bytes - 16 * 131_072), 0, 0, 0]


def test_pages_of_fewer_layers_stand_side_by_side_in_the_planes_of_more() -> None:
    # 52 sliding layers, 10 full ones of the same bytes: five full pages beside each other, two planes left.
    plan = plan_memory("gemma-3-27b", max_context_len=8192)
    page = 64 * 2 * 16 * 128 * 2
    assert (plan.packing.planes, plan.packing.plane_bytes) == (52, page)
    by_name = {one.group.group_id: (one.pages_per_block, one.padding_bytes) for one in plan.stage.groups}
    assert by_name == {"full_attention": (5, 2 * page), "sliding_1024": (1, 0)}


def test_a_larger_block_is_taken_where_a_small_one_pads_too_much() -> None:
    # A state of 2.19 pages: 2 in one state's place lose 8.6 %; 9 pages in the place of 4 states lose 2.8 %.
    plan = plan_memory("jamba-v0.1", max_context_len=4096)
    assert [one.pages_per_block for one in plan.stage.groups] == [9] + [4] * 7
    assert plan.stage.block_bytes == 4 * 9 * 64 * 2 * 8 * 128 * 2


def test_a_layers_part_of_a_page_is_aligned() -> None:
    plan = planned(attention(1, 33), page_tokens=1)
    assert plan.stage.block_bytes == 256 == -(-2 * 33 * 2 // 256) * 256
    assert planned(attention(1, 33), page_tokens=1, alignment=4).stage.block_bytes == 132


def test_padding_above_the_limit_is_refused() -> None:
    layers: list[Mixer] = [attention(1, 64), state(heads=3, key=64, value=64)]
    with pytest.raises(RecipeError, match="above padding_limit"):
        planned(*layers, padding_limit=0.0001)


def test_pages_of_every_group_fit_their_block() -> None:
    for name in ("gemma-3-27b", "jamba-v0.1", "kimi-linear-48b-a3b", "nemotron-h-8b", "bamba-9b"):
        plan = plan_memory(name, max_context_len=8192)
        used = [one.page_bytes * one.pages_per_block for one in plan.stage.groups]
        assert max(used) == plan.stage.block_bytes
        assert [plan.stage.block_bytes - size for size in used] == [
            one.padding_bytes for one in plan.stage.groups
        ]


def test_chunked_attention_is_full_within_its_chunk_and_refused_beyond() -> None:
    within = plan_memory("llama-4-scout", max_context_len=8192)
    assert grouped(within) == {"full_attention": tuple(range(48))}
    with pytest.raises(RecipeError, match=r"chunks of 8192 tokens.*a sliding window of 8192 holds at least"):
        plan_memory("llama-4-scout", max_context_len=8193)
