"""Requests on their way into one table: the rules that hold between rows, and the columns they fill."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import floor

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kvplan.traces.errors import TraceError, counted
from kvplan.traces.fields import Fields
from kvplan.traces.request import Request
from kvplan.traces.times import Exact, offset_s, span_warning
from kvplan.traces.tokens import TokenBuilder

NO_PARENT = "-1"
SCHEMA = {
    "request_id": pl.String,
    "arrival_s": pl.Float64,
    "prompt_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "max_new_tokens": pl.Int64,
    "session_id": pl.String,
    "delay_s": pl.Float64,
    "line": pl.Int64,
    "source": pl.String,
}


@dataclass(slots=True)
class Intake:
    """Rows accepted so far, in file order. `unit` is that of numeric arrivals."""

    unit: str
    tokens: TokenBuilder
    refuse_zero_output: bool = False
    zero_output_rows: int = 0
    has_prefixes: bool = False
    wall_clock: bool = False
    timed: bool | None = None
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    roots: dict[str, str] = field(default_factory=dict)
    timed_rows: int = 0
    latest: Exact | None = None
    arrivals: list[Exact] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    budgets: list[int | None] = field(default_factory=list)
    session_ids: list[str | None] = field(default_factory=list)
    delays: list[float | None] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        """The number of requests taken in."""
        return len(self.arrivals)

    def add(self, request: Request, row: int, fields: Fields) -> None:
        """Take in the request of row number `row`; one with no output is only counted. Raises TraceError."""
        session = self._session(request)
        if request.output_tokens == 0:
            if self.refuse_zero_output:
                raise fields.fault("0 output tokens; 1 or more is expected")
            self.zero_output_rows += 1
            return
        name = request.request_id if request.request_id is not None else f"r{row}"
        if name in self.places:
            source, line = self.places[name]
            raise fields.fault(
                f"request id {name!r} was given at {source}:{line} already; unique ids are expected"
            )
        self._check_arrival(request, session, fields)

        self.places[name] = (fields.source, fields.line)
        delay = request.delay_s
        if session is not None:
            if request.arrival is None and session in self.sessions and delay is None:
                delay = 0.0
            self.sessions.add(session)
        self.arrivals.append(self._arrival(request.arrival))
        self.prompt_tokens.append(request.prompt_tokens)
        self.output_tokens.append(request.output_tokens)
        self.budgets.append(request.max_new_tokens)
        self.session_ids.append(session)
        self.delays.append(delay)
        self._add_tokens(request)

    def _session(self, request: Request) -> str | None:
        """Return the session; a request that names its parent belongs to the root of its chain."""
        if request.session_id is not None or request.parent_id is None or request.request_id is None:
            return request.session_id
        parent = request.parent_id
        root = request.request_id if parent == NO_PARENT else self.roots.get(parent, parent)
        self.roots.setdefault(request.request_id, root)
        return root

    def _check_arrival(self, request: Request, session: str | None, fields: Fields) -> None:
        if request.arrival is None:
            if self.timed and session not in self.sessions:
                raise fields.fault("the row has no arrival time, those before it have; one is expected")
            if self.timed is None:
                self.timed = False
            return
        if self.timed is False:
            raise fields.fault(
                "the row has an arrival time, those before it have none; all or none is expected"
            )
        if self.timed and request.wall_clock != self.wall_clock:
            forms = ("a number", "a wall clock")
            was, now = forms[self.wall_clock], forms[request.wall_clock]
            raise fields.fault(
                f"the arrival is {now}, those before it are {was}; one of them throughout is expected"
            )
        self.timed, self.wall_clock = True, request.wall_clock

    def _arrival(self, arrival: Exact | None) -> Exact:
        """Return when a request arrives; 0 in a trace without times.

        A turn without a time of its own gets the latest before it: it cannot be earlier, and `delay_s` says
        when it comes.
        """
        if arrival is None:
            return 0 if self.latest is None else self.latest
        self.timed_rows += 1
        self.latest = arrival if self.latest is None else max(self.latest, arrival)
        return arrival

    def _add_tokens(self, request: Request) -> None:
        if request.prompt_ids is not None:
            self.tokens.add_ids(request.prompt_ids)
        elif request.hashes is not None:
            self.tokens.add_hashes(request.hashes, request.prompt_tokens)
        else:
            self.tokens.add_prefix(request.prefix or (), request.prompt_tokens)
        if request.prompt_ids is not None or request.hashes is not None or request.prefix is not None:
            self.has_prefixes = True
        self.tokens.add_output(request.output_tokens, request.output_ids)

    def table(self, *, sort: bool) -> tuple[pl.DataFrame, NDArray[np.int64], list[str]]:
        """Return the rows in arrival order, the number in file order of each, and what to warn of.

        Raises TraceError for a row earlier than the one before it, unless `sort`.
        """
        order = list(range(self.accepted))
        if sort:
            order.sort(key=self.arrivals.__getitem__)
        else:
            self._check_order()
        first, unit = self.arrivals[order[0]], "s" if self.wall_clock else self.unit
        names, places = list(self.places), list(self.places.values())
        table = pl.DataFrame(
            {
                "request_id": [names[row] for row in order],
                "arrival_s": [offset_s(self.arrivals[row], first, unit) for row in order],
                "prompt_tokens": [self.prompt_tokens[row] for row in order],
                "output_tokens": [self.output_tokens[row] for row in order],
                "max_new_tokens": [self.budgets[row] for row in order],
                "session_id": [self.session_ids[row] for row in order],
                "delay_s": [self.delays[row] for row in order],
                "line": [places[row][1] for row in order],
                "source": [places[row][0] for row in order],
            },
            schema=SCHEMA,
        )
        return follow_up_delays(table), np.array(order, np.int64), self._warnings(table)

    def _warnings(self, table: pl.DataFrame) -> list[str]:
        warnings = []
        if not self.timed and self.accepted > 1:
            warnings.append("the trace has no arrival times: all requests arrive at 0 s")
        if not self.wall_clock:
            absurd = span_warning(table["arrival_s"][-1], self.timed_rows, self.unit)
            warnings.extend([absurd] if absurd else [])
        early = table.filter(pl.col("session_id").is_first_distinct() & (pl.col("delay_s") > 0))
        if len(early):
            warnings.append(
                f"{counted(len(early), 'first turn')} of a session with a delay and no turn before "
                f"(first at {early['source'][0]}:{early['line'][0]}): the delay is left out"
            )
        return warnings

    def _check_order(self) -> None:
        for row, (before, moment) in enumerate(pairwise(self.arrivals), 1):
            if moment < before:
                places = list(self.places.values())
                (source, line), (last_source, last_line) = places[row], places[row - 1]
                raise TraceError(
                    f"{source}:{line}: the arrival at {self._say(moment)} comes after one at "
                    f"{self._say(before)} ({last_source}:{last_line}); "
                    "order them, or have them sorted (sort, --sort)"
                )

    def _say(self, moment: Exact) -> str:
        if not self.wall_clock:
            return f"{moment} {self.unit}"
        whole = floor(moment)
        clock = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=whole)
        fraction = format(moment - whole, "f").partition(".")[2]
        return f"{clock:%Y-%m-%d %H:%M:%S}" + (f".{fraction}" if fraction else "")


def follow_up_delays(table: pl.DataFrame) -> pl.DataFrame:
    """Return the table with `delay_s` only where a turn of the same session is before."""
    first_turn = pl.col("session_id").is_null() | pl.col("session_id").is_first_distinct()
    return table.with_columns(delay_s=pl.when(first_turn).then(None).otherwise(pl.col("delay_s")))
