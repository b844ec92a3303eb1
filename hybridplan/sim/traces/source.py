"""A trace file as numbered lines, whatever it is packed in; constant memory per line.

gzip and zstd are recognised by their first bytes, never by the file's name. A UTF-8 byte order
mark and CRLF endings vanish here. Files that cannot be a trace (binary, a web page, a Git LFS
pointer) are refused with the reason.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from hybridplan.errors import InputError, MissingExtraError

HEAD_BYTES = 1 << 20
CHUNK_BYTES = 1 << 18

_PACKED = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2-compressed",
    b"\xfd7zXZ\x00": "xz-compressed",
    b"PAR1": "Parquet",
    b"SQLite format 3": "an SQLite database",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


class Source:
    """A regular file, plain or compressed, that can be read from the start again and again.

    Raises InputError when the file is absent, unreadable, empty, or visibly no trace.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            if self.path.is_dir():
                raise InputError(f"{self.path} is a folder, not a trace file")
            if not self.path.exists():
                raise InputError(f"{self.path} does not exist")
            if not self.path.is_file():
                raise InputError(f"{self.path} is no regular file; a trace is read more than once")
            with self.path.open("rb") as stream:
                magic = stream.read(4)
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path} cannot be read: {_reason(error)}") from error
        self.packing = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd"}.get(magic[:2], "")
        with self.open() as stream:
            self.head = self._read(stream, HEAD_BYTES).removeprefix(b"\xef\xbb\xbf")
        self._refuse_other_files()

    def _refuse_other_files(self) -> None:
        head = self.head
        if not head.strip():
            raise InputError(f"{self.path} is empty")
        for magic, what in _PACKED.items():
            if head.startswith(magic):
                raise InputError(
                    f"{self.path} is {what}; a trace is text (JSONL, JSON, CSV, a log), "
                    "plain or compressed with gzip or zstd"
                )
        if b"\x00" in head:
            raise InputError(f"{self.path} is a binary file, not a trace")
        start = head[:512].lstrip().lower()
        if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
            raise InputError(f"{self.path} is a web page or XML, not a trace; download it again")

    def open(self) -> BinaryIO:
        """A fresh stream of the uncompressed bytes."""
        try:
            if self.packing == "gzip":
                return cast("BinaryIO", gzip.open(self.path, "rb"))
            raw = self.path.open("rb")
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {_reason(error)}") from error
        if self.packing == "zstd":
            return cast("BinaryIO", io.BufferedReader(_ZstdReader(raw, self.path), CHUNK_BYTES))
        return raw

    def _read(self, stream: BinaryIO, size: int, line: int | None = None) -> bytes:
        try:
            return stream.read(size) if line is None else stream.readline()
        except (EOFError, zlib.error, OSError) as error:
            where = "" if line is None else f" after line {line}"
            raise InputError(
                f"{self.path} is cut off or damaged{where}: {_reason(error)}"
            ) from error

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(number from 1, bytes without line ending) of every line that is not blank."""
        with self.open() as stream:
            number = 0
            while line := self._read(stream, 0, number):
                number += 1
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                line = line.rstrip(b"\r\n")
                if line and not line.isspace():
                    yield number, line

    def chunks(self) -> Iterator[bytes]:
        """The bytes in pieces of a quarter MiB, for values that span lines."""
        with self.open() as stream:
            chunk = self._read(stream, CHUNK_BYTES).removeprefix(b"\xef\xbb\xbf")
            while chunk:
                yield chunk
                chunk = self._read(stream, CHUNK_BYTES)

    def fingerprint(self) -> str:
        """Name and checksum of the file's head: two files' ids never share this namespace."""
        return f"{self.path.name}#{zlib.crc32(self.head):08x}"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


class _ZstdReader(io.RawIOBase):
    """Frames of a zstd file one after another; a cut-off last frame is an error, not an end."""

    def __init__(self, raw: BinaryIO, path: Path) -> None:
        try:
            import zstandard
        except ImportError as error:
            raw.close()
            raise MissingExtraError(
                f"{path} is zstd-compressed: install hybridplan[trace], or unpack it first"
            ) from error
        self._zstd: Any = zstandard
        self._raw = raw
        self._frame: Any = None
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._fill():
            return 0
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _fill(self) -> bool:
        """Decompress until some bytes are ready; False at the end of the file."""
        pending = b""
        while True:
            if not pending:
                pending = self._raw.read(CHUNK_BYTES)
                if not pending:
                    if self._frame is not None:
                        raise EOFError("the last zstd frame is incomplete")
                    return False
            if self._frame is None:
                self._frame = self._zstd.ZstdDecompressor().decompressobj()
            try:
                self._ready += self._frame.decompress(pending)
            except self._zstd.ZstdError as error:
                raise OSError(str(error)) from error
            pending = b""
            if self._frame.eof:
                pending = self._frame.unused_data
                self._frame = None
            if self._ready and not pending:
                return True

    def close(self) -> None:
        self._raw.close()
        super().close()
