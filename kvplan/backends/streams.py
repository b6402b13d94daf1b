"""When device work really happens: streams and events on a GPU, at once or later on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from kvplan.backends.torch_module import load_torch

Work = Callable[[], None]


class Ticket(Protocol):
    """Work that was given to a stream."""

    def done(self) -> bool:
        """Whether it is complete; does not wait."""

    def wait(self) -> None:
        """Return when it is complete."""


class CopyStream(Protocol):
    """The stream of the transfers between device and host, beside the one that computes."""

    def fenced(self, work: Work) -> Ticket:
        """Do the work before anything that the computing stream is given from now on."""

    def beside(self, work: Work) -> Ticket:
        """Do the work after what the computing stream was given so far, and beside what comes."""

    def end_of_round(self) -> None:
        """A round has been given to the computing stream."""


class CpuTicket:
    """Work that waits until somebody needs it."""

    def __init__(self, work: Work) -> None:
        self._work: Work | None = work

    def done(self) -> bool:
        """Whether it was done."""
        return self._work is None

    def wait(self) -> None:
        """Do it now, if it was not done."""
        if self._work is not None:
            work, self._work = self._work, None
            work()


class CpuStream:
    """A copy stream that is played: work beside the forward runs so many rounds later, or when waited for.

    ``delay`` 0: at the end of its round, after the forward; ``None``: only when it is waited for, which is
    the latest that an engine may do it.
    """

    def __init__(self, delay: int | None = 0) -> None:
        self._delay = delay
        self._round = 0
        self._waiting: list[tuple[int, CpuTicket]] = []

    def fenced(self, work: Work) -> Ticket:
        """At once."""
        ticket = CpuTicket(work)
        ticket.wait()
        return ticket

    def beside(self, work: Work) -> Ticket:
        """Later."""
        ticket = CpuTicket(work)
        if self._delay is not None:
            self._waiting.append((self._round + self._delay, ticket))
        return ticket

    def end_of_round(self) -> None:
        """Do what is due."""
        while self._waiting and self._waiting[0][0] <= self._round:
            self._waiting.pop(0)[1].wait()
        self._round += 1


class CudaTicket:
    """A CUDA event behind the work."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def done(self) -> bool:
        """Whether the device has passed the event."""
        return bool(self._event.query())

    def wait(self) -> None:
        """Wait until the device has passed the event."""
        self._event.synchronize()


class CudaStream:
    """A real copy stream of a CUDA device."""

    def __init__(self, device: Any) -> None:
        self._torch = load_torch()
        self._device = device
        self._side = self._torch.cuda.Stream(device=device)

    def fenced(self, work: Work) -> Ticket:
        """On the copy stream; the computing stream waits for its event."""
        ticket, event = self._launch(work)
        self._torch.cuda.current_stream(self._device).wait_event(event)
        return ticket

    def beside(self, work: Work) -> Ticket:
        """On the copy stream; nothing waits."""
        return self._launch(work)[0]

    def end_of_round(self) -> None:
        """Nothing to do: the device goes on by itself."""

    def _launch(self, work: Work) -> tuple[Ticket, Any]:
        self._side.wait_stream(self._torch.cuda.current_stream(self._device))
        with self._on_side():
            work()
            event = self._torch.cuda.Event()
            event.record(self._side)
        return CudaTicket(event), event

    @contextmanager
    def _on_side(self) -> Iterator[None]:
        with self._torch.cuda.stream(self._side):
            yield


def copy_stream(device: Any, delay: int | None = 0) -> CopyStream:
    """The copy stream of a device; ``delay`` is that of a CPU's."""
    return CudaStream(device) if device.type == "cuda" else CpuStream(delay)
