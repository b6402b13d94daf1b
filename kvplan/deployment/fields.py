"""What a deployment file may say: every field, its other names and its limits.

Imports nothing heavy: the command line makes its flags from these tables before it knows what is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

MAX_TOKENS = 2**31 - 1  # the engine's token counts and page ids are 32-bit integers
MAX_BATCH = 1_000_000
MAX_BYTES = 2**50
MAX_GIB = 2**20
GIB = 2**30


class Kind(Enum):
    """How a field's value is written."""

    COUNT = auto()  # an integer
    SWITCH = auto()  # true or false
    CHOICE = auto()  # one of a few names, in any case
    GIB = auto()  # a number of GiB
    TEXT = auto()  # printable characters


@dataclass(frozen=True, slots=True)
class Field:
    """One field: ``name`` is the engine's, ``aliases`` are what other servers call it.

    Fields of one ``slot`` say the same thing in different ways: at most one of them is given.
    """

    name: str
    kind: Kind
    help: str
    aliases: tuple[str, ...] = ()
    least: int = 0
    most: int = MAX_TOKENS
    choices: tuple[str, ...] = ()
    slot: str = ""
    synonyms: tuple[tuple[str, str], ...] = ()
    """Other words for the choices, in small letters, and the choice that each means."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name and its aliases."""
        return (self.name, *self.aliases)

    @property
    def place(self) -> str:
        """What at most one given name may fill: the slot, or the field by itself."""
        return self.slot or self.name


POOL = "the pool"
HOST = "the host pool"

SCHEDULER_FIELDS = (
    Field("prefix_granularity", Kind.COUNT, "Tokens of a prefix-cache page, P.", least=1),
    Field(
        "max_scheduled_tokens",
        Kind.COUNT,
        "Tokens that a round may schedule, which bounds a prefill chunk.",
        ("chunked_prefill_size", "max_num_batched_tokens", "max_num_tokens"),
        least=1,
    ),
    Field(
        "max_batch_size",
        Kind.COUNT,
        "Requests that may hold pages at once.",
        ("max_num_seqs", "max_running_requests"),
        least=1,
        most=MAX_BATCH,
    ),
    Field(
        "decode_input_tokens",
        Kind.COUNT,
        "Tokens of a decode step: 1, or the width of a speculative one.",
        ("speculative_num_draft_tokens",),
        least=1,
    ),
    Field(
        "overlap_schedule_depth",
        Kind.COUNT,
        "1 if a round is planned before the last one's results are in, else 0.",
        most=1,
    ),
    Field(
        "role",
        Kind.CHOICE,
        "What the engine does; prefill and decode are P and D.",
        choices=("P", "D", "Fused"),
        synonyms=(("prefill", "P"), ("decode", "D")),
    ),
    Field("disable_l2_cache", Kind.SWITCH, "Leave the host pool unused."),
    Field("enable_l3_storage", Kind.SWITCH, "Use a storage tier behind the host pool."),
    Field("enable_kv_cache_events", Kind.SWITCH, "Report what the prefix cache stores and removes."),
    Field(
        "enable_mixed_prefill_decode",
        Kind.SWITCH,
        "Let a round hold prefill chunks and decode steps together.",
        ("enable_mixed_chunk",),
    ),
    Field(
        "disable_prefix_cache",
        Kind.SWITCH,
        "Reuse nothing of earlier requests.",
        ("disable_radix_cache",),
    ),
    Field("prefix_replay_tokens", Kind.COUNT, "Tokens computed again after a prefix hit."),
)
REQUIRED = ("prefix_granularity", "max_scheduled_tokens", "max_batch_size")

POOL_FIELDS = (
    Field("pool_blocks", Kind.COUNT, "Pool size in usable LCM blocks.", least=1, slot=POOL),
    Field(
        "num_device_pages",
        Kind.COUNT,
        "Pool size in LCM blocks, the null one counted in.",
        least=2,
        slot=POOL,
    ),
    Field(
        "pool_tokens",
        Kind.COUNT,
        "Pool size as the longest request that fits alone, in tokens.",
        least=1,
        slot=POOL,
    ),
    Field("pool_gib", Kind.GIB, "Pool size in GiB of memory.", ("memory_gib",), most=MAX_GIB, slot=POOL),
    Field(
        "host_blocks",
        Kind.COUNT,
        "Host pool size in usable LCM blocks; 0 for none.",
        ("host_pages",),
        slot=HOST,
    ),
    Field("num_host_pages", Kind.COUNT, "Host pool size in LCM blocks, the null one counted in.", slot=HOST),
    Field("host_gib", Kind.GIB, "Host pool size in GiB of memory.", most=MAX_GIB, slot=HOST),
)

GROUPS = "cache_groups"

GROUP_FIELDS = (
    Field("group_id", Kind.TEXT, "The group's name.", ("name",)),
    Field("block_granularity", Kind.COUNT, "Tokens a page.", ("page_size", "block_size"), least=1),
    Field("total_pages", Kind.COUNT, "Pages of the group, the null one counted in.", least=1),
    Field("retention", Kind.CHOICE, "How long a token is kept.", choices=("FullHistory", "SlidingWindow")),
    Field(
        "sliding_window_tokens",
        Kind.COUNT,
        "Tokens a query looks back, itself included.",
        ("window", "sliding_window"),
        least=1,
    ),
    Field("family", Kind.CHOICE, "What the pages hold.", choices=("History", "State")),
    Field("cache_blocks_per_lcm_block", Kind.COUNT, "Pages an LCM block.", ("pages_per_block",), least=1),
    Field(
        "transfer_policy",
        Kind.CHOICE,
        "What a prefill worker sends of the group.",
        choices=("Unspecified", "FullSuffix", "LatestSnapshot"),
    ),
    Field("shard_count", Kind.COUNT, "Buckets the pages of an LCM block are spread over.", least=1),
    Field("replayable", Kind.SWITCH, "Whether the group's pages may be computed again after a hit."),
    Field("bytes_per_page", Kind.COUNT, "Bytes a page, all its layers on this GPU.", most=MAX_BYTES),
)
REQUIRED_IN_GROUP = ("group_id", "block_granularity")

FLAG_FIELDS = SCHEDULER_FIELDS + POOL_FIELDS


def flag(name: str) -> str:
    """Return the flag of a field's name: ``max_num_seqs`` is ``--max-num-seqs``."""
    return "--" + name.replace("_", "-")
