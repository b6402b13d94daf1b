"""Layers → group → pack → bind: a model, a GPU and a wish become a pool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvplan.recipes.budget import GIB, BudgetLine
from kvplan.recipes.cache_fields import cache_fields
from kvplan.recipes.dtypes import CacheDtype, cache_dtype
from kvplan.recipes.dtypes import state_dtype as state_type
from kvplan.recipes.errors import NoRoomError, RecipeError
from kvplan.recipes.fields import MAX_COUNT
from kvplan.recipes.groups import CachedLayer, LayerGroup, group_layers, window_of
from kvplan.recipes.memory_plan import MAX_BATCH, Demand, GroupPlan, MemoryPlan, StagePlan
from kvplan.recipes.mixers import Attention, Recurrent
from kvplan.recipes.model import Layer, Model
from kvplan.recipes.packing import Packing, pack
from kvplan.recipes.ranks import Ranks, on_rank, stage_layers
from kvplan.recipes.reading import read_model
from kvplan.recipes.stage_budget import GpuMemory
from kvplan.scheduler import CacheGroupFamily, CacheTransferPolicy, CapacityModel, SchedulerConfig
from kvplan.scheduler.config import Role


def plan_memory(
    model: Model | str | Path,
    *,
    gpu: str | None = None,
    gpu_memory_gib: float | None = None,
    cache_gib: float | Sequence[float] | None = None,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    pp_layers: Sequence[int] | None = None,
    kv_dtype: str | None = None,
    state_dtype: str | None = None,
    page_tokens: int = 64,
    prefix_tokens: int | None = None,
    max_num_seqs: int = 64,
    max_context_len: int | None = None,
    max_total_tokens: int | None = None,
    max_scheduled_tokens: int = 8192,
    width: int = 1,
    overlap: int = 0,
    role: Role | str = Role.Fused,
    draft_layers: int | None = None,
    utilisation: float | None = None,
    weights_gib: float | None = None,
    weight_dtype: str | None = None,
    reserve_gib: float | None = None,
    alignment: int = 256,
    padding_limit: float = 0.25,
) -> MemoryPlan:
    """Return the pool of ``model`` on GPUs that are given by name (``gpu``) or size (``gpu_memory_gib``).

    ``cache_gib`` gives what the cache has on each GPU instead (one figure, or one for each pipeline stage);
    with none of the three the plan has no pool and states the demand alone.

    ``tp`` GPUs hold a stage of ``pp``, of which ``dp`` groups attend to their own requests; ``pp_layers`` are the
    layers of each stage. ``kv_dtype`` None is the model's own type, ``state_dtype`` None what the configuration
    says of states, or else fp32, in which they are computed. A page of attention spans ``page_tokens``, a
    prefix-cache page and a state's snapshots ``prefix_tokens`` (None: the same). ``max_num_seqs`` requests,
    none longer than ``max_context_len`` tokens (None: the model's own limit), hold ``max_total_tokens`` (None: the
    product). ``width`` are the tokens of a decode step; ``draft_layers`` None takes the model's own draft
    layers when a step has more than one.

    ``utilisation`` is the share of the GPU that may be used (None: 0.90), ``weights_gib`` and ``reserve_gib`` are
    per GPU, ``weight_dtype`` the type of quantised weights. Layers' parts of a page are rounded up to ``alignment``
    bytes; ``padding_limit`` is the most of an LCM block that may be lost. Raises ``RecipeError``.
    """
    if not isinstance(model, Model):
        model = read_model(model)
    ranks = Ranks(tp, pp, dp)
    prefix = page_tokens if prefix_tokens is None else prefix_tokens
    for name, value, least, most in (
        ("page_tokens", page_tokens, 1, MAX_COUNT),
        ("prefix_tokens", prefix, 1, MAX_COUNT),
        ("max_num_seqs", max_num_seqs, 1, MAX_BATCH),
        ("max_scheduled_tokens", max_scheduled_tokens, 1, MAX_COUNT),
        ("width", width, 1, MAX_COUNT),
        ("alignment", alignment, 1, 2**30),
    ):
        _require_count(name, value, least, most)
    if prefix % page_tokens:
        raise RecipeError(f"prefix_tokens is {prefix}; it must be a multiple of page_tokens ({page_tokens})")
    context = model.max_position_embeddings if max_context_len is None else max_context_len
    if context is not None:
        _require_count("max_context_len", context, 1, MAX_COUNT)
    if max_total_tokens is not None:
        _require_count("max_total_tokens", max_total_tokens, 1, MAX_BATCH * MAX_COUNT)

    drafts = _draft_layers(model, draft_layers, width)
    all_layers = (*model.layers, *drafts)
    cut = stage_layers(len(model.layers), pp, pp_layers)
    stages = (*cut[:-1], range(cut[-1].start, len(all_layers)))  # draft layers follow the last stage
    types = _types(model, kv_dtype, state_dtype)
    cached = _cached(model, all_layers, ranks, context, types)
    if not cached:
        raise RecipeError(f"{model.source}: no layer keeps anything in the cache; there is nothing to plan")
    groups = group_layers(cached, stages, page_tokens, prefix, alignment)
    packing = _packing(groups, stages, padding_limit)

    config = SchedulerConfig(
        prefix_granularity=prefix,
        max_scheduled_tokens=max_scheduled_tokens,
        max_batch_size=ranks.batch(max_num_seqs),
        decode_input_tokens=width,
        overlap_schedule_depth=overlap,
        role=_role(role),
        cache_groups=[g.config(k) for g, k in zip(groups, packing.pages_per_block, strict=True)],
    )
    _set_policies(config)
    try:
        config.validate_capacity_inputs()
    except ValueError as error:
        raise RecipeError(str(error)) from None

    memory = GpuMemory(
        model=model,
        ranks=ranks,
        weight_dtype=weight_dtype,
        config=config,
        gpu=gpu,
        gpu_memory_gib=gpu_memory_gib,
        cache_gib=cache_gib,
        utilisation=utilisation,
        weights_gib=weights_gib,
        reserve_gib=reserve_gib,
    )
    made = []
    for number, layers in enumerate(stages):
        held = tuple(group.held_by(layers) for group in groups)
        lines = memory.stage_lines(number, [all_layers[at] for at in layers], held)
        made.append(_stage(number, pp == 1, layers, lines, held, packing))
    bound = [stage.usable_blocks for stage in made]
    tightest = min(range(pp), key=lambda at: (bound[at] or 0, -made[at].block_bytes))
    usable = bound[tightest]
    if usable is not None:
        config.num_device_pages = usable + 1
        for group in config.cache_groups:
            group.total_pages = usable * group.cache_blocks_per_lcm_block + 1
            if group.total_pages > MAX_COUNT:
                raise RecipeError(
                    f"the cache has {usable:,} LCM blocks, whose pages outgrow 32-bit page ids; larger "
                    "page_tokens are needed"
                )
    demand = None
    if context is not None:
        share = None if max_total_tokens is None else -(-max_total_tokens // dp)
        demand = _demand(config, context, share, made[tightest].block_bytes, usable)
    return MemoryPlan(
        model=model,
        ranks=ranks,
        kv_dtype=types[0].name,
        state_dtype=types[1],
        conv_dtype=types[2],
        stages=tuple(made),
        tightest=tightest,
        packing=packing,
        max_context_len=context,
        config=config,
        usable_blocks=usable,
        demand=demand,
    )


def _require_count(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RecipeError(f"{name} is {value!r}; an integer is needed")
    if value < least:
        raise RecipeError(f"{name} is {value}; at least {least:,} is needed")
    if value > most:
        raise RecipeError(f"{name} is {value}; at most {most:,} is possible")


def _role(role: Role | str) -> Role:
    for known in Role:
        if role == known or (isinstance(role, str) and role.lower() == known.name.lower()):
            return known
    raise RecipeError(f"role is {role!r}; one of {', '.join(r.name for r in Role)} is needed")


def _set_policies(config: SchedulerConfig) -> None:
    """Roles P and D allow one transfer policy for each kind of group (§2)."""
    if config.role != Role.Fused:
        for group in config.cache_groups:
            snapshot = group.family == CacheGroupFamily.State
            group.transfer_policy = (
                CacheTransferPolicy.LatestSnapshot if snapshot else CacheTransferPolicy.FullSuffix
            )


def _draft_layers(model: Model, given: int | None, width: int) -> tuple[Layer, ...]:
    count = given
    if count is None:
        count = model.num_draft_layers if width > 1 else 0
    _require_count("draft_layers", count, 0, 1_000)
    if not count:
        return ()
    if model.draft_layer is None:
        raise RecipeError(
            f"draft_layers is {count}; {model.family} has no draft layers of its own, 0 is needed"
        )
    return (model.draft_layer,) * count


Types = tuple[CacheDtype, str, str]


def _types(model: Model, kv_dtype: str | None, state_dtype: str | None) -> Types:
    """Return the types of cache, state and convolution."""
    if kv_dtype is None or kv_dtype == "auto":
        if model.dtype is None:
            raise RecipeError(f"{model.source}: torch_dtype is missing; give it there, or kv_dtype")
        cache = cache_dtype(model.dtype, f"{model.source}: torch_dtype, which kv_dtype follows,")
    else:
        cache = cache_dtype(kv_dtype)
    state = model.state_dtype or "fp32" if state_dtype is None else state_type(state_dtype)
    conv = model.dtype if model.dtype in ("bf16", "fp16", "fp32") else "bf16"
    return cache, state, conv


def _cached(
    model: Model, layers: Sequence[Layer], ranks: Ranks, max_context_len: int | None, types: Types
) -> list[CachedLayer]:
    cache, state, conv = types
    found = []
    for number, layer in enumerate(layers):
        for mixer in layer.mixers:
            try:
                fields = cache_fields(on_rank(mixer, ranks.attention), cache, state, conv)
            except RecipeError as error:
                raise RecipeError(f"{model.source}: {error}") from None
            window = None
            if isinstance(mixer, Attention):
                window = window_of(mixer, max_context_len, model.source)
            rule = mixer.rule if isinstance(mixer, Recurrent) else None
            found.append(CachedLayer(number, fields, window, rule))
    return found


def _packing(groups: Sequence[LayerGroup], stages: Sequence[range], padding_limit: float) -> Packing:
    """The layout of the stage with the most layers; the others keep its pages per block, as one scheduler serves
    all."""
    longest = max(stages, key=len)
    held = [group.held_by(longest) for group in groups]
    if not all(group.layers for group in held):
        held = list(groups)
    return pack(held, padding_limit)


def _stage(
    number: int,
    alone: bool,
    layers: range,
    lines: tuple[BudgetLine, ...],
    held: Sequence[LayerGroup],
    packing: Packing,
) -> StagePlan:
    sizes = [g.page_bytes * k for g, k in zip(held, packing.pages_per_block, strict=True)]
    block = max(sizes)
    cache_bytes = lines[-1].bytes if lines else None
    usable = None
    if cache_bytes is not None:
        usable = cache_bytes // block - 1  # the first one is the null block
        if usable < 1:
            where = "" if alone else f"stage {number}: "
            raise NoRoomError(
                f"{where}the cache has {cache_bytes / GIB:.3f} GiB, which holds "
                f"{cache_bytes // block} LCM blocks of {block:,} bytes; at least 2 are needed (the null one and "
                f"a usable one), {2 * block / GIB:.3f} GiB"
            )
    groups = tuple(
        GroupPlan(group, group.page_bytes, k, block - size)
        for group, k, size in zip(held, packing.pages_per_block, sizes, strict=True)
    )
    return StagePlan(layers, lines, groups, block, cache_bytes, usable)


def _demand(
    config: SchedulerConfig, context: int, total: int | None, block_bytes: int, usable: int | None
) -> Demand:
    model = CapacityModel(config)
    tokens = config.max_batch_size * context if total is None else total
    if tokens < context:
        raise RecipeError(
            f"max_total_tokens is {tokens}, below max_context_len ({context}); one request would already hold "
            "more tokens than all together"
        )
    pages = model.concurrent_group_pages(tokens, context)
    blocks = tuple(
        -(-count // group.cache_blocks_per_lcm_block)
        for count, group in zip(pages, config.cache_groups, strict=True)
    )
    needed = sum(blocks)
    return Demand(
        requests=config.max_batch_size,
        max_context_len=context,
        total_tokens=tokens,
        pages=tuple(pages),
        blocks=blocks,
        needed_blocks=needed,
        bytes=needed * block_bytes,
        fits=None if usable is None else needed <= usable,
    )
