"""What comes in: results of forwards, acks of transfers, PD events (``api.md``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


class ForwardEvent:
    """What a forward, or the runtime, says of one request."""

    @dataclass(slots=True)
    class ExtendResult:
        """A result has landed, with the sampled tokens (none for an incomplete chunk)."""

        request_id: str = ""
        tokens: Sequence[int] = ()
        spec_candidate_ids: Sequence[int] = ()

    @dataclass(slots=True)
    class Finish:
        """The request has its last token."""

        request_id: str = ""

    @dataclass(slots=True)
    class Abort:
        """The request ends; its pages must not be reused."""

        request_id: str = ""

    @dataclass(slots=True)
    class Retract:
        """The runtime takes the request's pages back, without a snapshot."""

        request_id: str = ""

    @dataclass(slots=True)
    class UpdateReserveNumTokens:
        """How many tokens the request's next decode step takes."""

        request_id: str = ""
        reserve_num_tokens_in_next_schedule_event: int = 0


class Cache:
    """Acks of tier transfers, and the plan's transfers themselves."""

    @dataclass(slots=True)
    class WriteBackDoneEvent:
        """A store has landed on the host."""

        op_id: int = 0

    @dataclass(slots=True)
    class LoadBackDoneEvent:
        """A load-back has ended."""

        op_id: int = 0
        success: bool = True

    @dataclass(slots=True)
    class WriteBackOp:
        """Stores: one entry an op in each list; pages and groups (indices) one entry a page."""

        op_ids: list[int] = field(default_factory=list)
        group_ids: list[list[int]] = field(default_factory=list)
        src_pages: list[list[int]] = field(default_factory=list)
        dst_pages: list[list[int]] = field(default_factory=list)
        content_hashes: list[list[str]] = field(default_factory=list)
        page_offsets: list[list[int]] = field(default_factory=list)
        source_pinned: list[bool] = field(default_factory=list)

    @dataclass(slots=True)
    class LoadBackOp:
        """Load-backs, laid out like stores; ``prefetch_from_storage`` tells what storage fills first."""

        op_ids: list[int] = field(default_factory=list)
        group_ids: list[list[int]] = field(default_factory=list)
        src_pages: list[list[int]] = field(default_factory=list)
        dst_pages: list[list[int]] = field(default_factory=list)
        content_hashes: list[list[str]] = field(default_factory=list)
        page_offsets: list[list[int]] = field(default_factory=list)
        prefetch_from_storage: list[list[bool]] = field(default_factory=list)


class PD:
    """What the peer of a prefill or decode worker says."""

    @dataclass(slots=True)
    class BootstrappedEvent:
        """The handshake is done."""

        id: str = ""

    @dataclass(slots=True)
    class FailedEvent:
        """The transfer failed: the request ends."""

        id: str = ""

    @dataclass(slots=True)
    class SucceededEvent:
        """The peer has the pages: the request ends here."""

        id: str = ""

    @dataclass(slots=True)
    class RemotePrefillDoneEvent:
        """The peer's prefill is done; its token is the request's first output."""

        id: str = ""
        bootstrap_token: int = 0


class KVEvent:
    """Changes of what the device cache can serve, for routers."""

    @dataclass(slots=True)
    class BlockStored:
        """A prefix page has become servable."""

        block_hashes: list[int] = field(default_factory=list)
        parent_block_hash: int | None = None
        token_ids: list[int] = field(default_factory=list)
        block_size: int = 0
        kind: str = "BlockStored"

    @dataclass(slots=True)
    class BlockRemoved:
        """A prefix page is no longer servable."""

        block_hashes: list[int] = field(default_factory=list)
        kind: str = "BlockRemoved"


@dataclass(slots=True)
class ExecutionEvent:
    """What happened since the last plan, in order."""

    events: list[Any] = field(default_factory=list)

    def add_event(self, event: Any) -> ExecutionEvent:
        """Append an event; the batch itself."""
        self.events.append(event)
        return self
