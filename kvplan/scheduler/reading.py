"""Reading what was saved: pickles in which nothing is named but this program's own classes and a few plain types."""

from __future__ import annotations

import pickle
from functools import partial
from importlib import import_module
from io import BytesIO
from types import FunctionType
from typing import Any

PACKAGE = __name__.split(".")[0]
_PLAIN = {
    ("array", "_array_reconstructor"),
    ("array", "array"),
    ("collections", "Counter"),
    ("collections", "deque"),
    ("random", "Random"),
}
_FUNCTIONS = {(f"{PACKAGE}.scheduler.cache.tiers", "host_rank")}


class StateError(ValueError):
    """A state that cannot be read; one sentence."""


class Reader(pickle.Unpickler):
    """An unpickler for what this program saves. Raises ``StateError`` where anything else is named."""

    def __init__(self, data: bytes) -> None:
        super().__init__(BytesIO(data))

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _method
        if (module, name) == ("functools", "partial"):
            return partial
        found = _own(module, name) if module.split(".")[0] == PACKAGE else None
        if found is None:
            raise StateError(f"a state names {module}.{name}, which no state of this program does")
        return found

    def read(self) -> Any:
        """What was saved. Raises ``StateError`` if it is damaged or something else."""
        try:
            return self.load()
        except StateError:
            raise
        except Exception as error:  # damaged data can end in any
            said = str(error).splitlines() or [""]
            raise StateError(f"a state cannot be read: {type(error).__name__}: {said[0]}") from None


def _own(module: str, name: str) -> Any:
    """A class of this package that is defined in ``module``, or a function that states name; else None."""
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
            if not isinstance(found, type) and (module, name) not in _FUNCTIONS:
                return None
    except (ImportError, AttributeError):
        return None
    return found if found.__module__ == module else None


def _method(owner: Any, name: str) -> Any:
    """A bound method as pickles name it: of an object of this package, by a name of its class."""
    kind = type(owner)
    ours = kind.__module__.split(".")[0] == PACKAGE
    if not ours or name.startswith("__") or not isinstance(getattr(kind, name, None), FunctionType):
        raise StateError(f"a state names {name} of {kind.__name__}, which no state of this program does")
    return getattr(owner, name)
