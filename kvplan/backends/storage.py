"""What the storage tier holds: host pages by key, as they were when their store came in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Key = tuple[int, str, int]  # group index, hex digest of the prefix page, offset of the page inside it


class Storage:
    """A page store without end. Keys that another engine has stored are known by name only."""

    def __init__(self) -> None:
        self._pages: dict[Key, Any] = {}
        self._elsewhere: set[Key] = set()

    def register(self, keys: Iterable[Key]) -> None:
        """Another engine has stored these."""
        self._elsewhere.update(keys)

    def unregister(self, keys: Iterable[Key]) -> None:
        """These are no longer there."""
        for key in keys:
            self._elsewhere.discard(key)
            self._pages.pop(key, None)

    def put(self, key: Key, page: Any) -> None:
        """Keep a copy of a host page's words."""
        self._pages[key] = page.clone()

    def get(self, key: Key) -> Any | None:
        """A page's words; ``None`` if it was not stored from here."""
        return self._pages.get(key)

    def elsewhere(self, key: Key) -> bool:
        """Whether another engine has stored it."""
        return key in self._elsewhere
