"""What the storage tier holds: host pages by key, as they were when their store came in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

Key = tuple[int, str, int]  # group index, hex digest of the prefix page, offset of the page inside it


class Storage:
    """A page store. Keys that another engine has stored are known by name only.

    The scheduler knows of ``known`` keys at most and forgets the one that came first (engine.md §11), where one
    that comes again keeps its place. A key that it still knows has therefore come later than all but
    2 × ``known`` others, so that no more pages than these are kept.
    """

    def __init__(self, known: int) -> None:
        self._most = 2 * known
        self._pages: OrderedDict[Key, Any] = OrderedDict()
        self._elsewhere: set[Key] = set()

    def __len__(self) -> int:
        """Pages that are kept."""
        return len(self._pages)

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
        self._pages.move_to_end(key)
        if len(self._pages) > self._most:
            self._pages.popitem(last=False)

    def get(self, key: Key) -> Any | None:
        """A page's words, which come again by being asked for; ``None`` if it was not stored from here."""
        if key in self._pages:
            self._pages.move_to_end(key)
        return self._pages.get(key)

    def elsewhere(self, key: Key) -> bool:
        """Whether another engine has stored it."""
        return key in self._elsewhere
