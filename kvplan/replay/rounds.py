"""What is kept of each round and of each thing that happened: columns of plain numbers."""

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

import polars as pl

ROUND_COLUMNS = (
    "round",
    "time_ns",
    "step_ns",
    "prefill_requests",
    "prefill_tokens",
    "recomputed_tokens",
    "decode_requests",
    "generated_tokens",
    "free_blocks",
    "cached_blocks",
    "held_blocks",
    "waiting",
    "running",
    "retractions",
)


class Round(NamedTuple):
    """One round: when it was planned, how long its forward takes, what is in it, and what it leaves.

    `time_ns` is when the plan was made; `generated_tokens` are those whose results landed at its end, of
    this round or, with overlap, of the one before; the pool is in LCM blocks and, like `waiting` and
    `running` (requests without and with pages), as the plan leaves it.
    """

    round: int
    time_ns: int
    step_ns: int
    prefill_requests: int
    prefill_tokens: int
    recomputed_tokens: int
    decode_requests: int
    generated_tokens: int
    free_blocks: int
    cached_blocks: int
    held_blocks: int
    waiting: int
    running: int
    retractions: int


class RoundLog:
    """The rounds that were played, a column an array."""

    def __init__(self) -> None:
        self.columns: list[array[int]] = [array("q") for _ in ROUND_COLUMNS]
        self._appends = [column.append for column in self.columns]

    def __len__(self) -> int:
        return len(self.columns[0])

    def append(self, row: Round) -> None:
        """Keep a round."""
        for append, value in zip(self._appends, row, strict=True):
            append(value)

    def column(self, name: str) -> "array[int]":
        """Return a column by its name."""
        return self.columns[ROUND_COLUMNS.index(name)]

    def table(self) -> pl.DataFrame:
        """Return the rounds as a table of Int64."""
        return pl.DataFrame(
            {
                name: pl.Series(name, column, dtype=pl.Int64)
                for name, column in zip(ROUND_COLUMNS, self.columns, strict=True)
            }
        )


@dataclass(slots=True)
class EventLog:
    """What happened to requests, in order.

    Kinds, with what `tokens` are: arrived (its prompt), refused (what it needs), admitted (those found in the
    cache), retracted (KV dropped; `state` it was in, `other` = the request it was done for), first_token,
    finished (generated), lost (its forward did not run, as a load had failed), skipped (rounds left out because
    they repeat those before).
    """

    rounds: list[int] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    request_ids: list[str | None] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    states: list[str | None] = field(default_factory=list)
    others: list[str | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rounds)

    def append(
        self,
        round_index: int,
        time_ns: int,
        kind: str,
        request_id: str | None,
        tokens: int = 0,
        state: str | None = None,
        other: str | None = None,
    ) -> None:
        """Keep an event."""
        self.rounds.append(round_index)
        self.times_ns.append(time_ns)
        self.kinds.append(kind)
        self.request_ids.append(request_id)
        self.tokens.append(tokens)
        self.states.append(state)
        self.others.append(other)

    def table(self) -> pl.DataFrame:
        """Return the events as a table."""
        return pl.DataFrame(
            {
                "round": self.rounds,
                "time_ns": self.times_ns,
                "event": self.kinds,
                "request_id": self.request_ids,
                "tokens": self.tokens,
                "state": self.states,
                "for_request": self.others,
            },
            schema={
                "round": pl.Int64,
                "time_ns": pl.Int64,
                "event": pl.String,
                "request_id": pl.String,
                "tokens": pl.Int64,
                "state": pl.String,
                "for_request": pl.String,
            },
        )
