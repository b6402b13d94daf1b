"""A trace kept with a run, so that the run can be asked when the trace has moved."""

from __future__ import annotations

import io
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import zstandard

from kvplan.replay.store import RunError
from kvplan.traces import Trace
from kvplan.traces.tokens import TokenStore

TABLE, TOKENS = "trace.parquet", "trace_tokens.npz.zst"


@dataclass(frozen=True, slots=True)
class TraceHead:
    """What of a trace is neither its table nor its tokens."""

    format: str
    sources: list[str]
    hash_tokens: int | None
    has_prefixes: bool
    skipped_rows: int
    zero_output_rows: int
    warnings: list[str]
    fingerprint: str


def head_of(trace: Trace) -> TraceHead:
    """The head of a trace."""
    names = [field.name for field in fields(TraceHead)]
    return TraceHead(**{name: getattr(trace, name) for name in names})


def write_trace(trace: Trace, directory: Path) -> None:
    """Write the trace's table and tokens into ``directory``."""
    trace.table.write_parquet(directory / TABLE)
    arrays: dict[str, Any] = {field.name: getattr(trace.tokens, field.name) for field in fields(TokenStore)}
    file = io.BytesIO()
    np.savez(file, rows=trace.rows, **arrays)
    (directory / TOKENS).write_bytes(zstandard.ZstdCompressor(level=9).compress(file.getvalue()))


def read_kept_trace(directory: Path, head: TraceHead) -> Trace:
    """The trace in ``directory``. Raises ``RunError`` if it is not the one that ``head`` is of."""
    try:
        table = pl.read_parquet(directory / TABLE)
        data = zstandard.ZstdDecompressor().decompress((directory / TOKENS).read_bytes())
        arrays = np.load(io.BytesIO(data), allow_pickle=False)
        scalars = {"private_first", "top"}
        parts: dict[str, Any] = {
            field.name: int(arrays[field.name]) if field.name in scalars else arrays[field.name]
            for field in fields(TokenStore)
        }
    except (OSError, ValueError, KeyError, zstandard.ZstdError, pl.exceptions.PolarsError) as error:
        raise RunError(f"the trace in {directory} cannot be read: {str(error).splitlines()[0]}") from None
    trace = Trace(
        table=table,
        format=head.format,
        sources=head.sources,
        hash_tokens=head.hash_tokens,
        has_prefixes=head.has_prefixes,
        tokens=TokenStore(**parts),
        rows=arrays["rows"],
        skipped_rows=head.skipped_rows,
        zero_output_rows=head.zero_output_rows,
        warnings=head.warnings,
    )
    if trace.fingerprint != head.fingerprint:
        raise RunError(f"the trace in {directory} is not the one that its run played; replay it again")
    return trace
