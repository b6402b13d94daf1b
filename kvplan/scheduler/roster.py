"""The requests there are, by id and by what a round may do with them, each list in submission order."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

from kvplan.scheduler.request import Request, State


class SubmissionOrder:
    """Requests in the order they were submitted; adding the newest is the common case."""

    __slots__ = ("_seqs", "items", "version")

    def __init__(self) -> None:
        self.items: list[Request] = []
        self._seqs: list[int] = []
        self.version = 0  # grows with every change

    def __len__(self) -> int:
        return len(self.items)

    def add(self, request: Request) -> None:
        """Enter a request at its place."""
        self.version += 1
        if not self._seqs or request.seq > self._seqs[-1]:
            self._seqs.append(request.seq)
            self.items.append(request)
            return
        at = bisect_left(self._seqs, request.seq)
        self._seqs.insert(at, request.seq)
        self.items.insert(at, request)

    def remove(self, request: Request) -> None:
        """Take a request out."""
        self.version += 1
        at = bisect_left(self._seqs, request.seq)
        assert self.items[at] is request
        del self._seqs[at]
        del self.items[at]


class Roster:
    """All requests, and the request-pool slots they run in (§5)."""

    def __init__(self, slots: int) -> None:
        self.by_id: dict[str, Request] = {}
        self.finished: list[Request] = []
        self.bootstrapping = SubmissionOrder()
        self.new_prompts = SubmissionOrder()  # submitted, or retracted without a snapshot
        self.readmissions = SubmissionOrder()  # retracted with one
        self.prefilling = SubmissionOrder()
        self.remote_prefilling = SubmissionOrder()
        self.awaiting_result = SubmissionOrder()
        self.decodable = SubmissionOrder()  # PrefillDone and Decoding
        self.decoding = 0
        self.prefill_done = 0
        self.free_slots = deque(range(1, slots + 1))
        self._next_seq = 0

    def next_seq(self) -> int:
        """The next place in submission order."""
        self._next_seq += 1
        return self._next_seq

    def add_slots(self, first: int, last: int) -> None:
        """Add request-pool slots ``first..last``."""
        self.free_slots.extend(range(first, last + 1))

    def add(self, request: Request) -> None:
        """Enter a new request in its state."""
        self.by_id[request.id] = request
        self._enter(request)

    def move(self, request: Request, state: State, recoverable: bool = False) -> None:
        """Change a request's state."""
        if request.state == State.PREFILL_DONE and state == State.DECODING:
            # Both are in the same list: the request keeps its place.
            request.state = state
            self.prefill_done -= 1
            self.decoding += 1
            return
        self._leave(request)
        request.state = state
        request.recoverable = recoverable
        self._enter(request)

    def drop_finished(self) -> None:
        """Forget the finished requests (§10)."""
        for request in self.finished:
            del self.by_id[request.id]
        self.finished.clear()

    def holders(self) -> list[Request]:
        """The requests that hold pages."""
        return [
            *self.prefilling.items,
            *self.remote_prefilling.items,
            *self.awaiting_result.items,
            *self.decodable.items,
        ]

    def waiting_size(self) -> int:
        """Submitted and retracted requests."""
        return len(self.new_prompts) + len(self.readmissions)

    def prefilling_size(self) -> int:
        """Requests on their way through a prefill, or just through it."""
        return (
            len(self.prefilling) + len(self.remote_prefilling) + len(self.awaiting_result) + self.prefill_done
        )

    def _list_of(self, request: Request) -> SubmissionOrder | None:
        match request.state:
            case State.BOOTSTRAPPING:
                return self.bootstrapping
            case State.SUBMITTED:
                return self.new_prompts
            case State.RETRACTED:
                return self.readmissions if request.recoverable else self.new_prompts
            case State.PREFILLING:
                return self.prefilling
            case State.REMOTE_PREFILLING:
                return self.remote_prefilling
            case State.PREFILL_AWAITING_RESULT:
                return self.awaiting_result
            case State.PREFILL_DONE | State.DECODING:
                return self.decodable
        return None

    def _enter(self, request: Request) -> None:
        into = self._list_of(request)
        if into is None:
            self.finished.append(request)
            return
        into.add(request)
        if request.state == State.PREFILL_DONE:
            self.prefill_done += 1
        elif request.state == State.DECODING:
            self.decoding += 1

    def _leave(self, request: Request) -> None:
        into = self._list_of(request)
        if into is None:
            return
        into.remove(request)
        if request.state == State.PREFILL_DONE:
            self.prefill_done -= 1
        elif request.state == State.DECODING:
            self.decoding -= 1
