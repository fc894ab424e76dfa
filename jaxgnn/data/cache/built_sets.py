"""The cache of built data sets: what `load` made of large files is mapped from a file of its own.

An entry is found by the reader, its options and the paths, and holds for as long as its sources are
what they were: size and time, or where only the time differs (or says too little), SHA-256. Entries
are written beside their place and moved there, so that a process that is killed, or another one at
the same time, leaves a whole entry or none.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import inspect
import json
import os
import pathlib
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jaxgnn
from jaxgnn.data.cache import set_file
from jaxgnn.data.cache.directory import graph_cache
from jaxgnn.data.files.limits import DataError, display_path, reading

CACHED_FROM = 16 << 20
"""Bytes of the sources from which `load` caches by itself: below, reading takes about as long."""
MOST_BYTES = 64 << 30
"""Bytes of all entries; beyond, those that were not used for longest are removed."""

_MOST_SOURCES, _DEEPEST = 10_000, 8
# A file that was changed within this time before it was read may change again at the same time.
_COARSEST_TIME = 2 * 10**9
_ENDING, _UNFINISHED = ".graph", ".part"


class Source(NamedTuple):
    """A file that is read, as it was before."""

    path: str
    size: int
    mtime_ns: int


def load_cached(
    reader: Callable[..., Any],
    found: dict[str, Any],
    options: dict[str, Any],
    cache: bool | None,
) -> Any:
    """`reader(**found, **options)`, or what it returned for the same files before.

    Args:
        reader: a function at the top level of a module: an entry is found by its name.
        found: the paths; a reader without any is not cached.
        options: other arguments, part of what the entry is found by but for `max_bytes`.
        cache: None: where the files are large. True: of any size. False: never.
    """
    started = time.time_ns()
    directory = None if cache is False else graph_cache()
    identity = None if directory is None else _identity(reader, found, options)
    sources = None if identity is None else _sources(found)
    if not sources or (cache is None and sum(source.size for source in sources) < CACHED_FROM):
        return reader(**found, **options)
    assert directory is not None and identity is not None
    if not _is_private(directory):
        warnings.warn(
            f"{display_path(directory)}: the cache of graphs is not used: the directory belongs "
            "to another user, or others may write to it",
            stacklevel=3,
        )
        return reader(**found, **options)
    path = directory / _name(identity)
    loaded = None
    with contextlib.suppress(DataError), reading(path):
        notes = set_file.read_notes(path)
        if _is_fresh(notes, identity, sources):
            loaded, _ = set_file.read(path, options.get("max_bytes"))
            with contextlib.suppress(OSError):
                os.utime(path)  # it was used
            if not _should_renew(notes, sources, started):
                return loaded
    if loaded is None:
        loaded = reader(**found, **options)
    with contextlib.suppress(OSError, MemoryError, set_file.NotCacheable):  # a full disk, say
        _store(path, loaded, identity, sources, found, started)
    return loaded


def _identity(
    reader: Callable[..., Any], found: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any] | None:
    """What an entry is of, in JSON's types; None of options that JSON does not hold."""
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(reader).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    settings = {name: value for name, value in (defaults | options).items() if name != "max_bytes"}
    paths = {
        name: [os.fspath(value), os.path.abspath(value), os.path.realpath(value)]
        for name, value in found.items()
        if isinstance(value, os.PathLike)
    }
    others = {name: value for name, value in found.items() if name not in paths}
    identity = {
        "version": [set_file.VERSION, jaxgnn.__version__],
        "reader": f"{reader.__module__}.{reader.__qualname__}",
        "paths": paths,
        "options": settings | others,
    }
    try:
        return json.loads(json.dumps(identity, allow_nan=False))
    except (TypeError, ValueError):
        return None


def _name(identity: dict[str, Any]) -> str:
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    first = next(iter(identity["paths"].values()))[1]
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", os.path.basename(first))[:40]
    return f"{readable}-{key}{_ENDING}"


# Sources.


