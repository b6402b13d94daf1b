"""The budget of each pipeline stage, from what is given and what the model needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.recipes.budget import GIB, RUNTIME_BYTES, Basis, BudgetLine, activation_bytes
from kvplan.recipes.dtypes import weight_dtype
from kvplan.recipes.errors import NoRoomError, RecipeError
from kvplan.recipes.gpus import find_gpu
from kvplan.recipes.groups import LayerGroup
from kvplan.recipes.model import Layer, Model
from kvplan.recipes.ranks import Ranks
from kvplan.recipes.weights import checkpoint_bytes, rank_bytes, stored_as
from kvplan.scheduler import SchedulerConfig

MAX_GIB = 2**20
UTILISATION = 0.90


@dataclass(frozen=True)
class GpuMemory:
    """What ``plan_memory`` is told of memory: see there. Raises ``RecipeError`` for what is wrong of it."""

    model: Model
    ranks: Ranks
    config: SchedulerConfig
    gpu: str | None
    gpu_memory_gib: float | None
    cache_gib: float | Sequence[float] | None
    utilisation: float | None
    weights_gib: float | None
    weight_dtype: str | None
    reserve_gib: float | None

    def __post_init__(self) -> None:
        sizes = {"gpu": self.gpu, "gpu_memory_gib": self.gpu_memory_gib, "cache_gib": self.cache_gib}
        given = [name for name, value in sizes.items() if value is not None]
        if len(given) > 1:
            raise RecipeError(f"{' and '.join(given)} are given; one of them is needed")
        if self.gpu_memory_gib is not None:
            _require_gib("gpu_memory_gib", self.gpu_memory_gib)
        for size in self._cache_sizes():
            _require_gib("cache_gib", size)
        if self.utilisation is not None and not (_is_number(self.utilisation) and 0 < self.utilisation <= 1):
            raise RecipeError(f"utilisation is {self.utilisation!r}; a share above 0 and up to 1 is needed")
        for name, value in (("weights_gib", self.weights_gib), ("reserve_gib", self.reserve_gib)):
            if value is not None:
                _require_gib(name, value, zero=True)
        if self.weight_dtype is not None:
            weight_dtype(self.weight_dtype)
        if self.gpu is None and self.gpu_memory_gib is None:
            for name in ("utilisation", "weights_gib", "weight_dtype", "reserve_gib"):
                if getattr(self, name) is not None:
                    raise RecipeError(
                        f"gpu and gpu_memory_gib are absent, and {name} is about that memory; one of them is needed"
                    )

    def stage_lines(
        self, number: int, layers: Sequence[Layer], groups: Sequence[LayerGroup]
    ) -> tuple[BudgetLine, ...]:
        """Return the budget of stage ``number``, the cache's line last; nothing where no memory is given."""
        sizes = self._cache_sizes()
        if sizes:
            size = sizes[number % len(sizes)]
            return (BudgetLine("cache", math.floor(size * GIB), Basis.GIVEN, "cache_gib"),)
        device = self._device()
        if device is None:
            return ()
        share = UTILISATION if self.utilisation is None else self.utilisation
        basis = Basis.ESTIMATED if self.utilisation is None else Basis.GIVEN
        note = f"{share:.2f} of it ({'default' if self.utilisation is None else 'given'})"
        usable = BudgetLine("usable", math.floor(device.bytes * share), basis, note)
        taken = [self._weights(number, layers), self._reserve(), *self._workspace(groups)]
        left = usable.bytes - sum(line.bytes for line in taken)
        if left <= 0:
            where = f"stage {number}: " if self.ranks.pp > 1 else ""
            lines = ", ".join(f"{line.name} {line.gib:,.1f} GiB" for line in taken)
            fewer = (
                "fewer requests (max_num_seqs), " if left + sum(one.bytes for one in taken[2:]) > 0 else ""
            )
            raise NoRoomError(
                f"{where}nothing is left for the cache: {usable.gib:,.1f} GiB usable of each GPU, {lines}; "
                f"{fewer}more GPUs (tp, pp), a smaller weight_dtype, or a larger GPU is needed"
            )
        weakest = [Basis.GIVEN, Basis.EXACT, Basis.ESTIMATED]
        known = max((line.basis for line in (device, usable, *taken)), key=weakest.index)
        return (device, usable, *taken, BudgetLine("cache", left, known, "what is left"))

    def _cache_sizes(self) -> tuple[float, ...]:
        given = self.cache_gib
        if given is None:
            return ()
        sizes = tuple(given) if isinstance(given, Sequence) else (given,)
        if len(sizes) not in (1, self.ranks.pp):
            raise RecipeError(
                f"cache_gib has {len(sizes)} figures; 1, or one for each of {self.ranks.pp} stages (pp)"
            )
        return sizes

    def _device(self) -> BudgetLine | None:
        if self.gpu_memory_gib is not None:
            return BudgetLine("device", math.floor(self.gpu_memory_gib * GIB), Basis.GIVEN, "gpu_memory_gib")
        if self.gpu is None:
            return None
        gpu = find_gpu(self.gpu)
        basis = Basis.EXACT if gpu.source == "driver" else Basis.ESTIMATED
        by = {"driver": "as its driver reports", "vendor": "as its data sheet says"}[gpu.source]
        return BudgetLine("device", gpu.memory_bytes, basis, f"{gpu.name}, {by} ({gpu.date})")

    def _weights(self, number: int, layers: Sequence[Layer]) -> BudgetLine:
        if self.weights_gib is not None:
            return BudgetLine("weights", math.floor(self.weights_gib * GIB), Basis.GIVEN, "weights_gib")
        model, ranks = self.model, self.ranks
        asked = None if self.weight_dtype is None else weight_dtype(self.weight_dtype)
        stored = None if asked is not None else checkpoint_bytes(model.folder)
        whole = ranks.tp * ranks.pp == 1
        if stored is not None and whole:
            return BudgetLine("weights", stored, Basis.EXACT, "the checkpoint's own account")
        sized = stored is not None and (model.quantisation == "unknown" or model.dtype is None)
        types = ("bf16", "bf16") if sized else stored_as(model, asked)  # a share of known bytes needs no type
        first, last = number == 0, number == ranks.pp - 1
        ends = 1 if model.tied_embeddings and first and last else first + last
        here = rank_bytes(model, layers, ends, ranks, types)
        if stored is not None:
            all_ends = 1 if model.tied_embeddings else 2
            total = rank_bytes(model, model.layers, all_ends, Ranks(), types)
            note = f"the checkpoint's {stored / GIB:,.1f} GiB × the share of a GPU's parameters"
            return BudgetLine("weights", math.ceil(stored * here / total), Basis.ESTIMATED, note)
        over = "" if whole else f" over {ranks.tp * ranks.pp} GPUs"
        note = f"{model.parameters / 1e9:,.1f} B parameters in {types[0]}{over}"
        return BudgetLine("weights", here, Basis.ESTIMATED, note)

    def _reserve(self) -> BudgetLine:
        name = "activations and graphs"
        if self.reserve_gib is not None:
            return BudgetLine(name, math.floor(self.reserve_gib * GIB), Basis.GIVEN, "reserve_gib")
        config = self.config
        rows = config.max_batch_size * max(config.decode_input_tokens, 1)
        size = RUNTIME_BYTES + activation_bytes(self.model, self.ranks, config.max_scheduled_tokens, rows)
        rule = (
            f"{RUNTIME_BYTES // GIB} GiB + {config.max_scheduled_tokens:,} tokens + {rows:,} rows of logits"
        )
        note = f"by rule, {rule}"
        return BudgetLine(name, size, Basis.ESTIMATED, note)

    def _workspace(self, groups: Sequence[LayerGroup]) -> tuple[BudgetLine, ...]:
        """Verifying a draft keeps the state behind each of its tokens until it is known which are accepted."""
        config = self.config
        snapshot = sum(group.snapshot_bytes for group in groups)
        if config.decode_input_tokens < 2 or not snapshot:
            return ()
        size = config.max_batch_size * config.decode_input_tokens * snapshot
        rule = f"{config.max_batch_size:,} requests × {config.decode_input_tokens} draft tokens × a state"
        note = f"by rule, {rule}"
        return (BudgetLine("verification of states", size, Basis.ESTIMATED, note),)


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float)


def _require_gib(name: str, value: object, zero: bool = False) -> None:
    least = "at least 0" if zero else "above 0"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecipeError(f"{name} is {value!r}; a number of GiB is needed")
    if not (value >= 0 if zero else value > 0) or not value < math.inf:
        raise RecipeError(f"{name} is {value}; a number of GiB {least} is needed")
    if value > MAX_GIB:
        raise RecipeError(f"{name} is {value:g} GiB; at most {MAX_GIB:,} is possible")
