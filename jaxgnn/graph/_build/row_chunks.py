"""Chunks of long rows, so that one long row does not stall the others."""

from __future__ import annotations

import dataclasses
import functools
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxgnn._core.row_ids import csr_row_ids
from jaxgnn._core.row_offsets import offsets_of

Table = TypeVar("Table", np.ndarray, Array)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["table"],
    meta_fields=["length", "longest", "of_padding"],
)
@dataclasses.dataclass(frozen=True)
class RowChunks(Generic[Table]):
    """The rows longer than `length`, cut into chunks of `length` edges.

    Kernels write a row of at most `length` edges in one piece, and the others by this table: the
    two belong together, so the length travels with the table.

    Attributes:
        table: `[num_chunks, 2]`, int32 pairs (row, chunk of the row); row -1 is padding. At least
            one entry: jaxlib 0.11.2 crashes on arrays without elements among the arguments of
            `shard_map`.
        length: edges of a chunk, static.
        longest: a bound on the edges of any row, static; `None` where none is known when traced.
            Where rows are cut it is `length` times a power of two: programs depend on it.
        of_padding: whether only rows of blocks' padding places are longer than `length`; static.
    """

    table: Table
    length: int
    longest: int | None = None
    of_padding: bool = False


def chunk_length(num_edges: int, num_rows: int) -> int:
    """Longest row that the kernels take in one piece: 4 times the mean, from 256 to 2,048."""
    mean = -(-num_edges // max(num_rows, 1))
    return min(max(1 << (max(4 * mean, 1) - 1).bit_length(), 256), 2048)


def chunk_capacity(num_edges: int, num_rows: int) -> int:
    """The most entries that `chunk_rows` can have, whatever the rows' lengths.

    With k rows longer than L, ceil(l / L) <= (l + L - 1) / L summed over them is at most
    (E + k (L - 1)) / L; and k rows of at least L + 1 edges need k <= E / (L + 1).
    """
    length = chunk_length(num_edges, num_rows)
    rows = min(num_rows, num_edges // (length + 1))
    return 1 if rows == 0 else (num_edges + rows * (length - 1)) // length


def chunk_rows(row_offsets: Int[np.ndarray, " rows+1"], length: int | None = None) -> RowChunks:
    """The chunks of these rows on the host; `length` is `chunk_length`'s unless given."""
    lengths = np.diff(row_offsets)
    if length is None:
        length = chunk_length(int(row_offsets[-1]), lengths.size)
    rows = np.flatnonzero(lengths > length)
    if rows.size == 0:
        return RowChunks(np.array([[-1, 0]], np.int32), length)
    chunks = -(-lengths[rows] // length)
    first = np.cumsum(chunks) - chunks
    row = np.repeat(rows, chunks)
    chunk = np.arange(chunks.sum()) - np.repeat(first, chunks)
    longest = length << int(chunks.max() - 1).bit_length()
    return RowChunks(np.stack([row, chunk], axis=1).astype(np.int32), length, longest)


def pad_chunks(chunks: RowChunks, num_edges: int, num_rows: int) -> RowChunks:
    """The same chunks; the counts alone decide the table's shape and what is static."""
    padded = np.full((chunk_capacity(num_edges, num_rows), 2), [-1, 0], np.int32)
    padded[: len(chunks.table)] = chunks.table
    return RowChunks(padded, chunks.length)


@functools.partial(jax.jit, static_argnames="num_edges")
def chunk_rows_on_device(row_offsets: Int[Array, " rows+1"], num_edges: int) -> RowChunks:
    """`chunk_rows` of offsets on a device, padded as by `pad_chunks`: all shapes are static."""
    rows = row_offsets.shape[0] - 1
    length = chunk_length(num_edges, rows)
    capacity = chunk_capacity(num_edges, rows)
    if rows == 0:
        return RowChunks(padding_chunk(), length)
    lengths = jnp.diff(row_offsets)
    # By kernels where there are any: on a GPU XLA's sum and search over all rows are dozens.
    first = offsets_of(jnp.where(lengths > length, -(-lengths // length), 0))
    row = csr_row_ids(first, capacity)
    place = jnp.arange(capacity, dtype=jnp.int32)
    used = place < first[-1]
    table = [jnp.where(used, row, -1), jnp.where(used, place - first[row], 0)]
    return RowChunks(jnp.stack(table, axis=1), length)


def padding_chunk() -> Int[Array, "1 2"]:
    """The table of rows of which none is long."""
    return jnp.array([[-1, 0]], jnp.int32)


def no_chunks() -> RowChunks:
    """No row is cut, however long it is."""
    return RowChunks(jnp.zeros((0, 2), jnp.int32), np.iinfo(np.int32).max)
