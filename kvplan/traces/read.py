"""Reading a trace: sources in, one table out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from kvplan.traces.errors import TraceError, counted, shown
from kvplan.traces.format import Format
from kvplan.traces.formats import format_named
from kvplan.traces.intake import Intake
from kvplan.traces.lines import source_name
from kvplan.traces.request import request_of
from kvplan.traces.rows import rows_of
from kvplan.traces.times import check_unit
from kvplan.traces.tokens import TokenBuilder
from kvplan.traces.trace import Start, Trace, check_limit, start_of

ZeroOutput = Literal["skip", "refuse"]


def read_trace(
    paths: Sequence[str | Path] | str | Path,
    *,
    format: str | None = None,
    time_unit: str | None = None,
    hash_tokens: int | None = None,
    sort: bool = False,
    skip_bad_rows: bool = False,
    zero_output: ZeroOutput | str = "skip",
    limit: int | None = None,
    start: Start | None = None,
) -> Trace:
    """Return the trace in the files at `paths`, its shards in this order; `-` is standard input.

    `format` is found by content when absent (names: `formats.NAMES`); `time_unit` (s, ms, us, ns) and
    `hash_tokens` (prompt tokens to a hash) are the format's when absent. Rows must be in arrival order
    unless `sort`. A bad row raises, or with `skip_bad_rows` is left out and counted; a row with 0 output
    tokens is left out and counted (`zero_output` "skip") or is bad ("refuse"). `start` and `limit` are
    those of `Trace.slice`; with a limit, and neither `sort` nor a start in time, nothing after the rows
    asked for is read.

    Raises TraceError, one sentence that names the file, the line and the field.
    """
    return _Reader(format, time_unit, hash_tokens, skip_bad_rows, zero_output).read(paths, sort, limit, start)


class _Reader:
    def __init__(
        self,
        form: str | None,
        time_unit: str | None,
        hash_tokens: int | None,
        skip_bad_rows: bool,
        zero_output: str,
    ) -> None:
        self.given: Format | None = None if form is None else format_named(form)
        self.time_unit = None if time_unit is None else check_unit(time_unit)
        if hash_tokens is not None and hash_tokens < 1:
            raise TraceError(f"hash_tokens {hash_tokens} is given; 1 token or more is expected")
        if zero_output not in ("skip", "refuse"):
            raise TraceError(f"zero_output {zero_output!r} is given; 'skip' or 'refuse' is expected")
        self.hash_tokens = hash_tokens
        self.skip_bad_rows = skip_bad_rows
        self.refuse_zero_output = zero_output == "refuse"
        self.rows = 0
        self.skipped_rows = 0
        self.first_bad: TraceError | None = None
        self.form: Format | None = None
        self.form_source = ""
        self.intake: Intake | None = None

    def read(
        self, paths: Sequence[str | Path] | str | Path, sort: bool, limit: int | None, start: Start | None
    ) -> Trace:
        sources = _checked(paths)
        first_row, first_s = start_of(start)
        check_limit(limit)
        enough = None if limit is None or sort or first_s > 0 else first_row + limit
        for path in sources:
            if enough is None or self.intake is None or self.intake.accepted < enough:
                self._read_source(path, enough)
        intake = self.intake
        if intake is None or not intake.accepted:
            raise self._nothing(sources)
        assert self.form is not None
        if self.time_unit is not None and intake.wall_clock:
            raise TraceError(
                f"time unit {self.time_unit} is given, but {sources[0]} has wall-clock times; "
                "none is expected with those"
            )
        table, rows, warnings = intake.table(sort=sort)
        if intake.zero_output_rows:
            warnings.append(f"{counted(intake.zero_output_rows, 'row')} with 0 output tokens left out")
        if self.skipped_rows:
            warnings.append(f"{counted(self.skipped_rows, 'bad row')} left out, the first: {self.first_bad}")
        trace = Trace(
            table=table,
            format=self.form.name,
            sources=[source_name(path) for path in sources],
            hash_tokens=self._hash_tokens(self.form) if intake.has_prefixes and self.form.hash_ids else None,
            has_prefixes=intake.has_prefixes,
            tokens=intake.tokens.finish(),
            rows=rows,
            skipped_rows=self.skipped_rows,
            zero_output_rows=intake.zero_output_rows,
            warnings=warnings,
        )
        return trace.slice(start, limit)

    def _read_source(self, path: str, enough: int | None) -> None:
        for form, fields in rows_of(path, self.given, self._bad_line):
            if self.intake is None or self.form is None:
                self._begin(form, source_name(path))
            elif form is not self.form:
                raise TraceError(
                    f"{fields.place} is {form.name}, but {self.form_source} is {self.form.name}; "
                    "the shards of a trace have one format"
                )
            intake = self.intake
            assert intake is not None
            row, self.rows = self.rows, self.rows + 1
            try:
                intake.add(request_of(fields, form, intake.unit, intake.tokens.hash_tokens), row, fields)
            except TraceError as error:
                self._bad_row(error)
            if intake.accepted == enough:
                return

    def _begin(self, form: Format, source: str) -> None:
        if self.hash_tokens is not None and not form.hash_ids:
            raise TraceError(
                f"hash_tokens {self.hash_tokens} is given, but {source} is {form.name}, which has no hashes"
            )
        self.form, self.form_source = form, source
        self.intake = Intake(
            unit=self.time_unit or form.time_unit,
            tokens=TokenBuilder(self._hash_tokens(form) or 0),
            refuse_zero_output=self.refuse_zero_output,
        )

    def _hash_tokens(self, form: Format) -> int | None:
        return self.hash_tokens or form.hash_tokens

    def _bad_line(self, error: TraceError) -> None:
        self.rows += 1
        self._bad_row(error)

    def _bad_row(self, error: TraceError) -> None:
        if not self.skip_bad_rows:
            raise error
        self.skipped_rows += 1
        self.first_bad = self.first_bad or error

    def _nothing(self, sources: list[str]) -> TraceError:
        names = ", ".join(map(source_name, sources))
        zero = self.intake.zero_output_rows if self.intake else 0
        if not zero and not self.skipped_rows:
            return TraceError(f"{names}: a header and no rows; a trace has one request or more")
        why = f"{counted(self.skipped_rows, 'row')} bad, {counted(zero, 'row')} with 0 output tokens"
        first = f"; the first: {self.first_bad}" if self.first_bad else ""
        return TraceError(f"{names}: no request is left ({why}{first}); one or more is expected")


def _checked(paths: Sequence[str | Path] | str | Path) -> list[str]:
    listed = [paths] if isinstance(paths, str | Path) else list(paths)
    sources = [str(path) for path in listed]
    if not sources:
        raise TraceError("no trace file is given; one or more, or - for standard input, is expected")
    for path in sources:
        if not path:
            raise TraceError(
                "the name of a trace file is empty; a path, or - for standard input, is expected"
            )
        if sources.count(path) > 1:
            raise TraceError(f"{shown(source_name(path))} is given twice; each file once is expected")
    return sources
