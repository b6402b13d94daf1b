"""A device whose copies are late: the part of ``torch.cuda`` that streams need, played on a CPU.

What the computing stream is given happens at once; what a side stream is given waits in its queue, and a seed says
how much of it has happened whenever somebody looks. So a copy that nobody waits for finds what its source has
become meanwhile, as it would on a GPU.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode


class FakeStream:
    """A side stream: copies in the order they were given, later."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._queue: deque[Callable[[], object]] = deque()
        self.given = 0
        self.done = 0

    def give(self, work: Callable[[], object]) -> None:
        self._queue.append(work)
        self.given += 1

    def wait_stream(self, other: object) -> None:
        """The computing stream has done all it was given."""

    def run_to(self, count: int) -> None:
        while self.done < count:
            self._queue.popleft()()
            self.done += 1

    def pass_time(self) -> None:
        self.run_to(min(self.given, self.done + self._rng.choice((0, 0, 0, 1, 2, 5, 1000))))


class FakeEvent:
    """A place in a side stream's queue."""

    def record(self, stream: FakeStream) -> None:
        self._stream = stream
        self._at = stream.given

    def query(self) -> bool:
        self._stream.pass_time()
        return self._stream.done >= self._at

    def synchronize(self) -> None:
        self._stream.run_to(self._at)


class ComputingStream:
    """The current stream. Waiting for an event is letting everything before it happen first."""

    def __init__(self, fences: bool) -> None:
        self._fences = fences

    def wait_event(self, event: FakeEvent) -> None:
        if self._fences:
            event.synchronize()


class Queueing(TorchFunctionMode):
    """Gives every copy to a side stream. Nothing else may be asked of one."""

    def __init__(self, stream: FakeStream) -> None:
        super().__init__()
        self._stream = stream

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not Tensor.copy_:
            return func(*args, **(kwargs or {}))  # a view
        assert (kwargs or {}).get("non_blocking"), "a copy that waits would hold up the round"
        self._stream.give(lambda: func(*args))
        return args[0]


class FakeCuda:
    """In the place of ``torch.cuda``. Without ``fences`` nothing is waited for that should be."""

    def __init__(self, seed: object, fences: bool = True) -> None:
        self._rng = Random(str(seed))
        self._current = ComputingStream(fences)
        self.streams: list[FakeStream] = []

    def Stream(self, device: object = None) -> FakeStream:
        self.streams.append(FakeStream(self._rng))
        return self.streams[-1]

    def Event(self) -> FakeEvent:
        return FakeEvent()

    def current_stream(self, device: object = None) -> ComputingStream:
        return self._current

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        with Queueing(stream):
            yield


def as_torch(cuda: FakeCuda) -> Any:
    """A module with this in the place of its ``cuda``."""
    return SimpleNamespace(cuda=cuda)
