"""The lines of a source: a file, plain or `.gz` or `.zst`, or `-` for standard input."""

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

import zstandard

from kvplan.traces.errors import TraceError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STDIN = "-"
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CHUNK_BYTES = 1 << 18


def source_name(path: str) -> str:
    """Return how messages and tables name the source at `path`."""
    return "<stdin>" if path == STDIN else path


def read_lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line without its end) for every line that is not blank.

    A byte-order mark, CRLF ends and a missing last newline leave no mark on what comes out. Compression is
    recognised by content. Raises TraceError when the source cannot be opened, read or decompressed to its
    end.
    """
    name = source_name(path)
    number = 0
    try:
        with _opened(path) as stream:
            for line in stream:
                number += 1
                if number == 1:
                    line = line.removeprefix(BYTE_ORDER_MARK)
                if line.strip():
                    yield number, line.rstrip(b"\r\n")
    except TraceError:
        raise
    except FileNotFoundError:
        raise TraceError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise TraceError(f"{name} is a directory; a trace is a file, or several") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise TraceError(
            f"{name}: the compressed data is damaged or cut short after line {number} ({error}); "
            "a whole file is expected"
        ) from None
    except OSError as error:
        raise TraceError(f"{name} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise TraceError(f"{name!r} cannot be read: {error}") from None


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if path == STDIN:
        yield _decompressed(_standard_input(), path)
    else:
        with open(path, "rb") as raw:
            yield _decompressed(raw, path)


def _standard_input() -> io.BufferedReader:
    raw = getattr(sys.stdin, "buffer", None)
    if raw is None:
        raise TraceError(f"{source_name(STDIN)} is closed; a trace is expected on it")
    return raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)


def _decompressed(raw: io.BufferedReader, path: str) -> IO[bytes]:
    magic = raw.peek(len(ZSTD_MAGIC))[: len(ZSTD_MAGIC)]
    if magic.startswith(GZIP_MAGIC):
        return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=raw)), CHUNK_BYTES)
    if magic == ZSTD_MAGIC:
        return io.BufferedReader(_ZstdFrames(raw), CHUNK_BYTES)
    for suffix in (".gz", ".zst"):
        if path.endswith(suffix) and magic:
            raise TraceError(
                f"{path} does not begin as a {suffix} file does; a file of plain text needs another name"
            )
    return raw


class _ZstdFrames(io.RawIOBase):
    """All frames of a zstd file, one after the other.

    zstandard's own reader takes a file that ends inside a frame for a whole one; this one raises EOFError.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        self.raw = raw
        self.frame: zstandard.ZstdDecompressionObj | None = None
        self.packed = b""
        self.unpacked = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        target = memoryview(buffer).cast("B")
        while not self.unpacked and self._advance():
            pass
        taken = self.unpacked[: len(target)]
        target[: len(taken)] = taken
        self.unpacked = self.unpacked[len(taken) :]
        return len(taken)

    def _advance(self) -> bool:
        packed = self.packed or self.raw.read(CHUNK_BYTES)
        self.packed = b""
        if not packed:
            if self.frame is not None:
                raise EOFError("it ends inside a frame")
            return False
        if self.frame is None:
            self.frame = zstandard.ZstdDecompressor().decompressobj()
        self.unpacked = memoryview(self.frame.decompress(packed))
        if self.frame.eof:
            self.packed = self.frame.unused_data
            self.frame = None
        return True
