"""A model as its cache sees it: layers, what each keeps, and how many parameters each has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvplan.recipes.mixers import Mixer


class Shard(StrEnum):
    """What a matrix is divided by."""

    ATTENTION = "attention"  # the ranks that share attention heads: tp / dp
    KV = "kv"  # the same, but never finer than one KV head
    TENSOR = "tensor"  # all ranks of a stage: tp
    WHOLE = "whole"  # nothing: a copy on every rank


class Part(StrEnum):
    """What a matrix belongs to, as far as quantisation cares."""

    LINEAR = "linear"
    EXPERT = "expert"
    PLAIN = "plain"  # embeddings, head, norms, routers, convolutions: 16 bits in a quantised checkpoint


@dataclass(frozen=True, slots=True)
class Weight:
    """``parameters`` of one layer that are stored and divided alike."""

    parameters: int
    shard: Shard
    part: Part = Part.LINEAR


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. ``mixers`` is empty where it keeps nothing, and has two where both run side by side."""

    mixers: tuple[Mixer, ...]
    weights: tuple[Weight, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """What a configuration file says of a model.

    ``draft_layer`` is a layer of its multi-token-prediction head and ``num_draft_layers`` how many the
    configuration counts. ``dtype`` is that of activations and of an unquantised cache (None: not stated),
    ``state_dtype`` what the configuration says of recurrent states, ``quantisation`` the type of its
    weights. ``widest_layer`` is the most elements a token has between two matrices of a layer, before tensor
    parallelism. ``folder`` is where weights may lie beside the configuration.
    """

    name: str
    family: str
    source: str
    layers: tuple[Layer, ...]
    draft_layer: Layer | None
    num_draft_layers: int
    hidden_size: int
    vocab_size: int
    widest_layer: int
    tied_embeddings: bool
    max_position_embeddings: int | None
    dtype: str | None
    state_dtype: str | None
    quantisation: str | None
    folder: Path | None = None

    @property
    def parameters(self) -> int:
        """Parameters of the model, draft layers left out."""
        layers = sum(weight.parameters for layer in self.layers for weight in layer.weights)
        ends = self.embedding_parameters * (1 if self.tied_embeddings else 2)
        return layers + ends + self.hidden_size  # and the last norm

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding, and of the head where it is one of its own."""
        return self.hidden_size * self.vocab_size
