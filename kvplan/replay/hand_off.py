"""The hand-off of a request from its prefill worker to its decode worker, and the link it goes over."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvplan.replay.step_time import NS


@dataclass(slots=True)
class HandOff:
    """One request's way from one worker to the other. Times are in ns, −1 = not yet.

    It is *ready* when the prefill worker's plan hands it out, and *landing* when the decode worker has pages
    for it; the transfer can begin when it is both. Until it has ended the prefill worker's pages are pinned.
    """

    row: int
    request_id: str
    prefill_worker: int
    decode_worker: int
    arrived_ns: int
    ready_ns: int = -1
    landing_ns: int = -1
    begin_ns: int = -1
    end_ns: int = -1
    pinned_pages: int = 0
    landed_pages: int = 0
    landed_bytes: float = 0.0
    landings: int = 0
    """More than one if the runtime retracted it on the decode worker: its sequence is then prefilled anew."""

    @property
    def landing_wait_ns(self) -> int:
        """How long finished pages waited for the decode worker to have room for them."""
        return max(0, self.landing_ns - self.ready_ns)

    @property
    def queue_ns(self) -> int:
        """How long the transfer waited for the link, both ends being there."""
        return self.begin_ns - max(self.ready_ns, self.landing_ns)


@dataclass(slots=True)
class TransferLink:
    """What all hand-offs to one decode worker share: a latency, and a bandwidth used by one at a time."""

    latency_ns: int = 0
    bytes_per_s: float = math.inf
    free_ns: int = 0

    def send(self, at_ns: int, size: float) -> tuple[int, int]:
        """Begin and end, in ns, of a transfer of ``size`` bytes that could begin at ``at_ns``."""
        if math.isinf(self.bytes_per_s):
            return at_ns, at_ns + self.latency_ns
        begin = max(at_ns, self.free_ns)
        self.free_ns = begin + round(NS * size / self.bytes_per_s)
        return begin, self.free_ns + self.latency_ns
