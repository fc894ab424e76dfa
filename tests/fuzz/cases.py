"""One mutated file: a function of the reader, the seed and the number."""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.formats import READERS, Files, valid_files
from tests.fuzz.mutations import mutate


@dataclasses.dataclass(frozen=True)
class Case:
    """The files to read, of which `changed` is not as it should be."""

    reader: str
    files: Files
    changed: str


def make_case(reader: str, seed: int, number: int) -> Case:
    """The case of that number; the first of each seed is the valid file."""
    rng = np.random.default_rng([seed, number, zlib.crc32(reader.encode())])
    files = dict(valid_files(reader))
    changed = sorted(files)[int(rng.integers(len(files)))]
    if number:
        files[changed] = mutate(files[changed], rng)
    return Case(reader, files, changed)


def write_case(case: Case, folder: Path) -> None:
    """Writes the files of a case."""
    for name, content in case.files.items():
        path = folder / name
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
        path.write_bytes(content)


def read_case(case: Case, folder: Path) -> Any:
    """What the reader makes of a case, whose files it leaves in the folder."""
    place = folder / case.reader
    write_case(case, place)
    return READERS[case.reader][1](place, case.changed)
