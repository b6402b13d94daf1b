"""The rows of a source as fields, whatever the format: found by content, or as given."""

import csv
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import msgspec

from kvplan.traces.errors import TraceError, shown
from kvplan.traces.fields import Fields
from kvplan.traces.format import Format
from kvplan.traces.formats import format_of, unknown_format
from kvplan.traces.lines import read_lines, source_name

Rows = Iterator[tuple[Format, Fields]]
OnBadRow = Callable[[TraceError], None]

_JSON = msgspec.json.Decoder(float_hook=Decimal)


def rows_of(path: str, given: Format | None, on_bad_row: OnBadRow) -> Rows:
    """Yield (format, fields) for each row of the source at `path`.

    A row that cannot be taken apart, or comes before any of a known format, goes to `on_bad_row`, which
    raises or counts it. Raises TraceError for a source that is empty, and for a header of no known format.
    """
    source = source_name(path)
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{source}: the file is empty; a trace has one request or more")
    opening = first[1].lstrip()[:1]
    kind = given.kind if given else "jsonl" if opening in (b"{", b"[") else "csv"
    if kind == "jsonl":
        yield from _json_rows(source, first, lines, given, on_bad_row)
    else:
        yield from _csv_rows(source, first, lines, given, on_bad_row)


def _json_rows(
    source: str,
    first: tuple[int, bytes],
    lines: Iterator[tuple[int, bytes]],
    form: Format | None,
    on_bad_row: OnBadRow,
) -> Rows:
    for number, line in _chain(first, lines):
        try:
            fields = Fields(_object(line, source, number), source, number, text=False)
            if form is None:
                form = format_of("jsonl", fields.values)
                if form is None:
                    raise unknown_format(fields.place, "jsonl", fields.values)
        except TraceError as error:
            on_bad_row(error)
        else:
            yield form, fields


def _object(line: bytes, source: str, number: int) -> dict[str, Any]:
    try:
        value = _JSON.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _malformed(line, source, number, error) from None
    if not isinstance(value, dict):
        raise TraceError(
            f"{source}:{number}: {shown(value)} is no JSON object; one object a line is expected"
        )
    return value


def _malformed(line: bytes, source: str, number: int, error: Exception) -> TraceError:
    """Say where a line stops being JSON: line:column, both from 1, the column in characters."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as wrong:
        return _undecodable(line, source, number, wrong)
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as wrong:
        problem = f"{wrong.msg[:1].lower()}{wrong.msg[1:]}"
        return TraceError(
            f"{source}:{number}:{wrong.colno}: malformed JSON, {problem}; one JSON object a line is expected"
        )
    except _Constant as constant:
        column = text.find(str(constant)) + 1
        return TraceError(
            f"{source}:{number}:{column}: {constant} is no JSON number; a finite number is expected"
        )
    except (ValueError, RecursionError):
        pass
    return TraceError(
        f"{source}:{number}:1: malformed JSON, {str(error)[:80]}; one JSON object a line is expected"
    )


class _Constant(Exception):
    """NaN or Infinity, which Python's json takes for numbers."""


def _refuse_constant(name: str) -> None:
    raise _Constant(name)


def _undecodable(line: bytes, source: str, number: int, error: UnicodeDecodeError) -> TraceError:
    column = len(line[: error.start].decode("utf-8")) + 1
    byte = line[error.start]
    return TraceError(
        f"{source}:{number}:{column}: byte 0x{byte:02x} is not UTF-8; text in UTF-8 is expected"
    )


def _csv_rows(
    source: str,
    first: tuple[int, bytes],
    lines: Iterator[tuple[int, bytes]],
    given: Format | None,
    on_bad_row: OnBadRow,
) -> Rows:
    header = [name.strip() for name in _cells(first[1], source, first[0])]
    form = given or format_of("csv", header)
    if form is None or not form.matches(header):
        if given:
            shown_names = ", ".join(map(shown, header[:16]))
            raise TraceError(
                f"{source}:{first[0]}: the columns {shown_names} are not those of {given.name}; "
                f"{given.needs} expected"
            )
        raise unknown_format(f"{source}:{first[0]}", "csv", header)
    columns = form.spelt(header)
    twice = next((name for name in columns if name in form.fields and columns.count(name) > 1), None)
    if twice is not None:
        raise TraceError(
            f"{source}:{first[0]}: column {twice!r} is there twice; each column once is expected"
        )
    for number, line in lines:
        try:
            cells = _cells(line, source, number)
            if len(cells) != len(columns):
                raise TraceError(
                    f"{source}:{number}: the row has {len(cells)} cells; "
                    f"{len(columns)} expected, as the header has"
                )
        except TraceError as error:
            on_bad_row(error)
        else:
            yield (
                form,
                Fields(dict(zip(columns, map(str.strip, cells), strict=True)), source, number, text=True),
            )


def _cells(line: bytes, source: str, number: int) -> list[str]:
    """Return the cells of one line; a trace has no cell that goes over several."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _undecodable(line, source, number, error) from None
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True, skipinitialspace=True))
    except csv.Error as error:
        raise TraceError(
            f"{source}:{number}: malformed CSV, {error}; quotes that close on the line are expected"
        ) from None


def _chain(first: tuple[int, bytes], rest: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    yield first
    yield from rest
