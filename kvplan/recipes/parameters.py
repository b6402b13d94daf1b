"""Parameter counts of a layer's matrices, from its dimensions. Biases are counted nowhere: next to nothing."""

from __future__ import annotations

from kvplan.recipes.mixers import Attention, Recurrent
from kvplan.recipes.model import Part, Shard, Weight


def norms(hidden: int, count: int = 2) -> Weight:
    """The norms of a layer, ``count`` of them."""
    return Weight(count * hidden, Shard.WHOLE, Part.PLAIN)


def attention(hidden: int, mixer: Attention, gated: bool = False) -> tuple[Weight, ...]:
    """Query, output and KV projections; ``gated`` where the query projection makes an output gate as well."""
    query = mixer.query_heads * mixer.head_dim
    return (
        Weight(hidden * query * (3 if gated else 2), Shard.ATTENTION),
        Weight(2 * hidden * mixer.kv_heads * mixer.head_dim, Shard.KV),
    )


def latent(
    hidden: int, heads: int, latent: int, rope: int, nope: int, value: int, query_rank: int | None
) -> tuple[Weight, ...]:
    """Latent attention: the projections down are on every rank, those up are divided by heads."""
    query_head = nope + rope
    down = hidden * (latent + rope)
    up = latent * heads * (nope + value) + heads * value * hidden
    if query_rank is None:
        up += hidden * heads * query_head
    else:
        down += hidden * query_rank
        up += query_rank * heads * query_head
    return (Weight(down, Shard.WHOLE), Weight(up, Shard.ATTENTION))


def indexer(hidden: int, query_rank: int, heads: int, head_dim: int) -> Weight:
    """The sparse indexer: queries, keys and the weights of its heads, on every rank."""
    return Weight(query_rank * heads * head_dim + hidden * head_dim + hidden * heads, Shard.WHOLE)


def gated_delta_net(hidden: int, mixer: Recurrent) -> tuple[Weight, ...]:
    """Queries, keys, values and gate, the two rates a head, the convolution and the output."""
    key_dim, value_dim = mixer.head_shape
    keys, values = mixer.groups * key_dim, mixer.heads * value_dim
    matrices = hidden * (2 * keys + 2 * values) + hidden * 2 * mixer.heads + values * hidden
    convolution = (2 * keys + values) * (mixer.conv_taps + 1)
    return (Weight(matrices, Shard.ATTENTION), Weight(convolution, Shard.ATTENTION, Part.PLAIN))


def kimi_delta(hidden: int, mixer: Recurrent) -> tuple[Weight, ...]:
    """Queries, keys, values and output, a forget gate and an output gate through one head's width, the rate."""
    head_dim = mixer.head_shape[0]
    width = mixer.heads * head_dim
    gates = 2 * (hidden * head_dim + head_dim * width)
    matrices = 4 * hidden * width + gates + hidden * mixer.heads
    convolution = 3 * width * (mixer.conv_taps + 1)
    return (Weight(matrices, Shard.ATTENTION), Weight(convolution, Shard.ATTENTION, Part.PLAIN))


def mamba2(hidden: int, mixer: Recurrent) -> tuple[Weight, ...]:
    """Gate and input, B and C, the time steps, the convolution and the output."""
    head_dim, _ = mixer.head_shape
    inner, groups = mixer.heads * head_dim, mixer.groups * mixer.group_channels
    matrices = hidden * (2 * inner + groups + mixer.heads) + inner * hidden
    convolution = (inner + groups) * (mixer.conv_taps + 1)
    return (Weight(matrices, Shard.ATTENTION), Weight(convolution, Shard.ATTENTION, Part.PLAIN))


def mamba1(hidden: int, mixer: Recurrent, time_rank: int) -> tuple[Weight, ...]:
    """Gate and input, the time steps through ``time_rank``, B and C, A, the convolution and the output."""
    inner, (state,) = mixer.heads, mixer.head_shape
    matrices = 3 * hidden * inner + inner * (time_rank + 2 * state) + time_rank * inner
    rest = inner * state + inner * (mixer.conv_taps + 1)
    return (Weight(matrices, Shard.ATTENTION), Weight(rest, Shard.ATTENTION, Part.PLAIN))


def dense(hidden: int, width: int, gated: bool = True) -> Weight:
    """A feed-forward network: two matrices, and a third for its gate."""
    return Weight((3 if gated else 2) * hidden * width, Shard.TENSOR)


def experts(
    hidden: int, width: int, count: int, shared_width: int = 0, gated: bool = True
) -> tuple[Weight, ...]:
    """``count`` experts of ``width``, one of ``shared_width`` for every token, and the router."""
    matrices = 3 if gated else 2
    found = (
        Weight(matrices * hidden * width * count, Shard.TENSOR, Part.EXPERT),
        Weight(hidden * count, Shard.WHOLE, Part.PLAIN),
    )
    return (*found, dense(hidden, shared_width, gated)) if shared_width else found
