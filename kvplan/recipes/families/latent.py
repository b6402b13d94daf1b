"""Multi-head latent attention: DeepSeek V2, V3 and V3.2, Kimi K2."""

from __future__ import annotations

from kvplan.recipes import parameters
from kvplan.recipes.families.built import Built, FeedForward, num_layers
from kvplan.recipes.fields import Fields
from kvplan.recipes.mixers import Latent
from kvplan.recipes.model import Layer, Part, Shard, Weight

INDEX_SCALE_BLOCK = 128  # elements of an index key that share a scale, in DeepSeek's own implementation


def read_deepseek(fields: Fields) -> Built:
    """A latent in every layer, an index key beside it where the configuration has an indexer."""
    count = num_layers(fields)
    hidden = fields.count("hidden_size")
    mixer, weights = latent_attention(fields)
    network = latent_experts(fields)
    layers = [Layer((mixer,), (*weights, *network.of(at), parameters.norms(hidden))) for at in range(count)]
    # A draft layer is an expert layer behind a matrix that joins the hidden state and the token's embedding.
    joined = Weight(2 * hidden * hidden, Shard.WHOLE, Part.LINEAR)
    draft = Layer((mixer,), (*weights, *network.of(count), joined, parameters.norms(hidden, 4)))
    return Built(
        tuple(layers),
        network.widest(count),
        draft,
        fields.optional_count("num_nextn_predict_layers", least=0, most=count) or 0,
    )


def latent_experts(fields: Fields) -> FeedForward:
    """Experts from layer first_k_dense_replace on, in every moe_layer_freq-th."""
    first = fields.optional_count("first_k_dense_replace", least=0) or 0
    step = fields.optional_count("moe_layer_freq") or 1
    return FeedForward(fields, lambda at: at >= first and at % step == 0)


def latent_attention(fields: Fields) -> tuple[Latent, tuple[Weight, ...]]:
    """Return the latent attention of a layer and its weights."""
    heads, rank = fields.count("num_attention_heads"), fields.count("kv_lora_rank")
    rope, query_rank = fields.count("qk_rope_head_dim"), fields.optional_count("q_lora_rank")
    hidden = fields.count("hidden_size")
    weights = parameters.latent(
        hidden,
        heads,
        rank,
        rope,
        fields.count("qk_nope_head_dim"),
        fields.count("v_head_dim"),
        query_rank,
    )
    index = None
    if any(fields.has(name) for name in ("index_head_dim", "index_n_heads", "index_topk")):
        index = fields.count("index_head_dim")
        if index % INDEX_SCALE_BLOCK:
            raise fields.wrong(
                "index_head_dim",
                f"a multiple of {INDEX_SCALE_BLOCK} is needed, as one scale serves so many elements",
            )
        query_rank = fields.count("q_lora_rank")
        weights += (parameters.indexer(hidden, query_rank, fields.count("index_n_heads"), index),)
    return Latent(heads, rank, rope, index), weights
