"""torch, imported when it is first needed, and the devices there are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from kvplan.backends.errors import BackendError

EXTRA = "pip install 'kvplan-toolkit[torch]' (or '.[torch]' in its checkout)"


def load_torch() -> Any:
    """Return the module. Raises ``BackendError`` naming the extra where it is not installed."""
    try:
        return import_module("torch")
    except ImportError as error:
        raise BackendError(f"the torch backend needs torch ({error}); install it with {EXTRA}") from None


def devices() -> list[str]:
    """The devices there are, by the name that ``--device`` takes."""
    torch = load_torch()
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ["cpu", *(f"cuda:{index}" for index in range(count))]


def device_named(name: str) -> Any:
    """Return the ``torch.device`` of a name. Raises ``BackendError`` naming the devices there are."""
    torch = load_torch()
    there = devices()
    wanted = "cuda:0" if name == "cuda" else name
    if wanted not in there:
        others = f"those there are {', '.join(there)}" if there[1:] else f"the only one there is {there[0]}"
        raise BackendError(f"device {name!r} is not there; {others}")
    return torch.device(wanted)


def device_title(device: Any) -> str:
    """The device in words, for a report: its model where it has one."""
    torch = load_torch()
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} (one thread)"


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch's work on a CPU in one thread: what is small gains nothing from more, and waits for them."""
    torch = load_torch()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
