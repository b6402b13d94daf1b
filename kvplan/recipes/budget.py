"""The memory of one GPU, line by line: what is there, what is taken, what is left for the cache."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvplan.recipes.model import Model
from kvplan.recipes.ranks import Ranks

GIB = 2**30

RUNTIME_BYTES = 2 * GIB  # the driver's context, communication buffers, kernels and captured graphs


class Basis(StrEnum):
    """How a figure is known."""

    EXACT = "exact"
    ESTIMATED = "estimated"
    GIVEN = "given"


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """One line of a budget. ``note`` says where the figure comes from."""

    name: str
    bytes: int
    basis: Basis
    note: str

    @property
    def gib(self) -> float:
        """The same in GiB."""
        return self.bytes / GIB


def activation_bytes(model: Model, ranks: Ranks, max_scheduled_tokens: int, sampled_rows: int) -> int:
    """Return what activations take at most, by rule. All terms are for one GPU.

    A round's tokens hold four hidden states (the residual, its norm, a block's input and output) and the
    widest matrix' result between two matrices of a layer, which tensor parallelism divides, 2 bytes each; the
    rows that are sampled hold the vocabulary twice in 4 bytes (logits and probabilities).
    """
    rows = max_scheduled_tokens * (4 * model.hidden_size + -(-model.widest_layer // ranks.tp)) * 2
    return rows + sampled_rows * model.vocab_size * 4 * 2
