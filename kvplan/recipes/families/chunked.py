"""Llama 4: attention within chunks of the context, and full attention in every fourth layer."""

from __future__ import annotations

from dataclasses import replace

from kvplan.recipes import parameters
from kvplan.recipes.families.built import FULL, Built, FeedForward, attention_heads, layer_kinds, num_layers
from kvplan.recipes.fields import Fields
from kvplan.recipes.model import Layer, Weight

CHUNKED = "chunked_attention"


def read_llama4(fields: Fields) -> Built:
    """Chunked where rotary positions are used, full where not (no_rope_layers: 0)."""
    count = num_layers(fields)
    hidden = fields.count("hidden_size")
    heads = attention_heads(fields)
    interval = fields.count("no_rope_layer_interval")
    rotary = fields.get("no_rope_layers") or [(at + 1) % interval for at in range(count)]
    if not isinstance(rotary, list) or len(rotary) != count:
        raise fields.wrong("no_rope_layers", f"a list with 0 or 1 for each of {count} layers is needed")
    chunk = fields.optional_count("attention_chunk_size")
    kinds = layer_kinds(fields, count, (FULL, CHUNKED), lambda at: CHUNKED if rotary[at] else FULL)
    step = fields.count("interleave_moe_layer_step")
    with_experts = fields.indices("moe_layers", 0, count)
    network = FeedForward(fields, lambda _: True)
    layers = []
    for at, kind in enumerate(kinds):
        mixer = replace(heads, chunk=chunk if kind == CHUNKED else None)
        has_experts = (at + 1) % step == 0 if with_experts is None else at in with_experts
        weights = (
            _experts(fields, hidden)
            if has_experts
            else (parameters.dense(hidden, fields.count("intermediate_size_mlp")),)
        )
        layers.append(
            Layer((mixer,), (*parameters.attention(hidden, mixer), *weights, parameters.norms(hidden)))
        )
    return Built(tuple(layers), network.widest(count))


def _experts(fields: Fields, hidden: int) -> tuple[Weight, ...]:
    width = fields.count("intermediate_size")  # of a routed expert, and of the one for every token
    return parameters.experts(hidden, width, fields.count("num_local_experts"), width)
