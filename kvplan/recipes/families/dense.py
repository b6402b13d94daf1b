"""Attention in every layer, some of it within a window: Llama, Mistral, Qwen, Gemma, Cohere, gpt-oss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvplan.recipes import parameters
from kvplan.recipes.families.built import (
    FULL,
    SLIDING,
    Built,
    FeedForward,
    attention_heads,
    layer_kinds,
    num_layers,
)
from kvplan.recipes.fields import Fields
from kvplan.recipes.model import Layer


def read_llama(fields: Fields) -> Built:
    """Full attention in every layer."""
    return _built(fields, lambda _: FULL)


def read_mistral(fields: Fields) -> Built:
    """A window in every layer, unless sliding_window is null."""
    windowed = fields.get("sliding_window") is not None
    return _built(fields, lambda _: SLIDING if windowed else FULL)


def read_mixtral(fields: Fields) -> Built:
    """Experts in every layer; windows as Mistral."""
    windowed = fields.get("sliding_window") is not None
    return _built(fields, lambda _: SLIDING if windowed else FULL, lambda _: True)


def read_qwen(fields: Fields) -> Built:
    """Windows only with use_sliding_window, from layer max_window_layers on; experts every so many layers."""
    windowed = fields.switch("use_sliding_window") and fields.get("sliding_window") is not None
    first = fields.count("max_window_layers", least=0) if windowed and not fields.has("layer_types") else 0
    without = fields.indices("mlp_only_layers", 0, num_layers(fields)) or []
    step = fields.optional_count("decoder_sparse_step") or 1

    def has_experts(layer: int) -> bool:
        return layer not in without and (layer + 1) % step == 0

    return _built(fields, lambda at: SLIDING if windowed and at >= first else FULL, has_experts)


def read_gemma2(fields: Fields) -> Built:
    """A window in every other layer, the first included."""
    return _built(fields, lambda at: FULL if at % 2 else SLIDING)


def read_patterned(fields: Fields) -> Built:
    """A window in all layers but every ``sliding_window_pattern``-th: Gemma 3 and Cohere 2."""
    pattern = fields.count("_sliding_window_pattern", "sliding_window_pattern")  # newer files hide it
    return _built(fields, lambda at: SLIDING if (at + 1) % pattern else FULL)


def read_gpt_oss(fields: Fields) -> Built:
    """A window in every other layer, the first included; experts in every layer."""
    return _built(fields, lambda at: FULL if at % 2 else SLIDING, lambda _: True)


def _built(
    fields: Fields, kind: Callable[[int], str], expert_layers: Callable[[int], bool] = lambda _: False
) -> Built:
    count = num_layers(fields)
    hidden = fields.count("hidden_size")
    heads = attention_heads(fields)
    kinds = layer_kinds(fields, count, (FULL, SLIDING), kind)
    window = fields.count("sliding_window") if SLIDING in kinds else None
    network = FeedForward(fields, expert_layers)
    layers = []
    for at, kind_of in enumerate(kinds):
        mixer = replace(heads, window=window if kind_of == SLIDING else None)
        weights = (*parameters.attention(hidden, mixer), *network.of(at), parameters.norms(hidden))
        layers.append(Layer((mixer,), weights))
    return Built(tuple(layers), network.widest(count))
