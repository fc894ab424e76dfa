"""`download`: data sets by name, from pinned addresses, checked, resumed where they broke off."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import logging
import os
import pathlib
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

from jaxgnn.data.cache.directory import user_cache
from jaxgnn.data.files.limits import DataError, display_path

TIMEOUT = 30.0
"""Seconds without a byte after which a server counts as stalled."""
_CHUNK = 1 << 16
_TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}")  # as the module tempfile names files


class Source(NamedTuple):
    """A data set's files.

    Attributes:
        addresses: folders that have them, tried in order.
        files: by name, bytes and SHA-256.
        licence, citation: what the source says.
    """

    addresses: tuple[str, ...]
    files: dict[str, tuple[int, str]]
    licence: str
    citation: str


_GITHUB = "https://raw.githubusercontent.com"
_PLANETOID = f"{_GITHUB}/kimiyoung/planetoid/af6abf468a772cc055bec88c52e4d6f51b7c37e3/data/"
_PLATONOV = (
    f"{_GITHUB}/yandex-research/heterophilous-graphs/a431395582e929d88271309716bea4fe24ce6318/data/"
)


def _files(table: str) -> dict[str, tuple[int, str]]:
    """Name, bytes and SHA-256 a line."""
    rows = (line.split() for line in table.strip().splitlines())
    return {name: (int(size), checksum) for name, size, checksum in rows}


_CORA = """
ind.cora.allx 257305 9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543
ind.cora.ally 47959 2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71
ind.cora.graph 59847 58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d
ind.cora.test.index 5000 297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875
ind.cora.tx 148025 b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a
ind.cora.ty 28135 41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad
ind.cora.x 22119 23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab
ind.cora.y 4054 94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1
"""
_MINESWEEPER = """
minesweeper.npz 135045 e664c8dacf1e8ac466c2c09ed4b237bd2c5541f47a6eae9c6092cb87f16412b3
"""

SOURCES = {
    "cora": Source(
        (_PLANETOID,),
        _files(_CORA),
        "MIT (of the repository)",
        "Yang, Cohen and Salakhutdinov, ICML 2016",
    ),
    "minesweeper": Source(
        (_PLATONOV,),
        _files(_MINESWEEPER),
        "MIT (of the repository)",
        "Platonov et al., ICLR 2023",
    ),
}
"""The sets that `download` knows."""

ELSEWHERE = {
    "citeseer": "github.com/kimiyoung/planetoid has data/ind.citeseer.*",
    "pubmed": "github.com/kimiyoung/planetoid has data/ind.pubmed.*",
    "amazon_photo": "github.com/shchur/gnn-benchmark has data/npz/amazon_electronics_photo.npz",
    "dblp": "github.com/abojchevski/graph2gauss has data/dblp.npz",
    "flickr": "GraphSAINT (github.com/GraphSAINT/GraphSAINT) has adj_full.npz, role.json, ...",
    "yelp": "GraphSAINT (github.com/GraphSAINT/GraphSAINT) has adj_full.npz, role.json, ...",
    "reddit": "GraphSAGE (snap.stanford.edu/graphsage) has reddit_data.npz, reddit_graph.npz",
    "ogbn-arxiv": "the OGB (ogb.stanford.edu) has the archive arxiv.zip, to be unpacked",
    "ogbn-products": "the OGB (ogb.stanford.edu) has the archive products.zip, to be unpacked",
    "ogbn-proteins": "the OGB (ogb.stanford.edu) has the archive proteins.zip, to be unpacked",
    "proteins_full": "TUDataset (graphlearning.io) has the archive PROTEINS_full.zip",
}
"""Where other well-known sets are to be had: no checksum of them is known here."""


def download(name: str, root: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """The directory of a data set's files, downloaded where they are not there yet.

    Each file is checked against its size and SHA-256. One that broke off goes on where it ended, in
    a later call too. Files that were placed there by hand are taken if they are the right ones.

    Args:
        name: `"cora"` or `"minesweeper"`.
        root: a directory, in which that of the set is; by default `JAXGNN_CACHE`, or `jaxgnn` in
            the user's cache directory.

    Raises:
        DataError: an unknown name, which says where other well-known sets are; no address has the
            files; or pooch is missing (`pip install "jaxgnn[data]"`).
        OSError: the directory cannot be written.
    """
    if name not in SOURCES:
        names = f"no data set to download of that name, there are {', '.join(SOURCES)}"
        raise DataError(f"{display_path(name)}: {hint(name) or names}")
    source = SOURCES[name]
    directory = user_cache() / name if root is None else pathlib.Path(root) / name
    if _missing(source, directory):
        directory.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(directory):
            _remove_temporary(directory)
            for file in _missing(source, directory):
                _fetch(source, directory, file)
    return directory


def hint(name: str) -> str | None:
    """Where a well-known set is that `download` does not know."""
    found = ELSEWHERE.get(name.lower())
    return None if found is None else f"not downloaded by name: {found}; load reads its directory"


def _pooch() -> Any:
    try:
        import pooch
    except ImportError as error:
        raise DataError('downloads need pooch: pip install "jaxgnn[data]"') from error
    return pooch


def _missing(source: Source, directory: pathlib.Path) -> list[str]:
    return [file for file in source.files if not _is_right(directory / file, source.files[file])]


@contextlib.contextmanager
def _one_at_a_time(directory: pathlib.Path) -> Iterator[None]:
    """Other processes wait, and then find the files there. The lock is beside the directory."""
    with open(directory.with_name(f".{directory.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_temporary(directory: pathlib.Path) -> None:
    """What pooch leaves where it is killed; nobody else downloads into the directory now."""
    for path in directory.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _is_right(path: pathlib.Path, wanted: tuple[int, str]) -> bool:
    if not path.is_file() or path.stat().st_size != wanted[0]:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == wanted[1]


def _fetch(source: Source, directory: pathlib.Path, file: str) -> None:
    """One file, from the first address that has it."""
    pooch = _pooch()
    size, checksum = source.files[file]
    reasons = []
    for address in source.addresses:
        try:
            with _quiet(pooch.get_logger()):
                pooch.retrieve(
                    address + file,
                    known_hash=f"sha256:{checksum}",
                    fname=file,
                    path=directory,
                    downloader=_Resuming(directory / f"{file}.part", size),
                )
            return
        except urllib.error.HTTPError as error:
            reasons.append(f"{address}: status {error.code}")
        except (OSError, http.client.HTTPException, DataError) as error:
            reasons.append(f"{address}: {getattr(error, 'reason', None) or error}")
        except ValueError:
            reasons.append(f"{address}: the file's checksum is not the pinned one")
    raise DataError(
        f"{file}: cannot be downloaded ({'; '.join(map(str, reasons))}); placed by hand in "
        f"{display_path(directory)} it is taken"
    )


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Resuming:
    """pooch's downloader that goes on where an earlier one ended.

    What has arrived is in `part`. pooch checks what is moved from there to its temporary file, and
    moves that to where it belongs.
    """

    def __init__(self, part: pathlib.Path, size: int):
        self.part, self.size = part, size

    def __call__(self, url: str, output_file: Any, pooch: Any, check_only: bool = False) -> None:
        there = self.part.stat().st_size if self.part.exists() else 0
        if there > self.size:
            self.part.unlink()
            there = 0
        if there < self.size:
            self._read(url, there)
        os.replace(self.part, output_file)

    def _read(self, url: str, there: int) -> None:
        headers = {"User-Agent": "jaxgnn"}
        if there:
            headers["Range"] = f"bytes={there}-"
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            content = response.headers.get("Content-Range", "")
            if response.status != 206 or not content.startswith(f"bytes {there}-"):
                there = 0
            with self.part.open("ab" if there else "wb") as file:
                while chunk := response.read(_CHUNK):
                    there += len(chunk)
                    if there > self.size:
                        file.truncate(0)
                        raise DataError(f"more than the {self.size:,} bytes that it should have")
                    file.write(chunk)
        if there < self.size:
            raise DataError(f"ended after {there:,} of {self.size:,} bytes; call again to go on")
