"""A config.json, read: where it is found, what it may say, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.recipes import Attention, Latent, RecipeError, read_model
from kvplan.recipes.config_file import BUNDLED
from tests.recipes.small import LLAMA, written


def bundled(name: str) -> dict[str, Any]:
    return dict(json.loads((BUNDLED / f"{name}.json").read_text()))


def refusal(path: Path | str) -> str:
    with pytest.raises(RecipeError) as caught:
        read_model(path)
    return str(caught.value)


def test_a_file_its_folder_and_a_bundled_name_read_alike(tmp_path: Path) -> None:
    file = written(tmp_path, bundled("qwen3-8b"))
    layers = read_model("qwen3-8b").layers
    assert read_model(file).layers == read_model(tmp_path).layers == layers
    assert read_model(tmp_path).name == tmp_path.name


def test_the_beginning_of_a_bundled_name_will_do_if_it_is_the_only_one() -> None:
    assert read_model("qwen3-next").name == "qwen3-next-80b-a3b"
    assert "does not exist" in refusal("llama-3.1")


def test_a_text_config_inside_is_the_model(tmp_path: Path) -> None:
    inner = bundled("qwen3-8b")
    dtype = inner.pop("torch_dtype")
    file = written(tmp_path, {"model_type": "some_vl", "torch_dtype": dtype, "text_config": inner})
    model = read_model(file)
    assert (len(model.layers), model.dtype) == (36, "bf16")


def test_architectures_stand_in_for_a_missing_model_type(tmp_path: Path) -> None:
    assert read_model(written(tmp_path, LLAMA, model_type=None)).family == "llama"
    assert read_model(written(tmp_path, bundled("qwen3-8b"), model_type=None)).family == "qwen3"
    assert read_model(written(tmp_path, bundled("deepseek-v3"), model_type=None)).family == "deepseek_v3"


def test_a_hidden_pattern_overrules_the_default(tmp_path: Path) -> None:
    file = written(tmp_path, bundled("command-r7b"), sliding_window_pattern=None, _sliding_window_pattern=2)
    windows = [mixer.window for layer in read_model(file).layers for mixer in layer.mixers]  # type: ignore[union-attr]
    assert windows == [4096, None] * 16


def test_expert_blocks_of_nemotron_keep_nothing_and_weigh(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        bundled("nemotron-h-8b"),
        num_hidden_layers=4,
        hybrid_override_pattern="ME*E",
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        moe_intermediate_size=1024,
        moe_shared_expert_intermediate_size=2048,
    )
    layers = read_model(file).layers
    assert [len(layer.mixers) for layer in layers] == [1, 0, 1, 0]
    # Two matrices an expert, eight of 1,024 and one of 2,048 for every token, the router, a norm.
    expected = 2 * 4096 * (8 * 1024 + 2048) + 4096 * 8 + 4096
    assert sum(weight.parameters for weight in layers[1].weights) == expected


def test_head_dim_comes_from_the_hidden_size_only_where_it_is_not_given(tmp_path: Path) -> None:
    (mixer,) = read_model(written(tmp_path, LLAMA)).layers[0].mixers
    assert mixer == Attention(32, 8, 128)
    (mixer,) = read_model(written(tmp_path, LLAMA, head_dim=96)).layers[0].mixers
    assert mixer == Attention(32, 8, 96)


def test_a_documented_default_fills_what_published_files_leave_out(tmp_path: Path) -> None:
    # Gemma 3 4B publishes no heads at all.
    inner = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    model = read_model(written(tmp_path, {"model_type": "gemma3", "text_config": inner}))
    assert model.layers[0].mixers == (Attention(8, 4, 256, window=1024),)
    assert model.layers[5].mixers == (Attention(8, 4, 256),)


def test_mistral_with_a_null_window_has_none(tmp_path: Path) -> None:
    values = bundled("mistral-7b-v0.1") | {"sliding_window": None}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    assert read_model(path).layers[0].mixers == (Attention(32, 8, 128),)


def test_qwen_uses_its_window_only_when_told_and_only_from_max_window_layers_on(tmp_path: Path) -> None:
    file = written(tmp_path, bundled("qwen2.5-7b"), use_sliding_window=True, max_window_layers=20)
    windows = [mixer.window for layer in read_model(file).layers for mixer in layer.mixers]  # type: ignore[union-attr]
    assert windows == [None] * 20 + [131_072] * 8


def test_layer_types_overrule_the_pattern(tmp_path: Path) -> None:
    kinds = ["full_attention"] * 31 + ["sliding_attention"]
    file = written(tmp_path, bundled("command-r7b"), layer_types=kinds)
    windows = [mixer.window for layer in read_model(file).layers for mixer in layer.mixers]  # type: ignore[union-attr]
    assert windows == [None] * 31 + [4096]


def test_an_indexer_adds_its_key_to_the_latent() -> None:
    assert read_model("deepseek-v3").layers[0].mixers == (Latent(128, 512, 64),)
    assert read_model("deepseek-v3.2").layers[0].mixers == (Latent(128, 512, 64, 128),)


def test_an_unknown_architecture_is_refused_by_name_with_the_way_out(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, LLAMA, model_type="llamas", architectures=["LlamasForCausalLM"]))
    assert "model_type 'llamas' (LlamasForCausalLM) is not an architecture kvplan knows" in said
    assert "llama is known, and not taken for it" in said
    assert "[[cache_groups]]" in said


@pytest.mark.parametrize(
    ("model", "field"),
    [
        ("llama-3.1-8b", "num_hidden_layers"),
        ("llama-3.1-8b", "num_attention_heads"),
        ("llama-3.1-8b", "hidden_size"),
        ("llama-3.1-8b", "intermediate_size"),
        ("llama-3.1-8b", "vocab_size"),
        ("qwen3-30b-a3b", "moe_intermediate_size|intermediate_size"),
        ("deepseek-v3", "kv_lora_rank"),
        ("deepseek-v3", "qk_rope_head_dim"),
        ("deepseek-v3.2", "index_head_dim"),
        ("deepseek-v3.2", "index_n_heads"),
        ("kimi-linear-48b-a3b", "linear_attn_config"),
        ("qwen3-next-80b-a3b", "linear_num_value_heads"),
        ("nemotron-h-8b", "hybrid_override_pattern"),
        ("nemotron-h-8b", "ssm_state_size"),
        ("bamba-9b", "attn_layer_indices"),
        ("bamba-9b", "mamba_d_state"),
        ("falcon-h1-7b", "mamba_n_heads"),
        ("command-r7b", "num_hidden_layers"),
    ],
)
def test_a_missing_field_is_named(tmp_path: Path, model: str, field: str) -> None:
    names = field.split("|")
    said = refusal(written(tmp_path, bundled(model), **dict.fromkeys(names)))
    assert f"config.json: {names[0]} is missing" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3; at least 1 is needed"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; at least 1 is needed"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; at most 10,000 is possible"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32'; an integer is needed"),
        ({"num_hidden_layers": True}, "num_hidden_layers is true; an integer is needed"),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5; it must divide num_attention_heads (32)"),
        ({"hidden_size": 4097}, "hidden_size is 4097; it must be divisible by num_attention_heads (32)"),
        ({"kv_lora_rank": 512}, "kv_lora_rank is given, which no llama has"),
        ({"head_dim": 0}, "head_dim is 0; at least 1 is needed"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_right(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    assert said in refusal(written(tmp_path, LLAMA, **changes))


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("gpt-oss-20b", {"sliding_window": 0}, "sliding_window is 0; at least 1 is needed"),
        (
            "gpt-oss-20b",
            {"layer_types": ["full_attention"]},
            "layer_types has 1 entries; num_hidden_layers is 24",
        ),
        ("gpt-oss-20b", {"layer_types": ["mamba"] * 24}, "layer_types has 'mamba'"),
        ("gpt-oss-20b", {"layer_types": "full"}, "layer_types is 'full'; a list"),
        (
            "bamba-9b",
            {"attn_layer_indices": [3, 32]},
            "attn_layer_indices names layer 32; layers are 0 to 31",
        ),
        ("bamba-9b", {"attn_layer_indices": [3, 3]}, "no layer may be named twice"),
        ("bamba-9b", {"mamba_n_heads": 100}, "mamba_n_heads is 100; it must divide"),
        ("bamba-9b", {"mamba_n_groups": 3}, "mamba_n_groups is 3; it must divide the 128 heads"),
        ("nemotron-h-8b", {"hybrid_override_pattern": "M*-X"}, "M, *, - or E for each of 52 layers"),
        ("qwen3-next-80b-a3b", {"linear_num_key_heads": 5}, "linear_num_key_heads is 5; it must divide"),
        ("deepseek-v3.2", {"index_head_dim": 100}, "index_head_dim is 100; a multiple of 128 is needed"),
        ("qwen2.5-7b", {"use_sliding_window": 1}, "use_sliding_window is 1; true or false is needed"),
        ("gemma-3-27b", {"text_config": "x"}, 'text_config is "x"; an object is needed'),
        ("gemma-3-27b", {"text_config": None}, "num_hidden_layers is missing"),
        ("nemotron-h-8b", {"mamba_ssm_dtype": "fp64"}, "mamba_ssm_dtype is 'fp64'; one of fp32, bf16, fp16"),
        ("qwen3-8b", {"tie_word_embeddings": "x"}, "tie_word_embeddings is 'x'; true or false is needed"),
    ],
)
def test_a_wrong_shape_is_refused(tmp_path: Path, model: str, changes: dict[str, Any], said: str) -> None:
    assert said in refusal(written(tmp_path, bundled(model), **changes))


def test_a_layer_that_is_in_neither_list_of_kimi_linear_is_refused(tmp_path: Path) -> None:
    values = bundled("kimi-linear-48b-a3b")
    values["linear_attn_config"]["kda_layers"].remove(9)
    assert "do not name each of 27 layers once" in refusal(written(tmp_path, values))


def test_what_is_no_json_object_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    assert refusal(path).startswith(
        f"model '{path}' does not exist; a config.json, the folder it is in, or a bundled name is needed ("
    )
    assert refusal(tmp_path) == f"{path} does not exist; a model's config.json is needed"
    path.write_text('{\n  "model_type": llama\n}')
    assert refusal(path).startswith(f"{path}, line 2, column 17: not JSON")
    for text in ("[]", "{}", "3", "null"):
        path.write_text(text)
        assert refusal(path) == f"{path} holds no JSON object; a model's config.json is needed"
    path.write_bytes(b"\xff\xfe{")
    assert "is not UTF-8 text" in refusal(path)
    path.write_text("[" * 100_000)
    assert "JSON" in refusal(path)
    path.write_text('{"hidden_size": 4}')
    assert "model_type is missing, and so is architectures" in refusal(path)


@pytest.mark.parametrize("name", ["", "no/such/model", "x\0y", "qwen3-nextt"])
def test_a_name_that_is_nothing_is_refused(name: str) -> None:
    assert "\n" not in refusal(name)


def test_the_nearest_bundled_name_is_told() -> None:
    assert refusal("qwen3-8bb").endswith("(qwen3-8b is the nearest bundled name, bundled_models lists all)")
    assert refusal("zzzz").endswith("a bundled name is needed (bundled_models lists all)")
    assert refusal("llama-3").endswith(
        "(llama-3.1-70b, llama-3.1-8b begin like that, bundled_models lists all)"
    )


def test_no_model_is_not_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, bundled("qwen3-8b"))
    monkeypatch.chdir(tmp_path)
    assert refusal("").startswith("model is ''; a config.json, the folder it is in, or a bundled name")
    assert read_model(".").family == "qwen3"


def test_a_snapshot_in_the_hubs_cache_has_the_models_name(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Qwen--Qwen3-8B" / "snapshots" / "b968826d9c46dd6066d109eabc6255188de91218"
    snapshot.mkdir(parents=True)
    (tmp_path / "blob").write_text(json.dumps(bundled("qwen3-8b")))
    (snapshot / "config.json").symlink_to(tmp_path / "blob")
    assert read_model(snapshot).name == "Qwen/Qwen3-8B"
    assert read_model(snapshot / "config.json").name == "Qwen/Qwen3-8B"
