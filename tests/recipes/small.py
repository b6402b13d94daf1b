"""Small models, made by hand or written as a config.json."""

import json
from pathlib import Path
from typing import Any

from kvplan.recipes import Attention, Latent, Layer, Model, Recurrent

GIB = 2**30
BF16, FP32 = 2, 4


def attention(kv_heads: int = 2, head_dim: int = 64, window: int | None = None) -> Attention:
    """Attention with as many query heads as KV heads."""
    return Attention(kv_heads, kv_heads, head_dim, window)


def state(heads: int = 4, key: int = 16, value: int = 16, taps: int = 3) -> Recurrent:
    """A gated delta net whose keys have as many heads as its values."""
    return Recurrent("gated_delta_net", heads, (key, value), value, heads, 2 * key, taps)


def model(*mixers: Attention | Latent | Recurrent, **fields: Any) -> Model:
    """A model of one layer for each of ``mixers``."""
    made: dict[str, Any] = {
        "name": "small",
        "family": "llama",
        "source": "small",
        "layers": tuple(Layer((mixer,), ()) for mixer in mixers),
        "draft_layer": None,
        "num_draft_layers": 0,
        "hidden_size": 64,
        "vocab_size": 128,
        "widest_layer": 64,
        "tied_embeddings": True,
        "max_position_embeddings": None,
        "dtype": "bf16",
        "state_dtype": None,
        "quantisation": None,
    }
    return Model(**(made | fields))


LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


def written(folder: Path, values: object, **changes: Any) -> Path:
    """A config.json in ``folder``: ``values`` with ``changes``; a change to None leaves the field out."""
    if isinstance(values, dict):
        values = {name: value for name, value in (values | changes).items() if value is not None}
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path
