"""What the weights take on one GPU: from a checkpoint's own account, or from the parameter count."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Final

from kvplan.recipes.dtypes import WEIGHT_BITS
from kvplan.recipes.errors import RecipeError
from kvplan.recipes.mixers import Attention
from kvplan.recipes.model import Layer, Model, Part, Shard, Weight
from kvplan.recipes.ranks import Ranks, kv_copies

# Where quantisation by this method stops: gpt-oss keeps everything but its experts in 16 bits.
_EXPERTS_ONLY: Final = {"mxfp4"}
_HEADER_LIMIT = 100_000_000  # bytes; what the format's own reader takes for a header


def stored_as(model: Model, weight_dtype: str | None) -> tuple[str, str]:
    """Return the types of a model's quantised matrices and of the rest of its weights.

    ``weight_dtype`` is what was asked for; None stands for what the configuration says. Raises ``RecipeError``
    if that says nothing that is known.
    """
    plain = model.dtype if model.dtype in ("fp32", "bf16", "fp16") else "bf16"
    if weight_dtype is not None:
        return weight_dtype, weight_dtype if weight_dtype in ("fp32", "bf16", "fp16") else "bf16"
    if model.quantisation == "unknown":
        raise RecipeError(
            f"{model.source}: quantization_config is of a kind kvplan does not know; weight_dtype (one of "
            f"{', '.join(WEIGHT_BITS)}) or weights_gib is needed"
        )
    if model.quantisation is not None:
        return model.quantisation, plain
    if model.dtype is None:
        raise RecipeError(
            f"{model.source}: torch_dtype is missing; give it there, or weight_dtype, or weights_gib"
        )
    return plain, plain


def rank_bytes(model: Model, layers: Iterable[Layer], ends: int, ranks: Ranks, types: tuple[str, str]) -> int:
    """Return the bytes of ``layers`` and of ``ends`` vocabulary matrices on one GPU of a stage."""
    quantised, plain = types
    total = Fraction(0)
    vocabulary = Weight(model.embedding_parameters, Shard.TENSOR, Part.PLAIN)
    final_norm = Weight(model.hidden_size, Shard.WHOLE, Part.PLAIN)
    for layer in layers:
        kv_heads = next((m.kv_heads for m in layer.mixers if isinstance(m, Attention)), None)
        for weight in layer.weights:
            total += _bytes(weight, quantised, plain) / _divisor(weight.shard, ranks, kv_heads)
    for weight in (*[vocabulary] * ends, final_norm):
        total += _bytes(weight, quantised, plain) / _divisor(weight.shard, ranks, None)
    return -(-total.numerator // total.denominator)


def checkpoint_bytes(folder: Path | None) -> int | None:
    """Return the bytes of all weights of the checkpoint in ``folder``, as it says itself; None without one.

    From model.safetensors.index.json, or from the headers of the safetensors files. Raises ``RecipeError`` if
    they cannot be read.
    """
    if folder is None:
        return None
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _indexed(index)
    files = sorted(folder.glob("*.safetensors"))
    return sum(_held(file) for file in files) if files else None


def _indexed(index: Path) -> int:
    try:
        document = json.loads(index.read_text("utf-8"))
        total = document["metadata"]["total_size"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        total = None
    if isinstance(total, bool) or not isinstance(total, int | float) or not 0 < total < 2**60:
        raise RecipeError(f"{index} gives no metadata.total_size in bytes; weights_gib is needed instead")
    return int(total)


def _held(file: Path) -> int:
    """The bytes of a file's tensors: its header (length, then JSON) says where each begins and ends."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _HEADER_LIMIT:
                raise ValueError("header too long")
            header = json.loads(stream.read(length))
        spans = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
        return sum(int(end) - int(begin) for begin, end in spans)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError):
        raise RecipeError(f"{file} has no safetensors header; weights_gib is needed instead") from None


def _bytes(weight: Weight, quantised: str, plain: str) -> Fraction:
    if weight.part is Part.PLAIN or (quantised in _EXPERTS_ONLY and weight.part is not Part.EXPERT):
        name = plain
    else:
        name = quantised
    return weight.parameters * WEIGHT_BITS[name] / 8


def _divisor(shard: Shard, ranks: Ranks, kv_heads: int | None) -> int:
    match shard:
        case Shard.TENSOR:
            return ranks.tp
        case Shard.ATTENTION:
            return ranks.attention
        case Shard.KV:
            return ranks.attention // (kv_copies(kv_heads, ranks.attention)[1] if kv_heads else 1)
        case Shard.WHOLE:
            return 1
