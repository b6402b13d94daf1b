"""The requests that a backend knows: their histories, and what a mark found in a page stands for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from kvplan.backends.signatures import FRESH, POISON, History, prefix_digests

KEPT = 64  # requests remembered after their end, for the words of a violation


class Script(Protocol):
    """What the requests of a run will turn out to be; known to who drives it, unknown to the scheduler."""

    def tokens(self, request_id: str) -> Sequence[int]:
        """The prompt and every token that the request will generate."""

    def accepted(self, request_id: str, step: int) -> int:
        """How many tokens its decode step of that number (from 0) accepts, 1 to the step's width."""


class Roll:
    """Histories by request."""

    def __init__(self, script: Script, page: int | None) -> None:
        """``page`` is the prefix granularity in tokens if pages have to be found by their key."""
        self.script = script
        self._page = page
        self._live: dict[str, History] = {}
        self._gone: deque[History] = deque(maxlen=KEPT)
        self._keys: dict[str, tuple[History, int]] = {}

    def history(self, request_id: str) -> History:
        """A request's history; made when it is first asked for."""
        known = self._live.get(request_id)
        if known is None:
            known = self._live[request_id] = History(request_id, self.script.tokens(request_id))
            if self._page is not None:
                for at, digest in enumerate(prefix_digests(known.tokens.tolist(), self._page)):
                    self._keys[digest] = (known, at)
        return known

    def keyed(self, digest: str) -> tuple[History, int] | None:
        """A history that has the prefix page of this hex digest, and the page's number in it."""
        return self._keys.get(digest)

    def forget(self, ended: Callable[[str], bool]) -> None:
        """Let go of the requests that have ended."""
        for request_id in [one for one in self._live if ended(one)]:
            self._gone.append(self._live.pop(request_id))
        if self._page is not None and len(self._keys) > 4 * self._known_pages():
            known = set(map(id, self._all()))
            self._keys = {key: value for key, value in self._keys.items() if id(value[0]) in known}

    def _known_pages(self) -> int:
        return 1024 + sum(len(history.tokens) // (self._page or 1) for history in self._all())

    def _all(self) -> Iterator[History]:
        yield from self._live.values()
        yield from self._gone

    def meaning(self, mark: int, group_id: str, groups: Sequence[str]) -> str:
        """What a mark stands for, in words."""
        if mark == FRESH:
            return "zeros, which nobody has computed"
        if mark == POISON:
            return "memory that was never zeroed or written"
        for history in self._all():
            if mark == history.draft:
                return f"a candidate of {history.request_id} that may not stand"
        for other in [group_id, *(one for one in groups if one != group_id)]:
            for history in self._all():
                at = np.flatnonzero(history.rows(other) == mark)
                if len(at):
                    where = "" if other == group_id else f" in {other}"
                    return f"position {at[0]} of {history.request_id}{where}"
        return "what no request known has computed"
