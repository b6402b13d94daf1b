"""What one layer writes to the cache on one rank, field by field."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kvplan.recipes.dtypes import ELEMENT_BYTES, CacheDtype
from kvplan.recipes.errors import RecipeError
from kvplan.recipes.mixers import Attention, Latent, Mixer, Recurrent

INDEX_SCALE_BLOCK = 128


@dataclass(frozen=True, slots=True)
class CacheField:
    """One field of a layer: ``shape`` and ``dtype`` of what it holds for a token, or for a snapshot."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Bytes a token, or a snapshot."""
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]


def cache_fields(
    mixer: Mixer, cache: CacheDtype, state_dtype: str, conv_dtype: str
) -> tuple[CacheField, ...]:
    """Return the fields of a layer, ``mixer`` being what a rank keeps of it.

    Index keys are kept in 8 bits with a scale of 32 bits, whatever the cache's type, as the model computes
    them so. Raises ``RecipeError`` if a scale's block does not divide a dimension.
    """
    match mixer:
        case Attention():
            shape = (mixer.kv_heads, mixer.head_dim)
            return (*_scaled("keys", shape, cache), *_scaled("values", shape, cache))
        case Latent():
            fields = _scaled("latent", (mixer.latent_dim,), cache)
            if mixer.rope_dim:
                fields += _scaled("rotary_key", (mixer.rope_dim,), cache)
            if mixer.index_head_dim is not None:
                scales = (mixer.index_head_dim // INDEX_SCALE_BLOCK,)
                fields += (
                    CacheField("index_keys", (mixer.index_head_dim,), "fp8_e4m3"),
                    CacheField("index_scales", scales, "fp32"),
                )
            return fields
        case Recurrent():
            channels = mixer.heads * mixer.head_channels + mixer.groups * mixer.group_channels
            state = CacheField("state", (mixer.heads, *mixer.head_shape), state_dtype)
            if not mixer.conv_taps:
                return (state,)
            return (CacheField("convolution", (channels, mixer.conv_taps), conv_dtype), state)


def _scaled(name: str, shape: tuple[int, ...], cache: CacheDtype) -> tuple[CacheField, ...]:
    field = CacheField(name, shape, cache.element)
    if cache.scale_block is None:
        return (field,)
    if shape[-1] % cache.scale_block:
        raise RecipeError(
            f"kv_dtype is {cache.name}, one scale for {cache.scale_block} elements, which does not divide the "
            f"{shape[-1]} of {name}; another kv_dtype is needed"
        )
    scales = (*shape[:-1], shape[-1] // cache.scale_block)
    return (field, CacheField(f"{name}_scales", scales, "e8m0"))
