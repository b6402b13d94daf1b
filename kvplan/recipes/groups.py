"""Layers → groups: which layers share a block table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvplan.recipes.cache_fields import CacheField
from kvplan.recipes.errors import RecipeError
from kvplan.recipes.mixers import Attention
from kvplan.scheduler import CacheGroupConfig, CacheGroupFamily, CacheRetention


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """What a layer keeps on a rank. ``number`` counts decoder layers from 0, and draft layers on from there.

    ``window`` is in tokens, None for full history; ``rule`` is that of a recurrent state, None for attention.
    """

    number: int
    fields: tuple[CacheField, ...]
    window: int | None
    rule: str | None

    @property
    def unit_bytes(self) -> int:
        """Bytes a token, or those of a snapshot."""
        return sum(field.bytes for field in self.fields)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers of one kind, window and shape: a cache group.

    ``span`` is the tokens of a page; of a state group those from one snapshot to the next, each page a
    snapshot. ``alignment`` is what the bytes of one layer's part of a page are rounded up to.
    """

    group_id: str
    kind: str
    window: int | None
    span: int
    fields: tuple[CacheField, ...]
    layers: tuple[int, ...]
    alignment: int

    @property
    def unit_bytes(self) -> int:
        """Bytes of one layer: a token, or a snapshot."""
        return sum(field.bytes for field in self.fields)

    @property
    def layer_page_bytes(self) -> int:
        """Bytes of one layer's part of a page: its stride."""
        rows = 1 if self.kind == "state" else self.span
        return -(-self.unit_bytes * rows // self.alignment) * self.alignment

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, all layers of the group."""
        return self.layer_page_bytes * len(self.layers)

    @property
    def token_bytes(self) -> int:
        """Bytes a token of all layers; 0 for a state group."""
        return 0 if self.kind == "state" else self.unit_bytes * len(self.layers)

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of a snapshot of all layers; 0 for any but a state group."""
        return self.unit_bytes * len(self.layers) if self.kind == "state" else 0

    def held_by(self, layers: range) -> LayerGroup:
        """Return the same group with only those of its layers that are in ``layers``."""
        return replace(self, layers=tuple(layer for layer in self.layers if layer in layers))

    def config(self, pages_per_block: int) -> CacheGroupConfig:
        """Return the group as a scheduler is told of it."""
        windowed = self.kind == "sliding"
        return CacheGroupConfig(
            group_id=self.group_id,
            block_granularity=self.span,
            retention=CacheRetention.SlidingWindow if windowed else CacheRetention.FullHistory,
            sliding_window_tokens=self.window,
            family=CacheGroupFamily.State if self.kind == "state" else CacheGroupFamily.History,
            cache_blocks_per_lcm_block=pages_per_block,
        )


def window_of(mixer: Attention, max_context_len: int | None, where: str) -> int | None:
    """Return the window that a cache of contexts up to ``max_context_len`` tokens can make use of.

    A window or a chunk that no context outgrows keeps everything: None. Raises ``RecipeError`` for a shorter
    chunk, as no retention of the engine drops a whole chunk at its end.
    """
    if mixer.chunk is not None:
        if max_context_len is not None and max_context_len <= mixer.chunk:
            return None
        context = "max_context_len is not known" if max_context_len is None else f"it is {max_context_len}"
        raise RecipeError(
            f"{where}: attention in chunks of {mixer.chunk} tokens (attention_chunk_size) is exact for a "
            f"max_context_len of at most {mixer.chunk}, {context}; beyond that declare its groups by hand in a "
            f"deployment file: a sliding window of {mixer.chunk} holds at least what the chunks need"
        )
    if mixer.window is None or (max_context_len is not None and mixer.window >= max_context_len):
        return None
    return mixer.window


def group_layers(
    layers: Sequence[CachedLayer],
    stages: Sequence[range],
    page_tokens: int,
    snapshot_tokens: int,
    alignment: int,
) -> tuple[LayerGroup, ...]:
    """Return the groups of ``layers``: one per kind, window and shape, full ones first, then by window.

    Recurrent layers make as many state groups as lets each hold no more layers than the largest group of
    attention layers has, on every one of ``stages``, so that a state layer takes the place of an attention layer
    slot by slot; layers that follow each other go to different groups.
    """
    alike: dict[tuple[object, ...], list[CachedLayer]] = {}
    for layer in layers:
        alike.setdefault((layer.rule, layer.window, layer.fields), []).append(layer)
    history = [members for (rule, *_), members in alike.items() if rule is None]
    history.sort(key=lambda members: (members[0].window is not None, members[0].window or 0))
    groups: list[LayerGroup] = []
    for members in history:
        first = members[0]
        kind, name = (
            ("full", "full_attention") if first.window is None else ("sliding", f"sliding_{first.window}")
        )
        name = _free(name, groups)
        numbers = tuple(layer.number for layer in members)
        groups.append(LayerGroup(name, kind, first.window, page_tokens, first.fields, numbers, alignment))
    for (rule, *_), members in alike.items():
        if rule is None:
            continue
        name = "mamba" if str(rule).startswith("mamba") else "linear"
        count = _state_groups([layer.number for layer in members], groups, stages)
        for at in range(count):
            numbers = tuple(layer.number for layer in members[at::count])
            group_id = _free(f"{name}_{at}" if count > 1 else name, groups)
            groups.append(
                LayerGroup(group_id, "state", None, snapshot_tokens, members[0].fields, numbers, alignment)
            )
    return tuple(groups)


def _state_groups(numbers: list[int], groups: list[LayerGroup], stages: Sequence[range]) -> int:
    attending = [group for group in groups if group.kind != "state"]
    needed = [1]
    for stage in stages:
        slots = max((len(group.held_by(stage).layers) for group in attending), default=0)
        if slots:
            needed.append(-(-sum(number in stage for number in numbers) // slots))
    return max(needed)


def _free(name: str, groups: list[LayerGroup]) -> str:
    taken = {group.group_id for group in groups}
    found, at = name, 2
    while found in taken:
        found, at = f"{name}_{at}", at + 1
    return found
