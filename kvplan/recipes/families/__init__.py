"""The architectures that are known, by model_type: how each is read, and its own documented defaults.

Defaults are those of the architecture's configuration class where published files leave a field out; an
architecture that is not here is refused, never taken for one that looks like it.
"""

from __future__ import annotations

from typing import Final

from kvplan.recipes.families.built import CHUNKED, LATENT, RECURRENT, Built, Family
from kvplan.recipes.families.chunked import read_llama4
from kvplan.recipes.families.delta import read_kimi_linear, read_qwen_next
from kvplan.recipes.families.dense import (
    read_gemma2,
    read_gpt_oss,
    read_llama,
    read_mistral,
    read_mixtral,
    read_patterned,
    read_qwen,
)
from kvplan.recipes.families.latent import read_deepseek
from kvplan.recipes.families.mamba import read_bamba, read_falcon_h1, read_jamba, read_nemotron

__all__ = ["FAMILIES", "Built", "Family"]

_NOT_PLAIN = LATENT + RECURRENT + CHUNKED
_GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "vocab_size": 262208,
    "tie_word_embeddings": True,
}
_LATENT = {"moe_layer_freq": 1, "first_k_dense_replace": 0}


def _qwen_next(*classes: str) -> Family:
    defaults = {"full_attention_interval": 4, "linear_conv_kernel_dim": 4}
    return Family(read_qwen_next, classes, defaults, LATENT + CHUNKED)


def _deepseek(*classes: str) -> Family:
    return Family(read_deepseek, classes, _LATENT, RECURRENT + CHUNKED)


_QWEN_DENSE = Family(read_qwen, ("Qwen2ForCausalLM",), {}, _NOT_PLAIN)
_QWEN3 = {"head_dim": 128}
_QWEN_MOE = Family(read_qwen, ("Qwen2MoeForCausalLM",), {"decoder_sparse_step": 1}, _NOT_PLAIN)
_GEMMA3_FAMILY = Family(
    read_patterned, ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), _GEMMA3, _NOT_PLAIN
)
_LLAMA4 = Family(
    read_llama4,
    ("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    {"no_rope_layer_interval": 4, "attention_chunk_size": 8192},
    LATENT + RECURRENT,
)

FAMILIES: Final[dict[str, Family]] = {
    "llama": Family(read_llama, ("LlamaForCausalLM",), {}, _NOT_PLAIN),
    "mistral": Family(
        read_mistral, ("MistralForCausalLM",), {"num_key_value_heads": 8, "sliding_window": 4096}, _NOT_PLAIN
    ),
    "mixtral": Family(read_mixtral, ("MixtralForCausalLM",), {"num_key_value_heads": 8}, _NOT_PLAIN),
    "qwen2": _QWEN_DENSE,
    "qwen2_moe": _QWEN_MOE,
    "qwen3": Family(read_qwen, ("Qwen3ForCausalLM",), _QWEN3, _NOT_PLAIN),
    "qwen3_moe": Family(read_qwen, ("Qwen3MoeForCausalLM",), _QWEN3 | {"decoder_sparse_step": 1}, _NOT_PLAIN),
    "gemma2": Family(
        read_gemma2,
        ("Gemma2ForCausalLM",),
        {"head_dim": 256, "sliding_window": 4096, "tie_word_embeddings": True},
        _NOT_PLAIN,
    ),
    "gemma3": _GEMMA3_FAMILY,
    "gemma3_text": _GEMMA3_FAMILY,
    "cohere2": Family(
        read_patterned,
        ("Cohere2ForCausalLM",),
        {"sliding_window": 4096, "sliding_window_pattern": 4, "tie_word_embeddings": True},
        _NOT_PLAIN,
    ),
    "gpt_oss": Family(
        read_gpt_oss, ("GptOssForCausalLM",), {"head_dim": 64, "sliding_window": 128}, _NOT_PLAIN
    ),
    "deepseek_v2": _deepseek("DeepseekV2ForCausalLM"),
    "deepseek_v3": _deepseek("DeepseekV3ForCausalLM"),
    "deepseek_v32": _deepseek("DeepseekV32ForCausalLM"),
    "kimi_k2": _deepseek("KimiK2ForCausalLM"),
    "kimi_linear": Family(read_kimi_linear, ("KimiLinearForCausalLM",), _LATENT, CHUNKED),
    "qwen3_next": _qwen_next("Qwen3NextForCausalLM"),
    "qwen3_5": _qwen_next("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    "qwen3_5_text": _qwen_next(),
    "qwen3_5_moe": _qwen_next("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    "qwen3_5_moe_text": _qwen_next(),
    "nemotron_h": Family(read_nemotron, ("NemotronHForCausalLM",), {}, LATENT + CHUNKED),
    "bamba": Family(
        read_bamba, ("BambaForCausalLM",), {"mamba_expand": 2, "mamba_d_conv": 4, "mamba_n_groups": 1}, LATENT
    ),
    "falcon_h1": Family(
        read_falcon_h1, ("FalconH1ForCausalLM",), {"mamba_expand": 2, "mamba_d_conv": 4}, LATENT
    ),
    "jamba": Family(
        read_jamba,
        ("JambaForCausalLM",),
        {
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_dt_rank": "auto",
        },
        LATENT,
    ),
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
}
