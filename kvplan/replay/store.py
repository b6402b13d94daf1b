"""A run on disk: a directory with `run.json` and one Parquet file a table. Written whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import polars as pl

from kvplan.replay.run import Run, RunSummary

SUMMARY = "run.json"
TABLES = ("requests", "rounds", "events")


class RunError(ValueError):
    """One sentence: which directory, what is wrong with it, what would be right."""


def check_output(directory: Path, *, force: bool = False) -> None:
    """Raise RunError if a run cannot be written to `directory`.

    What is there already stays, unless `force`; and `force` replaces a run or an empty directory, nothing
    else.
    """
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        raise RunError(f"output {directory} is there already and no directory; a new directory is expected")
    if directory.exists():
        empty = not any(directory.iterdir())
        if not force and not empty:
            raise RunError(f"output {directory} is there already; a new directory, or --force, is expected")
        if not empty and not _is_run(directory):
            raise RunError(f"output {directory} holds files that are no run; --force replaces only a run")
    parent = _nearest(directory)
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise RunError(f"output {directory} cannot be made: {parent} is no directory that can be written")


def write_run(run: Run, directory: Path, *, force: bool = False) -> None:
    """Write `run` to `directory`: `run.json`, `requests.parquet`, `rounds.parquet`, `events.parquet`.

    Raises RunError when something is there already (see `check_output`) or the files cannot be written.
    """
    encoded = msgspec.json.format(msgspec.json.encode(run.summary), indent=2)
    write_files(directory, {name: getattr(run, name) for name in TABLES}, encoded + b"\n", force=force)


def write_files(
    directory: Path,
    tables: Mapping[str, pl.DataFrame],
    summary: bytes,
    *,
    force: bool = False,
    more: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write tables, by name, and a summary's JSON to `directory`, whole or not at all.

    `more` writes what else belongs into the directory that it is given. Raises RunError as `write_run` does.
    """
    check_output(directory, force=force)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    except OSError as error:
        raise RunError(f"output {directory} cannot be made: {error.strerror}") from None
    try:
        os.chmod(fresh, 0o755)
        for name, table in tables.items():
            table.write_parquet(fresh / f"{name}.parquet")
        (fresh / SUMMARY).write_bytes(summary)
        more(fresh)
        if directory.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{directory.name}.old.", dir=directory.parent))
            os.rename(directory, old / "run")
            os.rename(fresh, directory)
            shutil.rmtree(old)
        else:
            os.rename(fresh, directory)
    except OSError as error:
        raise RunError(f"output {directory} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def read_summary(directory: Path) -> RunSummary:
    """Return the summary of the run in `directory`. Raises RunError when there is none."""
    try:
        return msgspec.json.decode((directory / SUMMARY).read_bytes(), type=RunSummary)
    except FileNotFoundError:
        raise RunError(f"{directory} is no run: {SUMMARY} is missing") from None
    except OSError as error:
        raise RunError(f"{directory / SUMMARY} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise RunError(f"{directory / SUMMARY} is not what a run's summary looks like: {error}") from None


def read_table(directory: Path, name: str) -> pl.DataFrame:
    """Return the table `name` ("requests", "rounds" or "events") of the run in `directory`.

    Raises RunError when it cannot be read.
    """
    path = directory / f"{name}.parquet"
    try:
        return pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RunError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def _is_run(directory: Path) -> bool:
    return (directory / SUMMARY).is_file() and all((directory / f"{n}.parquet").is_file() for n in TABLES)


def _nearest(directory: Path) -> Path:
    """Return the nearest directory above that is there."""
    return next(parent for parent in directory.absolute().parents if parent.exists())
