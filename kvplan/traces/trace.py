"""A trace: one table of requests in arrival order, and the token ids of each."""

import hashlib
import math
import re
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvplan.traces.errors import TraceError, counted, shown
from kvplan.traces.intake import follow_up_delays
from kvplan.traces.tokens import TokenStore

Start = int | float | str
DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|min|m|h)", re.ASCII)
SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in arrival order. A value: what changes it returns another trace.

    `table`, one row a request:

    request_id      String, unique
    arrival_s       Float64, seconds after the first request, which is at 0.0; never falls
    prompt_tokens   Int64, >= 1
    output_tokens   Int64, >= 1
    max_new_tokens  Int64, >= output_tokens; null: the trace declares no budget
    session_id      String; null: the request is on its own
    delay_s         Float64; not null: the request comes this long after the end of its session's previous
                    turn, which is in the table before it (closed loop). `arrival_s` is then what the trace
                    says, or a lower bound where it says nothing
    line, source    Int64, String: where the request was read

    `hash_tokens` is the number of prompt tokens to a hash, None when the trace has no hashes. Without
    `has_prefixes` the trace says nothing of shared prefixes: no prompt hits, but what a cache would find is
    unknown. `skipped_rows` (bad) and `zero_output_rows` were left out of the table. `warnings` has
    everything that a user must be told, one sentence each, those counts included.
    """

    table: pl.DataFrame
    format: str
    sources: list[str]
    hash_tokens: int | None
    has_prefixes: bool
    tokens: TokenStore = field(repr=False)
    rows: NDArray[np.int64] = field(repr=False)
    skipped_rows: int = 0
    zero_output_rows: int = 0
    warnings: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.table)

    def prompt(self, row: int) -> NDArray[np.int32]:
        """Return the prompt's token ids: int32, C-contiguous, all >= 0; `row` counts in the table.

        Equal hashes, named prefixes and explicit ids give equal ids; everything else has ids of its own.
        """
        return self.tokens.prompt(self._stored(row))

    def output(self, row: int, first: int = 0, count: int | None = None) -> NDArray[np.int32]:
        """Return the ids of `count` generated tokens from index `first` on (absent: all that follow).

        The trace's own ids if it has them, else ids that no prompt and no other output has, see `tokens.py`.
        """
        stored = self._stored(row)
        if count is None:
            count = max(int(self.tokens.output_tokens[stored]) - first, 0)
        if first < 0 or count < 0:
            raise IndexError(f"output tokens {first} to {first + count}: both ends of 0 or more are expected")
        return self.tokens.output(stored, first, count)

    def _stored(self, row: int) -> int:
        if not 0 <= row < len(self.rows):
            raise IndexError(f"row {row} of a trace with {counted(len(self.rows), 'row')}")
        return int(self.rows[row])

    def scaled(self, *, speed: float = 1.0) -> "Trace":
        """Return the trace at `speed`: from 0.0, every interval and every delay divided by it."""
        if not (math.isfinite(speed) and speed > 0):
            raise TraceError(f"speed {speed} is given; a finite number over 0 is expected")
        arrival, delay = pl.col("arrival_s"), pl.col("delay_s")
        table = self.table.with_columns(arrival_s=(arrival - arrival.first()) / speed, delay_s=delay / speed)
        return replace(self, table=table)

    def head(self, rows: int) -> "Trace":
        """Return the first `rows` requests."""
        return self.slice(limit=rows)

    def slice(self, start: Start | None = None, limit: int | None = None) -> "Trace":
        """Return up to `limit` requests from `start` on, the first at 0.0; token ids stay as they are.

        `start` is a number of rows (int), of seconds (float), or either as text: "100", "90s", "1.5h",
        "20min". Raises TraceError when nothing is left.
        """
        first_row, first_s = start_of(start)
        check_limit(limit)
        if first_s > 0:
            first_row = int(self.table["arrival_s"].search_sorted(first_s, side="left"))
        if first_row >= len(self):
            last = f"{counted(len(self), 'request')}, the last at {self.table['arrival_s'][-1]:g} s"
            raise TraceError(f"start {start} is past the end of the trace ({last})")
        if first_row == 0 and (limit is None or limit >= len(self)):
            return self
        arrival = pl.col("arrival_s")
        table = self.table.slice(first_row, limit).with_columns(arrival_s=arrival - arrival.first())
        rows = self.rows[first_row : first_row + len(table)]
        return replace(self, table=follow_up_delays(table), rows=rows)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256, in hex, of what the trace says: the table without `line` and `source`, what prompts
        share, and explicit ids. It does not depend on the format, the names of files, or how they are
        packed.
        """
        digest = hashlib.sha256(b"kvplan trace 1")
        for name in self.table.columns:
            if name in ("line", "source"):
                continue
            column = self.table[name]
            digest.update(f"\n{name}\n".encode())
            digest.update(column.is_null().to_numpy().tobytes())
            if column.dtype == pl.String:
                texts = [text.encode() for text in column.fill_null("")]
                digest.update(np.array([len(text) for text in texts], "<i8").tobytes())
                digest.update(b"".join(texts))
            else:
                kind = "<f8" if column.dtype == pl.Float64 else "<i8"
                digest.update(column.fill_null(0).to_numpy().astype(kind).tobytes())
        digest.update(str(self.has_prefixes).encode())
        self.tokens.update_digest(digest, self.rows)
        return digest.hexdigest()


def check_limit(limit: int | None) -> None:
    """Raise TraceError for a limit of no requests."""
    if limit is not None and limit < 1:
        raise TraceError(f"limit {limit} is given; 1 request or more is expected")


def start_of(start: Start | None) -> tuple[int, float]:
    """Return a start as (rows, seconds), one of which is 0. Raises TraceError for any other."""
    rows, seconds = 0, 0.0
    if isinstance(start, str):
        text = start.strip().lower()
        match = DURATION.fullmatch(text)
        if match:
            seconds = float(match[1]) * SECONDS[match[2]]
        elif text.isascii() and text.isdigit() and len(text) < 19:
            rows = int(text)
        else:
            raise TraceError(
                f"start {shown(start)} is given; rows (100) or a time (90s, 20min, 1.5h) are expected"
            )
    elif isinstance(start, float):
        seconds = start
    elif start is not None:
        rows = start
    if rows < 0 or seconds < 0 or not math.isfinite(seconds):
        raise TraceError(f"start {start} is given; 0 or more is expected")
    return rows, seconds
