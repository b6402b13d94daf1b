"""When requests reach the engine: by timestamp, after their session's last turn, or so many at a time."""

from heapq import heappop, heappush

from kvplan.replay.workload import Workload


class Arrivals:
    """The requests still to come.

    Open loop (`concurrency` None): a row comes at its timestamp, or its delay after its previous turn has
    ended. Closed loop: timestamps play no part; at most `concurrency` requests are out at a time and the
    next one, the lowest row that may come, is sent the moment one ends. Raises ValueError for a
    concurrency below 1.
    """

    def __init__(self, workload: Workload, concurrency: int | None = None) -> None:
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency {concurrency} is given; 1 request or more is expected")
        self._free = concurrency
        self._ready: list[int] = []
        self._timed: list[tuple[int, int]] = []
        self._followers: dict[int, list[int]] = {}
        self._delays = workload.delays_ns
        for row, (at, previous) in enumerate(zip(workload.arrivals_ns, workload.after, strict=True)):
            if previous is not None:
                self._followers.setdefault(previous, []).append(row)
            elif concurrency is None:
                self._timed.append((at, row))
            else:
                self._ready.append(row)
        self._timed.sort()

    def due(self, now_ns: int) -> list[tuple[int, int]]:
        """Return the (row, arrival in ns) of the requests that have come by now; each is given once."""
        timed = self._timed
        come: list[tuple[int, int]] = []
        if self._free is None:
            while timed and timed[0][0] <= now_ns:
                at, row = heappop(timed)
                come.append((row, at))
            return come
        while timed and timed[0][0] <= now_ns:
            heappush(self._ready, heappop(timed)[1])
        while self._free and self._ready:
            self._free -= 1
            come.append((heappop(self._ready), now_ns))
        return come

    def ended(self, row: int, now_ns: int) -> None:
        """Note that a request is over (finished, refused or aborted)."""
        if self._free is not None:
            self._free += 1
        for follower in self._followers.pop(row, ()):
            heappush(self._timed, (now_ns + (self._delays[follower] or 0), follower))

    def next_ns(self) -> int | None:
        """Return when the next request comes if nothing ends before; None: none will."""
        if self._free is not None and self._ready and self._free:
            return 0
        if self._timed and (self._free is None or self._free):
            return self._timed[0][0]
        return None
