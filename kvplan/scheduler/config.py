"""What a scheduler is configured with, and what makes a configuration invalid (engine.md §1, §2)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import IntEnum

from kvplan.scheduler.cache.geometry import ceil_div


class CacheRetention(IntEnum):
    """How long a group keeps a token: for the whole request, or while it is inside a window."""

    FullHistory = 0
    SlidingWindow = 1


class CacheGroupFamily(IntEnum):
    """What a group's pages hold: rows per token, or snapshots of a recurrent state."""

    History = 0
    State = 1


class CacheTransferPolicy(IntEnum):
    """What of a group a prefill worker sends to a decode worker."""

    Unspecified = 0
    FullSuffix = 1
    LatestSnapshot = 2


class GroupKind(IntEnum):
    """The three kinds of cache group (engine.md §1)."""

    FULL = 0
    SLIDING = 1
    STATE = 2


# A state group keeps the newest snapshot and the one before it: a window of two (engine.md §3, §5).
STATE_WINDOW = 2


def _require_int(owner: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{owner}{name} is {value!r}; an integer is needed")


def _require_member(owner: str, name: str, value: object, kind: type[IntEnum]) -> None:
    if not isinstance(value, kind):
        names = ", ".join(member.name for member in kind)
        raise ValueError(f"{owner}{name} is {value!r}; a {kind.__name__} is needed ({names})")


@dataclass
class CacheGroupConfig:
    """One cache group: the layers whose pages share a block table.

    ``block_granularity`` is in tokens a page, ``sliding_window_tokens`` in tokens, ``total_pages`` in pages
    (the null page included), ``cache_blocks_per_lcm_block`` in pages an LCM block.
    """

    group_id: str = ""
    block_granularity: int = 0
    total_pages: int = 0
    retention: CacheRetention = CacheRetention.FullHistory
    sliding_window_tokens: int | None = None
    family: CacheGroupFamily = CacheGroupFamily.History
    cache_blocks_per_lcm_block: int = 1
    transfer_policy: CacheTransferPolicy = CacheTransferPolicy.Unspecified
    shard_count: int = 1
    replayable: bool = False

    @property
    def kind(self) -> GroupKind:
        """The group's kind (engine.md §1)."""
        if self.family == CacheGroupFamily.State:
            return GroupKind.STATE
        if self.retention == CacheRetention.SlidingWindow:
            return GroupKind.SLIDING
        return GroupKind.FULL

    @property
    def window(self) -> int:
        """Tokens a query may look back, itself included; 0 for a full group, 2 for a state group (§3)."""
        kind = self.kind
        if kind == GroupKind.STATE:
            return STATE_WINDOW
        return (self.sliding_window_tokens or 0) if kind == GroupKind.SLIDING else 0

    @property
    def lookback_pages(self) -> int:
        """Pages right below a boundary that a hit there needs (§3, §6); 0 for a full group."""
        if self.kind == GroupKind.FULL:
            return 0
        return ceil_div(self.window - 1, self.block_granularity)

    def validate(self) -> None:
        """Raise ``ValueError`` naming the group and field if the group is invalid by itself (§2)."""
        self._validate_sizing()
        where = f"cache group {self.group_id!r}: "
        _require_int(where, "total_pages", self.total_pages)
        if self.total_pages < 1:
            raise ValueError(f"{where}total_pages is {self.total_pages}; at least 1 is needed")

    def _validate_sizing(self) -> None:
        if not self.group_id:
            raise ValueError("cache group: group_id is empty; every group needs a name")
        where = f"cache group {self.group_id!r}: "
        for name in ("block_granularity", "cache_blocks_per_lcm_block", "shard_count"):
            value = getattr(self, name)
            _require_int(where, name, value)
            if value <= 0:
                raise ValueError(f"{where}{name} is {value}; at least 1 is needed")
        if self.cache_blocks_per_lcm_block % self.shard_count:
            raise ValueError(
                f"{where}shard_count is {self.shard_count}; it must divide cache_blocks_per_lcm_block "
                f"({self.cache_blocks_per_lcm_block})"
            )
        _require_member(where, "retention", self.retention, CacheRetention)
        _require_member(where, "family", self.family, CacheGroupFamily)
        _require_member(where, "transfer_policy", self.transfer_policy, CacheTransferPolicy)
        if self.sliding_window_tokens is not None:
            _require_int(where, "sliding_window_tokens", self.sliding_window_tokens)
        windowed = self.retention == CacheRetention.SlidingWindow
        if windowed and (self.sliding_window_tokens is None or self.sliding_window_tokens <= 0):
            raise ValueError(
                f"{where}sliding_window_tokens is {self.sliding_window_tokens}; a SlidingWindow group needs "
                "a window of at least 1 token"
            )
        if self.family == CacheGroupFamily.State and windowed:
            raise ValueError(
                f"{where}retention is SlidingWindow on a State group; a State group takes FullHistory"
            )
        if self.replayable and self.kind != GroupKind.SLIDING:
            raise ValueError(
                f"{where}replayable is set on a {self.kind.name.lower()} group; only a sliding History group "
                "can be replayable"
            )


@dataclass
class SchedulerConfig:
    """Everything a scheduler is configured with; the fields' names are the engine's.

    ``prefix_granularity``, ``max_scheduled_tokens``, ``decode_input_tokens`` and ``prefix_replay_tokens`` are in
    tokens; ``num_device_pages`` and ``num_host_pages`` in LCM blocks, each with the null one counted in.
    """

    class Role(IntEnum):
        """What an engine does: prefill only, decode only, or both."""

        P = 0
        D = 1
        Fused = 2

    prefix_granularity: int = 0
    num_device_pages: int = 0
    num_host_pages: int = 0
    max_scheduled_tokens: int = 0
    max_batch_size: int = 0
    decode_input_tokens: int = 1
    overlap_schedule_depth: int = 0
    role: Role = Role.Fused
    cache_groups: list[CacheGroupConfig] = field(default_factory=list)
    disable_l2_cache: bool = False
    enable_l3_storage: bool = False
    enable_kv_cache_events: bool = False
    enable_mixed_prefill_decode: bool = False
    disable_prefix_cache: bool = False
    prefix_replay_tokens: int = 0

    def __setattr__(self, name: str, value: object) -> None:
        # A misspelt field would otherwise be taken in silence and the default be used.
        if name not in _SCHEDULER_FIELDS:
            raise AttributeError(f"SchedulerConfig has no field {name!r}")
        object.__setattr__(self, name, value)

    @property
    def has_host_cache(self) -> bool:
        """Whether there is a host tier (§2)."""
        return not self.disable_l2_cache and self.num_host_pages > 1

    @property
    def replay_window(self) -> int:
        """``W``: the largest window over the replayable groups, in tokens; 0 without one (§2)."""
        return max((g.window for g in self.cache_groups if g.replayable), default=0)

    @property
    def protected_tokens(self) -> int:
        """Tokens of decode work in flight that no one may take: ``prot`` (§3)."""
        return 0 if self.role == Role.P else self.overlap_schedule_depth * self.decode_input_tokens

    def validate_capacity_inputs(self) -> None:
        """Raise ``ValueError`` naming the first sizing field that is invalid, in the order of §2."""
        self._at_least("prefix_granularity", 1)
        if not self.cache_groups:
            raise ValueError("cache_groups is empty; at least one cache group is needed")
        self._at_least("max_batch_size", 0)
        self._at_least("decode_input_tokens", 0)
        self._at_least("max_scheduled_tokens", 1)
        _require_int("", "overlap_schedule_depth", self.overlap_schedule_depth)
        if self.overlap_schedule_depth not in (0, 1):
            raise ValueError(f"overlap_schedule_depth is {self.overlap_schedule_depth}; 0 or 1 is needed")
        if self.overlap_schedule_depth and not self.decode_input_tokens:
            raise ValueError(
                "decode_input_tokens is 0; overlap_schedule_depth 1 needs at least 1 decode_input_tokens"
            )
        _require_member("", "role", self.role, Role)
        for group in self.cache_groups:
            self._validate_group(group)
        self._validate_replay()

    def validate(self) -> None:
        """Raise ``ValueError`` naming the field if no scheduler can be made of this (§2)."""
        self.validate_capacity_inputs()
        for name in ("num_device_pages", "num_host_pages"):
            _require_int("", name, getattr(self, name))
        if self.num_device_pages <= 1:
            raise ValueError(
                f"num_device_pages is {self.num_device_pages}; at least 2 are needed (page 0 is the null page)"
            )
        for group in self.cache_groups:
            group.validate()
        self._at_least("prefix_replay_tokens", 0)
        if self.enable_l3_storage and not self.has_host_cache:
            raise ValueError(
                "enable_l3_storage is set without a host cache; it needs num_host_pages above 1 and "
                "disable_l2_cache unset"
            )
        seen: set[str] = set()
        for group in self.cache_groups:
            if group.group_id in seen:
                raise ValueError(f"cache group {group.group_id!r}: group_id is used twice; names must differ")
            seen.add(group.group_id)

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        _require_int("", name, value)
        if value < least:
            raise ValueError(f"{name} is {value}; at least {least} is needed")

    def _validate_group(self, group: CacheGroupConfig) -> None:
        group._validate_sizing()
        where = f"cache group {group.group_id!r}: "
        if self.prefix_granularity % group.block_granularity:
            raise ValueError(
                f"{where}block_granularity is {group.block_granularity}; it must divide prefix_granularity "
                f"({self.prefix_granularity})"
            )
        if self.role != Role.Fused:
            wanted = (
                CacheTransferPolicy.LatestSnapshot
                if group.kind == GroupKind.STATE
                else CacheTransferPolicy.FullSuffix
            )
            if group.transfer_policy != wanted:
                raise ValueError(
                    f"{where}transfer_policy is {group.transfer_policy.name}; role {self.role.name} needs "
                    f"{wanted.name} for a {group.kind.name.lower()} group"
                )
        if group.kind == GroupKind.STATE and self.max_scheduled_tokens < self.prefix_granularity:
            raise ValueError(
                f"{where}max_scheduled_tokens is {self.max_scheduled_tokens}; a state group needs at least "
                f"prefix_granularity ({self.prefix_granularity})"
            )

    def _validate_replay(self) -> None:
        window = self.replay_window
        if not window:
            return
        least = window + max(window, self.prefix_granularity)
        if self.max_scheduled_tokens < least:
            raise ValueError(
                f"max_scheduled_tokens is {self.max_scheduled_tokens}; replayable groups with a window of "
                f"{window} tokens need at least {least}"
            )
        for group in self.cache_groups:
            if group.kind == GroupKind.STATE:
                raise ValueError(
                    f"cache group {group.group_id!r}: family State cannot stand beside a replayable group"
                )


Role = SchedulerConfig.Role
_SCHEDULER_FIELDS = frozenset(f.name for f in fields(SchedulerConfig))
