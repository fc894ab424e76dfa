"""Tables by columns, from CSV and Parquet files: what each column is, and where it is wrong."""

from __future__ import annotations

import csv
import importlib
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxgnn.data.files.limits import Budget, DataError, quote, reading
from jaxgnn.data.files.lines import as_number, text_lines

_CHUNK_FIELDS = 1 << 16
_MOST_ROWS = 2**31 - 1
# A string of Python beside its characters, and its place in a list.
_STRING = 64


class Column:
    """What the fields of a column become; `add` takes some, with the place of each for errors."""

    def add(self, fields: list[str], place: Callable[[int], str], budget: Budget) -> None:
        raise NotImplementedError


class Text(Column):
    """Strings as they are."""

    def __init__(self) -> None:
        self.values: list[str] = []

    def add(self, fields: list[str], place: Callable[[int], str], budget: Budget) -> None:
        budget.charge(_STRING * len(fields) + sum(map(len, fields)), "text")
        self.values.extend(fields)


class Choice(Column):
    """One of some words, in any case, as its number, int8."""

    def __init__(self, numbers: Mapping[str, int], expected: str) -> None:
        self._numbers, self._expected = numbers, expected
        self._parts = [np.zeros(0, np.int8)]

    def add(self, fields: list[str], place: Callable[[int], str], budget: Budget) -> None:
        budget.charge(2 * len(fields), "words")
        part = np.array([self._numbers.get(field.lower(), -1) for field in fields], np.int8)
        if part.size and part.min() < 0:
            i = int(part.argmin())
            raise DataError(f"{place(i)}: expected {self._expected}, got {quote(fields[i])}")
        self._parts.append(part)

    def numpy(self) -> np.ndarray:
        return np.concatenate(self._parts)