def _sources(found: dict[str, Any]) -> list[Source] | None:
    """All that the reader may read: files, and those of directories; None where that is too much.

    More files than it reads do no harm: a change of one rebuilds the entry for nothing.
    """
    sources = []
    with contextlib.suppress(OSError):
        for value in found.values():
            if not isinstance(value, os.PathLike):
                continue
            for path in _files(pathlib.Path(value)):
                status = os.stat(path)
                sources.append(Source(os.path.abspath(path), status.st_size, status.st_mtime_ns))
                if len(sources) > _MOST_SOURCES:
                    return None
        return sources
    return None


def _files(path: pathlib.Path) -> Iterator[str | pathlib.Path]:
    if not path.is_dir():
        parts = path.name.startswith("ind.")  # Planetoid's files belong together
        yield from sorted(path.parent.glob("ind.*")) if parts else [path]
        return
    base = len(path.parts)
    for folder, folders, names in os.walk(path, followlinks=True):
        folders.sort()
        if len(pathlib.Path(folder).parts) - base >= _DEEPEST:
            raise OSError(f"{folder}: more than {_DEEPEST} levels")
        yield from (os.path.join(folder, name) for name in sorted(names))


def _is_fresh(notes: Any, identity: dict[str, Any], sources: list[Source]) -> bool:
    """Whether an entry is of these sources as they are now."""
    if notes["identity"] != identity:
        return False
    kept = notes["sources"]
    if [entry[:2] for entry in kept] != [[source.path, source.size] for source in sources]:
        return False
    return all(
        source.mtime_ns == mtime_ns or _checksum(source.path) == checksum
        for source, (_, _, mtime_ns, checksum) in zip(sources, kept, strict=True)
    )


def _should_renew(notes: Any, sources: list[Source], started: int) -> bool:
    """Whether checksums had to be compared, which times will spare the next call."""
    known = all(
        source.mtime_ns == entry[2] for source, entry in zip(sources, notes["sources"], strict=True)
    )
    return not known and all(_is_certain(source, started) for source in sources)


def _is_certain(source: Source, started: int) -> bool:
    """Whether a later change would have another time."""
    return source.mtime_ns < started - _COARSEST_TIME


def _checksum(path: str) -> str | None:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
    return None


# Entries.


def _store(
    path: pathlib.Path,
    loaded: Any,
    identity: dict[str, Any],
    sources: list[Source],
    found: dict[str, Any],
    started: int,
) -> None:
    """Writes an entry, unless the sources changed while they were read."""
    encoded = set_file.encode(loaded)
    path.parent.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if encoded.nbytes > MOST_BYTES or 2 * encoded.nbytes > shutil.disk_usage(path.parent).free:
        return
    kept = []
    for source in sources:
        mtime_ns = source.mtime_ns if _is_certain(source, started) else None
        kept.append([source.path, source.size, mtime_ns, _checksum(source.path)])
    if _sources(found) != sources:
        return
    _remove_unfinished(path.parent)
    descriptor, temporary = tempfile.mkstemp(_UNFINISHED, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed: nobody takes it for left behind
            set_file.write(file, encoded, {"identity": identity, "sources": kept})
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise
    _remove_oldest(path)


def _remove_unfinished(directory: pathlib.Path) -> None:
    """Files of processes that ended before they were done: those that nobody holds."""
    for path in directory.glob(f"*{_UNFINISHED}"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _remove_oldest(newest: pathlib.Path) -> None:
    """Entries that were not used for longest, while all take more than `MOST_BYTES`.

    Who has mapped one keeps it: the system frees the file afterwards.
    """
    entries = []
    for path in newest.parent.glob(f"*{_ENDING}"):
        with contextlib.suppress(OSError):
            status = path.stat()
            entries.append((path == newest, status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, _, size, _ in entries)
    for is_newest, _, size, path in sorted(entries):
        if total <= MOST_BYTES or is_newest:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


def _is_private(directory: pathlib.Path) -> bool:
    """Whether nobody but the user can have written what is there, if anything is."""
    try:
        status = directory.stat()
    except OSError:
        return True
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022
