"""Small replays that are under pressure in different ways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvplan.explain.record import Record, open_record
from kvplan.explain.recorder import record
from kvplan.replay.session import Session, begin
from tests.replay.small import config, row, trace
from tests.support.groups import full, sliding, state

CROWD = [
    row(
        0.02 * i,
        40 + 13 * (i % 5),
        12 + i % 7,
        max_new_tokens=20 + i % 9,
        prefix=[{"id": f"p{i % 3}", "tokens": 32}],
    )
    for i in range(24)
]
UNDECLARED = [row(0.02 * i, 50 + 17 * (i % 4), 40 + 5 * (i % 6)) for i in range(16)]


def crowd(blocks: int = 20, **more: object) -> Session:
    """Declared budgets and shared prefixes on a pool that is too small for all at once."""
    return begin(trace(*CROWD), config(blocks, **more))  # type: ignore[arg-type]


def undeclared(blocks: int = 16, **more: object) -> Session:
    """No declared budgets: requests outgrow the pool and are retracted."""
    return begin(trace(*UNDECLARED), config(blocks, **more))  # type: ignore[arg-type]


def hosted(blocks: int = 16) -> Session:
    """The same with a host tier that takes what is retracted."""
    made = config(blocks)
    made.disable_l2_cache = False
    made.num_host_pages = 200
    return begin(trace(*UNDECLARED), made)


def hybrid(blocks: int = 40) -> Session:
    """A full, a sliding and a state group."""
    groups = [full(16, total_pages=blocks + 1), sliding(40, 16, 2, total_pages=2 * blocks + 1), state(16)]
    return begin(trace(*CROWD), config(blocks, groups=groups))


def sessions() -> Iterator[tuple[str, Session]]:
    """All of them, and some more, by name."""
    yield "crowd", crowd()
    yield "small batch", crowd(40, batch=2)
    yield "not mixed", crowd(20, mixed=False)
    yield "small budget", crowd(64, chunk=16)
    yield "speculative", undeclared(width=3, overlap=1)
    yield "undeclared", undeclared()
    yield "hosted", hosted()
    yield "hybrid", hybrid()


def kept(session: Session, directory: Path, every: int = 10) -> Record:
    """The session's run, kept in a directory and opened again."""
    record(session, directory, every=every)
    return open_record(directory)
