"""What a reader may open, read, build and print: every reader of files goes through here.

A `Budget` opens regular files alone, reads no more of them than they held when they were opened,
and counts what is built from them before it is built. A `DataError` is one printable line of at
most 300 characters.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import stat
from collections.abc import Iterator

import numpy as np

from jaxgnn._core.text import printable

# What a reader may take unless it is told: 1,024 bytes (DEFLATE's best ratio) for each byte of its
# files, not less than the first and not more than the last of these.
DEFAULT_RANGE = (256 << 20, 16 << 30)
BYTES_PER_FILE_BYTE = 1024

MESSAGE_LENGTH = 300
_PATH_LENGTH = 160
_QUOTED_LENGTH = 60
_BLOCK = 1 << 18
_LARGEST_READ = 1 << 20
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


class DataError(ValueError):
    """A file or an array that is not the data it should be; the message names it.

    The message is one line of at most 300 characters. What is not printable is escaped, as `\\x1b`.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(message, MESSAGE_LENGTH))


def quote(value: object) -> str:
    """A value from a file for a message: short, escaped, and made without all of its `repr`."""
    if isinstance(value, bool | float | np.number | np.bool_ | None):
        return str(value)
    if isinstance(value, int):
        return (
            str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
        )
    if isinstance(value, str):
        return f"'{printable(value, _QUOTED_LENGTH)}'"
    if isinstance(value, bytes):
        return f"b'{printable(value[: _QUOTED_LENGTH + 1].decode('latin1'), _QUOTED_LENGTH)}'"
    if isinstance(value, tuple | list) and all(type(item) is int for item in value[:4]):
        more = ["..."] * (len(value) > 4)
        return f"[{', '.join([*map(quote, value[:4]), *more])}]"
    return type(value).__name__


def display_path(path: str | os.PathLike[str]) -> str:
    """A path for a message, its end if it is long."""
    name = printable(os.fsdecode(path)[-_PATH_LENGTH - 1 :])
    return name if len(name) <= _PATH_LENGTH else f"...{name[3 - _PATH_LENGTH :]}"


def stem_of(path: str | os.PathLike[str]) -> str:
    """The name of a file without its endings."""
    name = os.path.basename(os.path.normpath(path)).removesuffix(".gz")
    return os.path.splitext(name)[0] or name


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns whatever goes wrong while a file is read into a `DataError` that names the file."""
    name = display_path(path)
    try:
        with np.errstate(all="ignore"):
            yield
    except DataError as error:
        message = str(error)
        raise DataError(message if message.startswith(name) else f"{name}: {message}") from error
    # Damaged bytes make the standard library, NumPy and SciPy raise almost anything.
    except Exception as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise DataError(f"{name}: cannot be read: {reason or type(error).__name__}") from error


class Budget:
    """The memory that one call of a reader may take, all together.

    `max_bytes` holds for the peak of the call, beside some tens of megabytes of buffers. By default
    it is 1,024 bytes for each byte of the files, at least 256 MiB and at most 16 GiB.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 1):
            raise DataError(f"max_bytes: expected a positive integer, got {quote(max_bytes)}")
        self._max_bytes = max_bytes
        self._used = self._file_bytes = 0

    @property
    def limit(self) -> int:
        """What may be taken at once."""
        if self._max_bytes is not None:
            return self._max_bytes
        least, most = DEFAULT_RANGE
        return max(least, min(most, BYTES_PER_FILE_BYTE * self._file_bytes))

    @property
    def left(self) -> int:
        """What may still be taken."""
        return max(0, self.limit - self._used)

    def admit(self, file_bytes: int) -> None:
        """Counts a file's size towards the default limit."""
        self._file_bytes += file_bytes

    def charge(self, num_bytes: int, what: str) -> None:
        """Counts what is about to be built, and refuses more than the limit.

        Raises:
            DataError: it would be.
        """
        if self._used + num_bytes > self.limit:
            beside = f" beside {self._used:,}" if self._used else ""
            raise DataError(
                f"{what} would take {num_bytes:,} bytes{beside}, more than the limit of "
                f"{self.limit:,} (option max_bytes)"
            )
        self._used += num_bytes

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """What is charged inside is free again afterwards."""
        used = self._used
        try:
            yield
        finally:
            self._used = used

    @contextlib.contextmanager
    def open(self, path: str | os.PathLike[str]) -> Iterator[BoundedFile]:
        """A regular file, opened for reading. Anything else is refused before it is opened."""
        _check_regular(os.stat(path).st_mode)
        # A FIFO that took the file's place in between would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            _check_regular(status.st_mode)
            self.admit(status.st_size)
            yield BoundedFile(file, status.st_size)

    def read(self, path: str | os.PathLike[str]) -> bytes:
        """All bytes of a regular file, charged."""
        with self.open(path) as file:
            self.charge(file.size, "the file")
            return file.read_all()

    def blocks(self, path: str | os.PathLike[str]) -> Iterator[bytes]:
        """The bytes of a regular file, block by block; of a gzip file, what it decompresses to."""
        with self.open(path) as file:
            magic = file.read(2)
            file.seek(0)
            with gzip.GzipFile(fileobj=file) if magic == b"\x1f\x8b" else file as stream:
                while block := stream.read(_BLOCK):
                    yield block


def head_of(path: str | os.PathLike[str], size: int = 1 << 16) -> bytes:
    """The first bytes of a file, or of what a gzip file decompresses to."""
    for block in Budget().blocks(path):
        return block[:size]
    return b""


class BoundedFile(io.RawIOBase):
    """A file as it was when it was opened; a single read is of at most 1 MiB."""

    def __init__(self, file: io.BufferedReader, size: int) -> None:
        super().__init__()
        self._file, self.size = file, size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self.size}[whence]
        return self._file.seek(start + offset)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        left = max(0, self.size - self.tell())
        size = left if size is None or size < 0 else min(size, left)
        if size > _LARGEST_READ:
            raise DataError(f"expected parts of at most {_LARGEST_READ:,} bytes, got {size:,}")
        return self._file.read(size)

    def read_all(self) -> bytes:
        """The whole file, once."""
        data = self._file.read(self.size)
        if len(data) != self.size or self._file.read(1):
            raise DataError(f"expected {self.size:,} bytes, got another size while reading")
        return data


def _check_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "something else")
        raise DataError(f"cannot be read: expected a regular file, got {kind}")
