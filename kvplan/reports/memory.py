"""The memory of a model's GPUs: text for people, and the same figures for programs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import msgspec
from rich.text import Text

from kvplan.recipes import MemoryPlan, StagePlan
from kvplan.reports.columns import GAP, Column, folded, table
from kvplan.reports.replay_units import counted, grouped, percent
from kvplan.reports.sizing import styled
from kvplan.reports.sizing_units import blocks, size
from kvplan.sizing import PoolSize

BAR = 24


def memory_text(plan: MemoryPlan, width: int = 80, layout: bool = True) -> Text:
    """Return the budget at ``width`` columns, and with ``layout`` what fills an LCM block; an empty line behind."""
    stage = plan.stage
    lines = [plan.title(), *_costs(plan, width), *_replicas(plan, width), ""]
    if len(stage.budget) > 1:
        lines += [*_budget(plan, stage, width), ""]
    if len(plan.stages) > 1:
        lines += [*_stages(plan, width), ""]
    if layout:
        lines += [*layout_lines(plan, width), ""]
    report = Text(overflow="ignore", no_wrap=True)
    report.append("\n".join(lines) + "\n")
    return report


@dataclass(frozen=True, slots=True)
class NarrowCache:
    """A cache of a type with fewer bits: how many such requests it holds at once (None: any number).

    That is in a pool planned for ``max_batch_size`` requests, the wanted ones.
    """

    kv_dtype: str
    requests_at_once: int | None
    needed_blocks: int
    max_batch_size: int


@dataclass(frozen=True, slots=True)
class MoreGpus:
    """The fewest GPUs to divide a layer over, doubling ``tp``, on which what is asked fits."""

    tp: int
    needed_blocks: int
    usable_blocks: int


def more_gpus_try(more: MoreGpus | None, width: int = 80) -> Text:
    """Return the line that says so; nothing for None."""
    if more is None:
        return Text("")
    use = f"{grouped(more.needed_blocks)} of {blocks(more.usable_blocks)} on each GPU"
    return styled(folded("try", f"--tp\u00a0{more.tp}\u00a0\u00a0 fits: {use}", width))


def layers_of(plan: MemoryPlan) -> dict[str, int]:
    """Return, by group, the number of its layers on the stage that binds."""
    return {one.group.group_id: len(one.group.layers) for one in plan.stage.groups}


def narrow_try(narrow: NarrowCache | None, width: int = 80) -> Text:
    """Return the line that says so; nothing for None."""
    if narrow is None:
        return Text("")
    count, wanted = narrow.requests_at_once, narrow.max_batch_size
    which = f"{counted(wanted, 'request')} at once: it fits"
    if count is not None and count < wanted:
        which = f"{counted(count, 'such request')} at once"
    flags = f"--kv-dtype {narrow.kv_dtype}".replace(" ", "\u00a0")
    return styled(folded("try", f"{flags}\u00a0\u00a0 {which}", width))


def most_text(most: int | None, result: PoolSize, replicas: int, width: int = 80) -> Text:
    """Return the line on the most requests that a GPU can be planned for, where fewer than fit the pool."""
    pool = result.pool
    if most is None or pool is None or most == (pool.requests_at_once or 0) * replicas:
        return Text("")
    wanted = grouped(result.max_batch_size * replicas)
    text = (
        f"more requests than {wanted} leave a GPU less for the cache: planned for them (--max-num-seqs), at most "
        f"{counted(most, 'such request')} fit"
    )
    return styled(folded("", text, width))


def memory_json(
    plan: MemoryPlan,
    result: object,
    narrow: NarrowCache | None = None,
    gpus: MoreGpus | None = None,
    most: int | None = None,
    **more: object,
) -> str:
    """Return ``result`` (that of a command) as JSON, ``more`` and the plan, under "memory"; bytes, tokens, pages."""
    document = {**msgspec.to_builtins(result), **more}
    held = {one.group.group_id: list(one.group.layers) for one in plan.stage.groups}
    if "groups" in document:
        document["groups"] = [{**group, "layers": held[group["group_id"]]} for group in document["groups"]]
    document["memory"] = {
        "model": plan.model.name,
        "family": plan.model.family,
        "parameters": plan.model.parameters,
        "max_position_embeddings": plan.model.max_position_embeddings,
        "tp": plan.ranks.tp,
        "pp": plan.ranks.pp,
        "dp": plan.ranks.dp,
        "kv_dtype": plan.kv_dtype,
        "state_dtype": plan.state_dtype,
        "bytes_per_token": plan.bytes_per_token,
        "row_bytes_per_token": plan.row_bytes_per_token,
        "state_bytes_per_snapshot": plan.state_bytes_per_snapshot,
        "usable_blocks": plan.usable_blocks,
        "tightest_stage": plan.tightest,
        "stages": [_stage_values(stage) for stage in plan.stages],
        "narrow_cache": msgspec.to_builtins(narrow),
        "more_gpus": msgspec.to_builtins(gpus),
        "largest_batch": most,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def of_all_replicas(result: PoolSize, plan: MemoryPlan, batch_flag: str) -> PoolSize:
    """Return ``result``, one attention replica's, with what to try in terms of all replicas together.

    ``batch_flag`` is the flag that the batch size was given by.
    """
    replicas = plan.ranks.dp

    def scaled(flags: dict[str, int | float]) -> dict[str, int | float]:
        shared = {"--max-batch-size": batch_flag, "--max-total-tokens": "--max-total-tokens"}
        return {
            shared.get(name, name): value * replicas if name in shared else value
            for name, value in flags.items()
        }

    alternatives = tuple(
        replace(one, flags=scaled(one.flags), beyond_flags=scaled(one.beyond_flags))
        for one in result.alternatives
    )
    return replace(result, alternatives=alternatives)


def _replicas(plan: MemoryPlan, width: int) -> list[str]:
    if plan.ranks.dp == 1:
        return []
    batch = plan.config.max_batch_size
    text = (
        f"each of {plan.ranks.dp} attention replicas serves {grouped(batch)} of the requests; below are one's"
    )
    return folded("", text, width, indent=2)


def _stage_values(stage: StagePlan) -> dict[str, object]:
    return {
        "first_layer": stage.layers.start,
        "layers": len(stage.layers),
        "budget": [msgspec.to_builtins(line) for line in stage.budget],
        "block_bytes": stage.block_bytes,
        "usable_blocks": stage.usable_blocks,
        "groups": [
            {
                "group_id": one.group.group_id,
                "kind": one.group.kind,
                "layers": list(one.group.layers),
                "block_granularity": one.group.span,
                "sliding_window_tokens": one.group.window,
                "cache_blocks_per_lcm_block": one.pages_per_block,
                "bytes_per_page": one.page_bytes,
                "padding_bytes_per_block": one.padding_bytes,
                "fields": [msgspec.to_builtins(f) | {"bytes": f.bytes} for f in one.group.fields],
            }
            for one in stage.groups
        ],
    }


def _costs(plan: MemoryPlan, width: int) -> list[str]:
    windowed = plan.row_bytes_per_token - plan.bytes_per_token
    parts = [f"a token costs {grouped(plan.bytes_per_token)} B"]
    if windowed and not plan.bytes_per_token:
        parts = [f"a token costs {grouped(windowed)} B while it is in a window"]
    elif windowed:
        parts.append(f"{grouped(windowed)} B more while it is in a window")
    if plan.state_bytes_per_snapshot:
        parts.append(f"a snapshot of the recurrent state {size(plan.state_bytes_per_snapshot)}")
    where = "on each GPU" if plan.ranks.tp > 1 else "on one GPU"
    if plan.ranks.pp > 1:
        where += ", all stages together"
    lines = folded("", f"{'; '.join(parts)}; {where} (exact)", width, indent=2)
    own, context = plan.model.max_position_embeddings, plan.max_context_len
    if own is not None and context is not None and context > own:
        beyond = f"{counted(context, 'token')} are beyond the {grouped(own)} of its max_position_embeddings"
        lines += folded("", beyond, width, indent=2)
    return lines


def _budget(plan: MemoryPlan, stage: StagePlan, width: int) -> list[str]:
    title = "Memory on each GPU" if plan.ranks.pp == 1 else f"A GPU of stage {plan.tightest}"
    columns = [
        Column(title, [f"  {line.name}" for line in stage.budget]),
        Column("GiB", [f"{line.gib:,.2f}" for line in stage.budget], right=True),
    ]
    header, *rows = table(columns, width)
    indent = max(map(len, rows)) + len(GAP)
    lines = [header]
    for row, line in zip(rows, stage.budget, strict=True):
        lines += folded(row, f"{line.basis.value}: {line.note}", width, indent)
    return lines


def _stages(plan: MemoryPlan, width: int) -> list[str]:
    numbers = range(len(plan.stages))
    usable = [stage.usable_blocks for stage in plan.stages]
    columns = [
        Column("Stage", [f"  {at}" for at in numbers]),
        Column("layers", [f"{s.layers.start} to {s.layers.stop - 1}" for s in plan.stages], right=True),
        Column("a token", [f"{grouped(s.bytes_per_token)} B" for s in plan.stages], right=True),
        Column("cache", [size(s.cache_bytes) for s in plan.stages], right=True, drop=1),
        Column("holds", ["unknown" if n is None else blocks(n) for n in usable], right=True),
        Column("", ["binds" if at == plan.tightest and usable[at] is not None else "" for at in numbers]),
    ]
    return table(columns, width)


def layout_lines(plan: MemoryPlan, width: int = 80) -> list[str]:
    """Return what fills an LCM block of the stage that binds, group by group: # is used, . is padding."""
    stage = plan.stage
    groups, block = stage.groups, stage.block_bytes
    shares = [1 - one.padding_bytes / block for one in groups]
    pages = [counted(one.pages_per_block, "page") for one in groups]
    columns = [
        Column("One LCM block", [f"  {one.group.group_id}" for one in groups]),
        Column(
            "pages", [f"{count} of {size(one.page_bytes)}" for count, one in zip(pages, groups, strict=True)]
        ),
        Column("used", [size(block - one.padding_bytes) for one in groups], right=True, drop=1),
        Column("# used", [("#" * int(BAR * share + 1e-9)).ljust(BAR, ".") for share in shares], drop=2),
        Column(". padding", [_padded(one.padding_bytes, block) for one in groups], right=True),
    ]
    whole = size(block)
    if len(plan.stages) == 1:
        whole += f": {counted(plan.packing.planes, 'plane')} of {size(plan.packing.plane_bytes)}"
    return [*table(columns, width), *folded("", whole, width, indent=2)]


def held_lines(plan: MemoryPlan, width: int = 80) -> list[str]:
    """Return what the wanted requests' rows take by themselves, where windows make a difference."""
    demand, stage = plan.demand, plan.stage
    if demand is None or demand.total_tokens != demand.requests * demand.max_context_len:
        return []
    capped = stage.held_bytes(demand.requests, demand.max_context_len)
    whole = stage.unwindowed_bytes(demand.requests, demand.max_context_len)
    if capped == whole:
        return []
    text = (
        f"the wanted tokens take {size(capped)} with each window capped exactly, {size(whole)} if every layer "
        "kept the whole context (exact: rows alone, no pages)"
    )
    return folded("", text, width, indent=2)


def _padded(padding: int, block: int) -> str:
    return f"{size(padding)} ({percent(padding / block)})" if padding else "none"
