"""Builders for small traces on disk."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvplan.traces import Trace, TraceError, read_trace

SHARED = Path(__file__).parents[2].parent / "shared" / "traces"

Write = Callable[..., Path]
Read = Callable[..., Trace]
Refuse = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(rows or text or bytes, name) -> path."""

    def write(content: list[dict[str, Any]] | str | bytes, name: str = "t.jsonl") -> Path:
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def read(write: Write) -> Read:
    """read(content, name, **options) -> Trace."""

    def read(content: list[dict[str, Any]] | str | bytes, name: str = "t.jsonl", **options: Any) -> Trace:
        return read_trace([write(content, name)], **options)

    return read


@pytest.fixture
def refusal(read: Read) -> Refuse:
    """refusal(content, name, **options) -> the one line that the trace is refused with."""

    def refusal(content: list[dict[str, Any]] | str | bytes, name: str = "t.jsonl", **options: Any) -> str:
        with pytest.raises(TraceError) as caught:
            read(content, name, **options)
        message = str(caught.value)
        assert "\n" not in message
        assert len(message) < 1000
        return message

    return refusal


@pytest.fixture
def shared() -> Callable[[str], Path]:
    """shared(name) -> the public trace of that name; skips where there is none."""

    def shared(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"the public trace {name} is not at {SHARED}")
        return path

    return shared
