"""Parallelism: how heads, states and layers are divided over GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.recipes.errors import RecipeError
from kvplan.recipes.mixers import Attention, Latent, Mixer, Recurrent


@dataclass(frozen=True, slots=True)
class Ranks:
    """``tp`` GPUs hold one pipeline stage; ``dp`` groups of them each attend to their own requests.

    So attention heads are divided by tp / dp, everything else by tp, and the batch by dp.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise RecipeError(f"{name} is {value!r}; an integer of at least 1 is needed")
        if self.tp % self.dp:
            raise RecipeError(
                f"dp is {self.dp}; it must divide tp ({self.tp}), as attention is data parallel within it"
            )

    @property
    def attention(self) -> int:
        """GPUs over which the heads of one attention replica are divided."""
        return self.tp // self.dp

    def batch(self, requests: int) -> int:
        """Requests that one attention replica serves of ``requests``."""
        return -(-requests // self.dp)


def kv_copies(kv_heads: int, ranks: int) -> tuple[int, int]:
    """Return the KV heads of a rank and the ranks that hold the same ones: at least one head a rank.

    Raises ``RecipeError`` if heads and ranks do not divide.
    """
    if ranks <= kv_heads:
        if kv_heads % ranks:
            raise RecipeError(
                f"{kv_heads} KV heads cannot be divided over {ranks} ranks; {_divisors(kv_heads)}"
            )
        return kv_heads // ranks, 1
    if ranks % kv_heads:
        raise RecipeError(
            f"{kv_heads} KV heads cannot be copied to {ranks} ranks; tp / dp must be a multiple of {kv_heads}"
        )
    return 1, ranks // kv_heads


def on_rank(mixer: Mixer, ranks: int) -> Mixer:
    """Return what one of ``ranks`` attention ranks keeps of ``mixer``.

    KV heads and the heads of a state are divided, a latent is on every rank. Raises ``RecipeError`` if heads
    do not divide.
    """
    match mixer:
        case Attention():
            query = _divided("query heads", mixer.query_heads, ranks)
            kv, _ = kv_copies(mixer.kv_heads, ranks)
            return Attention(query, kv, mixer.head_dim, mixer.window, mixer.chunk)
        case Latent():
            query = _divided("query heads", mixer.query_heads, ranks)
            return Latent(query, mixer.latent_dim, mixer.rope_dim, mixer.index_head_dim)
        case Recurrent():
            return Recurrent(
                mixer.rule,
                _divided("state heads", mixer.heads, ranks),
                mixer.head_shape,
                mixer.head_channels,
                _groups(mixer, ranks),
                mixer.group_channels,
                mixer.conv_taps,
                mixer.groups_repeat,
            )


def stage_layers(layers: int, stages: int, given: Sequence[int] | None = None) -> tuple[range, ...]:
    """Return the layers of each pipeline stage.

    ``given`` counts the layers of each. Without it they are split evenly, and what does not divide goes one
    each to the stages before the last (which has the head) and then to the last. Raises ``RecipeError``.
    """
    if given is None:
        if stages > layers:
            raise RecipeError(f"pp is {stages}; the model has {layers} layers, so at most {layers} stages")
        counts = [layers // stages] * stages
        for extra in range(layers % stages):
            counts[(stages - 2 - extra) % stages] += 1
    else:
        counts = list(given)
        if len(counts) != stages or any(count < 1 for count in counts) or sum(counts) != layers:
            raise RecipeError(
                f"pp_layers is {','.join(map(str, counts))}; {stages} counts (pp) of at least 1 that add up to "
                f"{layers} layers are needed"
            )
    starts = [sum(counts[:at]) for at in range(stages)]
    return tuple(range(start, start + count) for start, count in zip(starts, counts, strict=True))


def _groups(mixer: Recurrent, ranks: int) -> int:
    if not mixer.groups or mixer.groups % ranks == 0:
        return mixer.groups // ranks
    if mixer.groups_repeat and ranks % mixer.groups == 0:
        return 1
    raise RecipeError(
        f"{mixer.groups} groups of the recurrent state cannot be divided over {ranks} ranks; "
        f"{_divisors(mixer.groups)}"
    )


def _divided(what: str, count: int, ranks: int) -> int:
    if count % ranks:
        raise RecipeError(f"{count} {what} cannot be divided over {ranks} ranks; {_divisors(count)}")
    return count // ranks


def _divisors(count: int) -> str:
    found = [n for n in range(1, min(count, 1024) + 1) if count % n == 0]
    return f"tp / dp must be one of {', '.join(map(str, found))}"
