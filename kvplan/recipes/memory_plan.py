"""What a plan says: stages, groups, budget and demand, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvplan.recipes.budget import BudgetLine
from kvplan.recipes.fields import MAX_COUNT
from kvplan.recipes.groups import LayerGroup
from kvplan.recipes.model import Model
from kvplan.recipes.packing import Packing
from kvplan.recipes.ranks import Ranks
from kvplan.scheduler import CapacityModel, SchedulerConfig

if TYPE_CHECKING:
    from kvplan.deployment import Deployment

MAX_BATCH = 1_000_000


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A cache group on one GPU of a stage.

    ``page_bytes`` are all layers of the stage that are in the group. ``padding_bytes`` are what the group's pages
    leave unused of an LCM block.
    """

    group: LayerGroup
    page_bytes: int
    pages_per_block: int
    padding_bytes: int


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One GPU of a pipeline stage. ``usable_blocks`` counts no null block; None without a budget."""

    layers: range
    budget: tuple[BudgetLine, ...]
    groups: tuple[GroupPlan, ...]
    block_bytes: int
    cache_bytes: int | None
    usable_blocks: int | None

    @property
    def bytes_per_token(self) -> int:
        """Bytes that each token of a context takes for as long as its request lives: full groups alone."""
        return sum(one.group.token_bytes for one in self.groups if one.group.kind == "full")

    @property
    def row_bytes_per_token(self) -> int:
        """Bytes that each token writes, those that leave a window again counted in."""
        return sum(one.group.token_bytes for one in self.groups)

    @property
    def state_bytes_per_snapshot(self) -> int:
        """Bytes of one snapshot of all recurrent layers."""
        return sum(one.group.snapshot_bytes for one in self.groups)

    def held_bytes(self, requests: int, tokens: int) -> int:
        """Bytes of the rows that ``requests`` requests of ``tokens`` tokens hold: no page, no rounding.

        Windows are capped exactly and a state is one snapshot; what an engine takes more is its slack.
        """
        rows = sum(one.group.token_bytes * min(tokens, one.group.window or tokens) for one in self.groups)
        return requests * (rows + self.state_bytes_per_snapshot)

    def unwindowed_bytes(self, requests: int, tokens: int) -> int:
        """As ``held_bytes``, if every layer with a window kept the whole context."""
        return requests * (tokens * self.row_bytes_per_token + self.state_bytes_per_snapshot)


@dataclass(frozen=True, slots=True)
class Demand:
    """What the wanted requests need at once on one attention replica (engine.md §3), by group.

    ``blocks`` are usable LCM blocks, ``bytes`` those of the tightest stage. ``fits`` is None without a pool.
    """

    requests: int
    max_context_len: int
    total_tokens: int
    pages: tuple[int, ...]
    blocks: tuple[int, ...]
    needed_blocks: int
    bytes: int
    fits: bool | None


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The pool of a model on its GPUs; every figure is for one GPU.

    ``stages`` are the pipeline's, ``tightest`` the number of the one whose blocks bind, and ``usable_blocks`` are
    those blocks, the null one off (None: no budget was given). ``config`` is the scheduler's, with its pool if there
    is one; its ``max_batch_size`` is one attention replica's. ``demand`` is what the wanted requests need (None
    where no context length is known).
    """

    model: Model
    ranks: Ranks
    kv_dtype: str
    state_dtype: str
    conv_dtype: str
    stages: tuple[StagePlan, ...]
    tightest: int
    packing: Packing
    max_context_len: int | None
    config: SchedulerConfig
    usable_blocks: int | None
    demand: Demand | None

    @property
    def stage(self) -> StagePlan:
        """The stage that binds."""
        return self.stages[self.tightest]

    @property
    def bytes_per_token(self) -> int:
        """See ``StagePlan``, all stages together."""
        return sum(stage.bytes_per_token for stage in self.stages)

    @property
    def row_bytes_per_token(self) -> int:
        """See ``StagePlan``, all stages together."""
        return sum(stage.row_bytes_per_token for stage in self.stages)

    @property
    def state_bytes_per_snapshot(self) -> int:
        """See ``StagePlan``, all stages together."""
        return sum(stage.state_bytes_per_snapshot for stage in self.stages)

    @property
    def state_bytes_per_request(self) -> int:
        """Bytes of recurrent state that a request holds at its worst moment, all stages together (§3)."""
        pages = CapacityModel(self.config).single_request_group_pages(self.max_context_len or MAX_COUNT)
        return sum(
            count * one.group.snapshot_bytes
            for stage in self.stages
            for count, one in zip(pages, stage.groups, strict=True)
        )

    @property
    def flat_tokens(self) -> int | None:
        """Tokens that the tightest stage's cache holds by their bytes alone; None without a budget."""
        cache, row = self.stage.cache_bytes, self.stage.row_bytes_per_token
        return None if cache is None or not row else cache // row

    def requests_at_once(self, max_context_len: int | None = None) -> int | None:
        """The most requests of that length that fit at once on one attention replica (§3).

        Submitted together they all finish and none is retracted, if each declares its budget
        (``max_new_tokens``); one may wait some rounds for a page of a window. None without a pool. One request
        counts as the engine admits it alone.
        """
        context = self._context(max_context_len)
        usable = self.usable_blocks
        if usable is None or context is None:
            return None
        found = largest(lambda n: self._need(n, context, n * context) <= usable, MAX_BATCH)
        alone = CapacityModel(self.config).max_single_request_tokens(usable)
        return found or int(context <= alone)

    def max_total_tokens(self, max_context_len: int | None = None) -> int | None:
        """The most tokens that max_batch_size requests can hold together in the pool; None without one."""
        context = self._context(max_context_len)
        usable = self.usable_blocks
        if usable is None or context is None:
            return None
        batch = self.config.max_batch_size
        return largest(lambda total: self._need(batch, context, total) <= usable, batch * context)

    def longest_request(self) -> int | None:
        """The longest request that the pool admits, in tokens; None without a pool."""
        if self.usable_blocks is None:
            return None
        return CapacityModel(self.config).max_single_request_tokens(self.usable_blocks)

    def binding_group(self) -> tuple[str, str] | None:
        """Name and kind of the group whose demand takes most of the blocks; None without a demand."""
        if self.demand is None:
            return None
        at = max(range(len(self.demand.blocks)), key=self.demand.blocks.__getitem__)
        group = self.stage.groups[at].group
        return group.group_id, group.kind

    def deployment_fields(self) -> dict[str, object]:
        """Return the plan as the fields of a deployment file."""
        config = self.config
        fields: dict[str, object] = {
            "prefix_granularity": config.prefix_granularity,
            "max_scheduled_tokens": config.max_scheduled_tokens,
            "max_batch_size": config.max_batch_size,
            "decode_input_tokens": config.decode_input_tokens,
            "overlap_schedule_depth": config.overlap_schedule_depth,
            "role": config.role.name,
        }
        if self.usable_blocks is not None:
            fields["pool_blocks"] = self.usable_blocks
        return fields | {"cache_groups": [_table(one) for one in self.stage.groups]}

    def to_deployment(self, flags: Mapping[str, object] = {}, pool_source: str = "") -> Deployment:
        """Return the deployment of the tightest stage, with ``flags`` (as on a command line, by name) over it.

        ``pool_source`` is what the deployment says of where its pool comes from. Raises ``DeploymentError``.
        """
        from kvplan.deployment import load_deployment
        from kvplan.deployment.fields import FLAG_FIELDS, POOL

        places = {name: known.place for known in FLAG_FIELDS for name in known.names}
        given = {
            places.get(name.replace("-", "_"), name) for name, value in flags.items() if value is not None
        }
        own = {
            name: value
            for name, value in self.deployment_fields().items()
            if places.get(name, name) not in given
        }
        deployment = load_deployment(None, own | dict(flags))
        # What no flag gave comes from here, and no flag's name must stand for it.
        made = {"num_device_pages" if places.get(name) == POOL else name for name in own}
        sources = {
            name: (pool_source or self.title() if name == "num_device_pages" else self.title())
            if name in made
            else source
            for name, source in deployment.sources.items()
        }
        return replace(deployment, sources=sources)

    def to_toml(self) -> str:
        """Return a deployment file that ``kvplan.deployment.load_deployment`` reads."""
        return f"# {self.title()}, by kvplan\n" + self.to_deployment().to_toml()

    def title(self) -> str:
        """What the plan is for, in one line."""
        ranks = f"tp {self.ranks.tp}, pp {self.ranks.pp}, dp {self.ranks.dp}"
        return f"{self.model.name}, {ranks}, cache {self.kv_dtype}"

    def _context(self, given: int | None) -> int | None:
        return self.max_context_len if given is None else given

    def _need(self, requests: int, context: int, total: int) -> int:
        model = CapacityModel(replace(self.config, max_batch_size=requests))
        return model.lcm_blocks_needed_for(model.concurrent_group_pages(total, context))


def _table(one: GroupPlan) -> dict[str, object]:
    group = one.group
    table: dict[str, object] = {"group_id": group.group_id, "block_granularity": group.span}
    if group.kind == "state":
        table["family"] = "State"
    if group.kind == "sliding":
        table |= {"retention": "SlidingWindow", "sliding_window_tokens": group.window}
    if one.pages_per_block > 1:
        table["cache_blocks_per_lcm_block"] = one.pages_per_block
    table["bytes_per_page"] = one.page_bytes  # 0 where the stage has no layer of the group
    return table


def largest(holds: Callable[[int], bool], most: int) -> int:
    """Return the largest count of 1 to ``most`` for which ``holds`` is true; 0 if none. It must be monotone."""
    fits, beyond = 0, most + 1
    while beyond - fits > 1:
        middle = (fits + beyond) // 2
        if holds(middle):
            fits = middle
        else:
            beyond = middle
    return fits
