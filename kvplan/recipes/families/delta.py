"""Attention beside a delta rule's state: Qwen3-Next and Qwen3.5 (gated delta net), Kimi Linear (KDA)."""

from __future__ import annotations

from kvplan.recipes import parameters
from kvplan.recipes.errors import RecipeError
from kvplan.recipes.families.built import (
    FULL,
    LINEAR,
    Built,
    FeedForward,
    attention_heads,
    delta_net,
    layer_kinds,
    num_layers,
)
from kvplan.recipes.families.latent import latent_attention, latent_experts
from kvplan.recipes.fields import Fields
from kvplan.recipes.mixers import Recurrent
from kvplan.recipes.model import Layer, Part, Shard, Weight


def read_qwen_next(fields: Fields) -> Built:
    """Gated attention in every ``full_attention_interval``-th layer, a gated delta net in the others."""
    count = num_layers(fields)
    hidden = fields.count("hidden_size")
    heads, state = attention_heads(fields), delta_net(fields)
    interval = 0 if fields.has("layer_types") else fields.count("full_attention_interval")
    kinds = layer_kinds(fields, count, (FULL, LINEAR), lambda at: LINEAR if (at + 1) % interval else FULL)
    without = fields.indices("mlp_only_layers", 0, count) or []
    step = fields.optional_count("decoder_sparse_step") or 1
    network = FeedForward(fields, lambda at: at not in without and (at + 1) % step == 0)
    gated = parameters.attention(hidden, heads, gated=True)
    layers = []
    for at, kind in enumerate(kinds):
        mixer = heads if kind == FULL else state
        weights = gated if kind == FULL else parameters.gated_delta_net(hidden, state)
        layers.append(Layer((mixer,), (*weights, *network.of(at), parameters.norms(hidden))))
    joined = Weight(2 * hidden * hidden, Shard.WHOLE, Part.LINEAR)
    draft = Layer((heads,), (*gated, *network.of(count - 1), joined, parameters.norms(hidden, 4)))
    return Built(
        tuple(layers),
        network.widest(count),
        draft,
        fields.optional_count("mtp_num_hidden_layers", "num_nextn_predict_layers", least=0, most=count) or 0,
    )


def read_kimi_linear(fields: Fields) -> Built:
    """Latent attention in full_attn_layers, Kimi delta attention in kda_layers (both count from 1)."""
    count = num_layers(fields)
    hidden = fields.count("hidden_size")
    linear = fields.nested("linear_attn_config")
    attending = linear.indices("full_attn_layers", 1, count + 1)
    if attending is None:
        raise RecipeError(f"{linear.named('full_attn_layers')} is missing; a list of layers is needed")
    recurring = linear.indices("kda_layers", 1, count + 1)
    if recurring is not None and sorted(attending + recurring) != list(range(1, count + 1)):
        raise RecipeError(
            f"{linear.named('kda_layers')} and full_attn_layers do not name each of {count} layers once"
        )
    head_dim = linear.count("head_dim")
    state = Recurrent(
        rule="kimi_delta",
        heads=linear.count("num_heads"),
        head_shape=(head_dim, head_dim),
        head_channels=3 * head_dim,
        groups=0,
        group_channels=0,
        conv_taps=linear.count("short_conv_kernel_size") - 1,
    )
    mixer, attention = latent_attention(fields)
    recurrent = parameters.kimi_delta(hidden, state)
    network = latent_experts(fields)
    layers = [
        Layer((mixer,), (*attention, *network.of(at), parameters.norms(hidden)))
        if at + 1 in attending
        else Layer((state,), (*recurrent, *network.of(at), parameters.norms(hidden)))
        for at in range(count)
    ]
    return Built(tuple(layers), network.widest(count))
