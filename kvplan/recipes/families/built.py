"""What a family makes of a configuration, and what families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvplan.recipes import parameters
from kvplan.recipes.errors import RecipeError
from kvplan.recipes.fields import MAX_LAYERS, Fields
from kvplan.recipes.mixers import Attention, Recurrent
from kvplan.recipes.model import Layer, Weight


@dataclass(frozen=True, slots=True)
class Built:
    """The layers of a model. ``widest_layer`` is in elements a token, see ``Model``."""

    layers: tuple[Layer, ...]
    widest_layer: int
    draft_layer: Layer | None = None
    num_draft_layers: int = 0


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture: how it is read, what its own documentation has as defaults, and its class names.

    ``foreign`` are fields that a configuration of this family never has: one that has them is something else.
    """

    read: Callable[[Fields], Built]
    architectures: tuple[str, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()


LATENT = ("kv_lora_rank",)
RECURRENT = (
    "linear_num_value_heads",
    "linear_attn_config",
    "hybrid_override_pattern",
    "mamba_d_state",
    "ssm_state_size",
)
CHUNKED = ("attention_chunk_size",)

FULL = "full_attention"
SLIDING = "sliding_attention"
LINEAR = "linear_attention"


def num_layers(fields: Fields) -> int:
    """Return the number of decoder layers."""
    return fields.count("num_hidden_layers", most=MAX_LAYERS)


def attention_heads(fields: Fields, *head_dim_names: str) -> Attention:
    """Return attention without a window, of the configuration's heads and head dimension.

    A head dimension that is neither given nor a default of the architecture is hidden_size divided by
    num_attention_heads, as every architecture that leaves it out defines it. Raises ``RecipeError`` if heads
    do not divide.
    """
    query = fields.count("num_attention_heads")
    kv = fields.optional_count("num_key_value_heads") or query
    if query % kv:
        raise fields.wrong("num_key_value_heads", f"it must divide num_attention_heads ({query})")
    head_dim = fields.optional_count("head_dim", *head_dim_names)
    if head_dim is None:
        hidden = fields.count("hidden_size")
        if hidden % query:
            raise fields.wrong(
                "hidden_size", f"it must be divisible by num_attention_heads ({query}), or head_dim be given"
            )
        head_dim = hidden // query
    return Attention(query, kv, head_dim)


def layer_kinds(
    fields: Fields, count: int, known: Sequence[str], otherwise: Callable[[int], str]
) -> list[str]:
    """Return the kind of each layer: what ``layer_types`` says, or else what ``otherwise`` says of its number.

    Raises ``RecipeError`` for a kind that is not ``known`` or a list of another length.
    """
    kinds = fields.get("layer_types")
    if kinds is None:
        return [otherwise(at) for at in range(count)]
    if not isinstance(kinds, list):
        raise fields.wrong("layer_types", f"a list with a kind for each of {count} layers is needed")
    if len(kinds) != count:
        raise RecipeError(
            f"{fields.named('layer_types')} has {len(kinds)} entries; num_hidden_layers is {count}"
        )
    for kind in kinds:
        if kind not in known:
            raise RecipeError(
                f"{fields.named('layer_types')} has {kind!r}; {', '.join(known)} is what {fields.family} can "
                "have"
            )
    return list(kinds)


class FeedForward:
    """A dense network of ``intermediate_size``, or experts in the layers that ``expert_layers`` names."""

    def __init__(self, fields: Fields, expert_layers: Callable[[int], bool]) -> None:
        self._fields = fields
        self._hidden = fields.count("hidden_size")
        self._expert_layers = expert_layers
        self._experts = fields.optional_count("num_experts", "n_routed_experts", "num_local_experts")

    def of(self, layer: int) -> tuple[Weight, ...]:
        """Return the weights of layer ``layer``."""
        if self._experts is None or not self._expert_layers(layer):
            return (parameters.dense(self._hidden, self._fields.count("intermediate_size")),)
        return parameters.experts(self._hidden, self._expert_width(), self._experts, self._shared_width())

    def widest(self, layers: int) -> int:
        """Return the most elements a token has inside a network: two halves of each expert it is sent to."""
        found = [0]
        for layer in range(layers):
            if self._experts is None or not self._expert_layers(layer):
                found.append(2 * self._fields.count("intermediate_size"))
            else:
                chosen = self._fields.count("num_experts_per_tok", "num_experts_per_token")
                found.append(2 * (chosen * self._expert_width() + self._shared_width()))
        return max(found)

    def _expert_width(self) -> int:
        return self._fields.count("moe_intermediate_size", "intermediate_size")

    def _shared_width(self) -> int:
        given = self._fields.optional_count("shared_expert_intermediate_size", least=0)
        if given is not None:
            return given
        shared = self._fields.optional_count("n_shared_experts", "num_shared_experts", least=0)
        return (shared or 0) * self._expert_width()


def delta_net(fields: Fields) -> Recurrent:
    """Return the gated delta net of Qwen3-Next and Qwen3.5. Raises ``RecipeError`` if heads do not divide."""
    values, keys = fields.count("linear_num_value_heads"), fields.count("linear_num_key_heads")
    if values % keys:
        raise fields.wrong("linear_num_key_heads", f"it must divide linear_num_value_heads ({values})")
    key_dim, value_dim = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    return Recurrent(
        rule="gated_delta_net",
        heads=values,
        head_shape=(key_dim, value_dim),
        head_channels=value_dim,
        groups=keys,
        group_channels=2 * key_dim,
        conv_taps=fields.count("linear_conv_kernel_dim") - 1,
    )
