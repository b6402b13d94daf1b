"""Attention beside a state space model: Nemotron-H, Bamba, Falcon-H1 (Mamba 2) and Jamba (Mamba)."""

from __future__ import annotations

from typing import Final

from kvplan.recipes import parameters
from kvplan.recipes.errors import RecipeError
from kvplan.recipes.families.built import Built, FeedForward, attention_heads, num_layers
from kvplan.recipes.fields import Fields
from kvplan.recipes.mixers import Mixer, Recurrent
from kvplan.recipes.model import Layer, Weight

MAMBA, ATTENTION, DENSE, EXPERTS = "M", "*", "-", "E"


def read_nemotron(fields: Fields) -> Built:
    """One block a layer, by hybrid_override_pattern: M Mamba 2, * attention, - a network, E experts."""
    count = num_layers(fields)
    hidden = fields.count("hidden_size")
    pattern = fields.text("hybrid_override_pattern")
    if pattern is None:
        raise RecipeError(
            f"{fields.named('hybrid_override_pattern')} is missing; every nemotron_h configuration gives it"
        )
    if len(pattern) != count or set(pattern) - {MAMBA, ATTENTION, DENSE, EXPERTS}:
        raise fields.wrong(
            "hybrid_override_pattern",
            f"M, *, - or E for each of {count} layers (num_hidden_layers) is needed",
        )
    heads = attention_heads(fields, "attention_head_dim")
    state = _mamba2(
        fields,
        heads=fields.count("mamba_num_heads"),
        head_dim=fields.count("mamba_head_dim"),
        state=fields.count("ssm_state_size"),
        groups=fields.count("n_groups"),
        kernel=fields.count("conv_kernel"),
    )
    blocks: Final[dict[str, tuple[tuple[Mixer, ...], tuple[Weight, ...]]]] = {}
    widths = [0]
    if MAMBA in pattern:
        blocks[MAMBA] = ((state,), parameters.mamba2(hidden, state))
    if ATTENTION in pattern:
        blocks[ATTENTION] = ((heads,), parameters.attention(hidden, heads))
    if DENSE in pattern:
        width = fields.count("intermediate_size")
        blocks[DENSE] = ((), (parameters.dense(hidden, width, gated=False),))
        widths.append(width)
    if EXPERTS in pattern:
        width, chosen = fields.count("moe_intermediate_size"), fields.count("num_experts_per_tok")
        shared = fields.optional_count("moe_shared_expert_intermediate_size", least=0) or 0
        shared *= fields.count("n_shared_experts") if shared else 0
        routed = parameters.experts(hidden, width, fields.count("n_routed_experts"), shared, gated=False)
        blocks[EXPERTS] = ((), routed)
        widths.append(chosen * width + shared)
    layers = []
    for symbol in pattern:
        mixers, weights = blocks[symbol]
        layers.append(Layer(mixers, (*weights, parameters.norms(hidden, 1))))
    return Built(tuple(layers), max(*widths, _inner(state)))


def read_bamba(fields: Fields) -> Built:
    """Attention in attn_layer_indices, Mamba 2 in the others, a network in all."""
    count = num_layers(fields)
    hidden = fields.count("hidden_size")
    attending = fields.indices("attn_layer_indices", 0, count)
    if attending is None:
        raise RecipeError(f"{fields.named('attn_layer_indices')} is missing; a list of layers is needed")
    heads = attention_heads(fields)
    state = _mamba2_of_size(fields, fields.count("mamba_expand") * hidden)
    network = FeedForward(fields, lambda _: False)
    layers = []
    for at in range(count):
        weights = parameters.attention(hidden, heads) if at in attending else parameters.mamba2(hidden, state)
        mixer: Mixer = heads if at in attending else state
        layers.append(Layer((mixer,), (*weights, *network.of(at), parameters.norms(hidden))))
    return Built(tuple(layers), max(network.widest(count), _inner(state)))


def read_falcon_h1(fields: Fields) -> Built:
    """Attention and Mamba 2 side by side in every layer."""
    count = num_layers(fields)
    hidden = fields.count("hidden_size")
    heads = attention_heads(fields)
    inner = fields.optional_count("mamba_d_ssm") or fields.count("mamba_expand") * hidden
    state = _mamba2_of_size(fields, inner)
    network = FeedForward(fields, lambda _: False)
    weights = (*parameters.attention(hidden, heads), *parameters.mamba2(hidden, state))
    layers = [
        Layer((heads, state), (*weights, *network.of(at), parameters.norms(hidden))) for at in range(count)
    ]
    return Built(tuple(layers), max(network.widest(count), _inner(state)))


def read_jamba(fields: Fields) -> Built:
    """Attention every attn_layer_period layers, Mamba in the others; experts every expert_layer_period."""
    count = num_layers(fields)
    hidden = fields.count("hidden_size")
    period, offset = fields.count("attn_layer_period"), fields.count("attn_layer_offset", least=0)
    expert_period = fields.count("expert_layer_period")
    expert_offset = fields.count("expert_layer_offset", least=0)
    heads = attention_heads(fields)
    inner = fields.count("mamba_expand") * hidden
    state = Recurrent(
        rule="mamba1",
        heads=inner,
        head_shape=(fields.count("mamba_d_state"),),
        head_channels=1,
        groups=0,
        group_channels=0,
        conv_taps=fields.count("mamba_d_conv") - 1,
    )
    # "auto" is a sixteenth of the hidden size, rounded up.
    rank = -(-hidden // 16) if fields.get("mamba_dt_rank") == "auto" else fields.count("mamba_dt_rank")
    network = FeedForward(fields, lambda at: at % expert_period == expert_offset)
    layers = []
    for at in range(count):
        attending = at % period == offset
        weights = parameters.attention(hidden, heads) if attending else parameters.mamba1(hidden, state, rank)
        mixer: Mixer = heads if attending else state
        layers.append(Layer((mixer,), (*weights, *network.of(at), parameters.norms(hidden))))
    return Built(tuple(layers), max(network.widest(count), 2 * inner))


def _inner(state: Recurrent) -> int:
    return 2 * state.heads * state.head_shape[0] + state.groups * state.group_channels


def _mamba2_of_size(fields: Fields, inner: int) -> Recurrent:
    heads = fields.count("mamba_n_heads")
    if inner % heads:
        raise fields.wrong("mamba_n_heads", f"it must divide the width of the state space model ({inner})")
    head_dim = inner // heads
    if fields.get("mamba_d_head") not in (None, "auto", head_dim):
        raise fields.wrong(
            "mamba_d_head", f"{head_dim} is needed ({inner} channels divided by {heads} heads)"
        )
    return _mamba2(
        fields,
        heads=heads,
        head_dim=head_dim,
        state=fields.count("mamba_d_state"),
        groups=fields.count("mamba_n_groups"),
        kernel=fields.count("mamba_d_conv"),
    )


def _mamba2(fields: Fields, *, heads: int, head_dim: int, state: int, groups: int, kernel: int) -> Recurrent:
    if heads % groups:
        name = "n_groups" if fields.has("n_groups") else "mamba_n_groups"
        raise fields.wrong(name, f"it must divide the {heads} heads of the state space model")
    return Recurrent(
        rule="mamba2",
        heads=heads,
        head_shape=(head_dim, state),
        head_channels=head_dim,
        groups=groups,
        group_channels=2 * state,
        conv_taps=kernel - 1,
        groups_repeat=True,
    )
