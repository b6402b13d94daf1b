"""Element types of caches and weights, in exact bits."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from kvplan.recipes.errors import RecipeError

ELEMENT_BYTES: Final = {
    "fp32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
    "e8m0": 1,  # the power-of-two scale of an mx block
}

MX_BLOCK = 32  # elements that share one scale, along the head dimension


@dataclass(frozen=True, slots=True)
class CacheDtype:
    """How keys, values and latents are stored.

    ``element`` is the type of one element. ``scale_block`` elements share a scale of type ``e8m0``, kept in a
    plane beside them; None where scales are constants of a layer and take no room in a page.
    """

    name: str
    element: str
    scale_block: int | None = None


CACHE_DTYPES: Final = {
    "bf16": CacheDtype("bf16", "bf16"),
    "fp16": CacheDtype("fp16", "fp16"),
    "fp8_e4m3": CacheDtype("fp8_e4m3", "fp8_e4m3"),
    "fp8_e5m2": CacheDtype("fp8_e5m2", "fp8_e5m2"),
    "mxfp8": CacheDtype("mxfp8", "fp8_e4m3", MX_BLOCK),
    "int8": CacheDtype("int8", "int8"),
}
STATE_DTYPES: Final = ("fp32", "bf16", "fp16")

_SPELLINGS: Final = {
    "fp8": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e4m3": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
}

# Bits a weight, with the scales of its block: int4 in groups of 128 (a 16-bit scale, a 4-bit zero), mxfp4 in
# blocks of 32 (an 8-bit scale), nvfp4 in blocks of 16 (an 8-bit scale), fp8 in tiles of 128 × 128 (a scale of
# 32 bits, which is next to nothing).
WEIGHT_BITS: Final = {
    "fp32": Fraction(32),
    "bf16": Fraction(16),
    "fp16": Fraction(16),
    "fp8": 8 + Fraction(32, 128 * 128),
    "int8": Fraction(8),
    "mxfp8": 8 + Fraction(8, 32),
    "int4": 4 + Fraction(20, 128),
    "mxfp4": 4 + Fraction(8, 32),
    "nvfp4": 4 + Fraction(8, 16),
}


def spelt(name: str) -> str:
    """Return a type's name as kvplan spells it: ``torch.bfloat16`` and ``bfloat16`` are ``bf16``."""
    lower = name.strip().lower().removeprefix("torch.")
    return _SPELLINGS.get(lower, lower)


def cache_dtype(name: str, where: str = "kv_dtype") -> CacheDtype:
    """Return the cache type of that name. Raises ``RecipeError`` naming ``where`` for any other."""
    found = CACHE_DTYPES.get(spelt(name))
    if found is None:
        raise RecipeError(f"{where} is {name!r}; one of {', '.join(CACHE_DTYPES)} (or fp8) is needed")
    return found


def state_dtype(name: str, where: str = "state_dtype") -> str:
    """Return the type of a recurrent state. Raises ``RecipeError`` naming ``where`` for any other."""
    found = spelt(name)
    if found not in STATE_DTYPES:
        raise RecipeError(f"{where} is {name!r}; one of {', '.join(STATE_DTYPES)} is needed")
    return found


def weight_dtype(name: str, where: str = "weight_dtype") -> str:
    """Return the type of quantised weights. Raises ``RecipeError`` naming ``where`` for any other."""
    lower = name.strip().lower()
    found = "fp8" if lower.startswith(("fp8", "float8")) else spelt(lower)
    if found not in WEIGHT_BITS:
        raise RecipeError(f"{where} is {name!r}; one of {', '.join(WEIGHT_BITS)} is needed")
    return found
