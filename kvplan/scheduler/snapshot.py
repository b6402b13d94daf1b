"""Saving a scheduler and bringing it back: everything but the prompts, which the trace has anyway."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.scheduler.cache.coordinator import PageKeys
from kvplan.scheduler.reading import Reader, StateError
from kvplan.scheduler.rounds.backlog import Backlog, Floor
from kvplan.scheduler.scheduler import Scheduler

_PROMPT, _KEYS, _ATTEMPT = "prompt", "keys", "attempt"


class _Writer(pickle.Pickler):
    """Leaves out prompts, and what of waiting requests is quickly made again: their hashes and floors."""

    def __init__(self, file: io.BytesIO, scheduler: Scheduler) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        requests = scheduler.requests()
        self._prompts = {id(request.tokens.prompt): request.id for request in requests}
        self._keys = {id(request.keys) for request in requests if not request.tables}

    def persistent_id(self, obj: Any) -> tuple[str, str] | None:
        kind = type(obj)
        if kind is np.ndarray:
            return (_PROMPT, self._prompts[id(obj)])
        if kind is PageKeys and id(obj) in self._keys:
            return (_KEYS, "")
        return (_ATTEMPT, "") if kind is Floor or kind is Backlog else None


class _Reader(Reader):
    def __init__(self, data: bytes, prompt_of: Callable[[str], NDArray[np.int32]]) -> None:
        super().__init__(data)
        self._prompt_of = prompt_of

    def persistent_load(self, pid: tuple[str, str]) -> Any:
        kind, name = pid
        if kind == _PROMPT:
            return self._prompt_of(name)
        return PageKeys() if kind == _KEYS else None


def save(scheduler: Scheduler) -> bytes:
    """A scheduler's whole state without its prompts, journal and listener; the scheduler stays as it is."""
    journal, scheduler.journal = scheduler.journal, None
    listener, scheduler.listener = scheduler.listener, None
    try:
        file = io.BytesIO()
        _Writer(file, scheduler).dump(scheduler)
    finally:
        scheduler.journal, scheduler.listener = journal, listener
    return file.getvalue()


def load(data: bytes, prompt_of: Callable[[str], NDArray[np.int32]]) -> Scheduler:
    """The scheduler that ``save`` wrote; ``prompt_of`` gives a request's prompt tokens by its id.

    Its plans go on exactly as the saved one's do. Raises ``StateError`` for anything else than what ``save``
    writes.
    """
    scheduler = _Reader(data, prompt_of).read()
    if not isinstance(scheduler, Scheduler):
        raise StateError(f"a saved scheduler is expected; this is a saved {type(scheduler).__name__}")
    scheduler.forget_attempts()
    return scheduler


def copy_of(scheduler: Scheduler) -> Scheduler:
    """An independent copy that shares nothing but the prompts."""
    prompts = {request.id: request.tokens.prompt for request in scheduler.requests()}
    return load(save(scheduler), prompts.__getitem__)
