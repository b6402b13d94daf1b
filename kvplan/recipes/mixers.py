"""What a layer keeps in the cache: attention, latent attention, or a recurrent state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention with grouped KV heads: a key and a value per KV head and token.

    A query sees ``window`` tokens, itself included (None: all), or those of its own run of ``chunk`` tokens.
    """

    query_heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: one latent and one rotary key per token, shared by all heads.

    ``index_head_dim`` is the size of the sparse indexer's key, None without one.
    """

    query_heads: int
    latent_dim: int
    rope_dim: int
    index_head_dim: int | None = None


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A recurrent state and the last inputs of the convolution before it; one snapshot of both is a page.

    A head's state has ``head_shape`` elements. The convolution runs over ``head_channels`` channels a head and
    ``group_channels`` channels for each of ``groups`` (key heads of a gated delta net, B and C of Mamba 2), and
    keeps ``conv_taps`` inputs of each (its kernel less one). Where ``groups_repeat`` is set, a rank
    that would get a part of a group keeps a whole one.
    """

    rule: str
    heads: int
    head_shape: tuple[int, ...]
    head_channels: int
    groups: int
    group_channels: int
    conv_taps: int
    groups_repeat: bool = False


Mixer = Attention | Latent | Recurrent