class Ids(Column):
    """Different names, not empty, numbered from 0 in their order."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._start = 0

    def add(self, fields: list[str], place: Callable[[int], str], budget: Budget) -> None:
        budget.charge((_STRING + 150) * len(fields) + 4 * sum(map(len, fields)), "ids")
        for i, field in enumerate(fields):
            if not field or self.numbers.setdefault(field, len(self.numbers)) != i + self._start:
                what = "an id that was there before" if field else "an empty id"
                raise DataError(f"{place(i)}: expected different ids, got {what}: {quote(field)}")
        self._start += len(fields)


class References(Column):
    """Ids of another table, as its numbers, int32."""

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers, self._parts = numbers, [np.zeros(0, np.int32)]

    def add(self, fields: list[str], place: Callable[[int], str], budget: Budget) -> None:
        budget.charge(8 * len(fields), "ids")
        numbers = [self._numbers.get(field, -1) for field in fields]
        part = np.array(numbers, np.int32)
        if part.size and part.min() < 0:
            i = int(part.argmin())
            raise DataError(f"{place(i)}: expected an id of a node, got {quote(fields[i])}")
        self._parts.append(part)

    def numpy(self) -> np.ndarray:
        return np.concatenate(self._parts)


class Numbers(Column):
    """Finite numbers, float32."""

    def __init__(self) -> None:
        self._parts = [np.zeros(0, np.float32)]

    def add(self, fields: list[str], place: Callable[[int], str], budget: Budget) -> None:
        budget.charge(12 * len(fields), "numbers")  # with the matrix of all columns
        numbers = [as_number(field) for field in fields]
        if None in numbers:
            i = numbers.index(None)
            raise DataError(f"{place(i)}: expected a finite float32 number, got {quote(fields[i])}")
        self._parts.append(np.array(numbers, np.float32))

    def numpy(self) -> np.ndarray:
        return np.concatenate(self._parts)


def matrix(columns: Mapping[str, Numbers]) -> np.ndarray | None:
    """The columns beside each other; None without one."""
    if not columns:
        return None
    return np.stack([column.numpy() for column in columns.values()], axis=1)


def find_table(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    """`name.csv`, `.csv.gz` or `.parquet` of a directory."""
    for ending in (".csv", ".csv.gz", ".parquet"):
        if (path := folder / f"{name}{ending}").exists():
            return path
    return None


def read_columns(
    path: pathlib.Path,
    columns: Mapping[str, Column],
    optional: Mapping[str, Column],
    budget: Budget,
) -> tuple[int, dict[str, Numbers], set[str]]:
    """Reads a table into `columns`, and those of `optional` that it has.

    Returns:
        The number of rows, the other columns as numbers, and the names of the optional ones
        that are there.

    Raises:
        DataError: a column is missing, twice or without a name, a name is almost that of an
            optional column, a row has another number of fields, or a field is not what its column
            holds; with the file, the line (the row, of Parquet) and the column.
    """
    with reading(path):
        parquet = path.suffix == ".parquet"
        chunks = _parquet_chunks(path, budget) if parquet else _csv_chunks(path, budget)
        names, _ = next(chunks)
        _check_names(names, columns, optional)
        taken = {**columns, **{name: optional[name] for name in optional if name in names}}
        others = {name: Numbers() for name in names if name not in taken}
        readers = [taken.get(name) or others[name] for name in names]
        rows, word = 0, "row" if parquet else "line"
        for fields, lines in chunks:
            rows += len(lines)
            if rows > _MOST_ROWS:
                raise DataError(f"expected at most {_MOST_ROWS} rows, got more")
            for i, (name, reader) in enumerate(zip(names, readers, strict=True)):

                def place(row: int, name: str = name, lines: list[int] = lines) -> str:
                    return f"{word} {lines[row]}, column {quote(name)}"

                reader.add(fields[i], place, budget)
        return rows, others, set(names) & set(optional)


def _check_names(
    names: list[str], needed: Mapping[str, Column], optional: Mapping[str, Column]
) -> None:
    for name in needed:
        if name not in names:
            raise DataError(
                f"line 1: expected the column {quote(name)}, got {quote(', '.join(names[:9]))}"
            )
    if "" in names:
        raise DataError(
            "line 1: expected a name for each column, got none for column "
            f"{names.index('') + 1} (pandas: to_csv(..., index=False))"
        )
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"line 1: expected different names of columns, got {quote(twice)}")
    # Such a column would be a feature, and a label a feature that tells the class.
    missing = set(optional).difference(names)
    for name in names:
        plain = name.strip().lower()
        for meant in missing & {plain, plain.removesuffix("s")}:
            raise DataError(f"line 1: expected the column {quote(meant)}, got {quote(name)}")


def _csv_chunks(
    path: str | os.PathLike[str], budget: Budget
) -> Iterator[tuple[list[Any], list[int]]]:
    """The names; then some rows at a time, by column, and the line of each."""
    numbers = [0]

    def lines() -> Iterator[str]:
        for number, line in text_lines(path, budget):
            numbers[0] = number
            yield f"{line.rstrip(chr(10)).rstrip(chr(13))}\n"

    reader = csv.reader(lines(), strict=True)
    names: list[str] | None = None
    rows: list[list[str]] = []
    at: list[int] = []
    try:
        for row in reader:
            if not row or (len(row) == 1 and not row[0].strip()):
                continue
            if names is None:
                names = [name.strip() for name in row]
                if len(names) > _CHUNK_FIELDS // 4:
                    raise DataError(f"line 1: expected fewer columns, got {len(names)}")
                yield names, []
                continue
            if len(row) != len(names):
                raise DataError(f"line {numbers[0]}: expected {len(names)} fields, got {len(row)}")
            rows.append([field.strip() for field in row])
            at.append(numbers[0])
            if len(rows) * len(names) >= _CHUNK_FIELDS:
                yield [list(column) for column in zip(*rows, strict=True)], at
                rows, at = [], []
    except csv.Error as error:
        raise DataError(f"line {numbers[0]}: expected comma-separated fields: {error}") from None
    if names is None:
        raise DataError("line 1: expected the names of the columns, got an empty file")
    if rows:
        yield [list(column) for column in zip(*rows, strict=True)], at


def _parquet_chunks(
    path: str | os.PathLike[str], budget: Budget
) -> Iterator[tuple[list[Any], list[int]]]:
    """The same of a Parquet file, by pyarrow; rows count from 1."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")  # no dependency, not even of checks
    except ImportError:
        raise DataError("a Parquet file needs pyarrow: pip install pyarrow") from None
    with budget.open(path) as regular:  # only to check and count it
        budget.charge(2 * regular.size, "the file")
    with parquet.ParquetFile(path) as file:
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        largest = max((group.total_byte_size for group in groups), default=0)
        budget.charge(2 * max(0, largest), "a row group")
        names = [str(name) for name in file.schema_arrow.names]
        yield names, []
        row = 1
        size = max(1, _CHUNK_FIELDS // max(1, len(names)))
        for batch in file.iter_batches(batch_size=size):
            columns = [[_field(value) for value in column.to_pylist()] for column in batch.columns]
            yield columns, list(range(row, row + batch.num_rows))
            row += batch.num_rows


def _field(value: Any) -> str:
    """A value of a Parquet file as CSV would write it."""
    if value is None or value != value:  # pandas writes a missing value as NaN
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else str(value)
