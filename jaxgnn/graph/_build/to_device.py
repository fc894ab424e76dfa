"""From the host's arrays of a graph to those on the device."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxgnn._core.device import device_array
from jaxgnn.graph._build.csr import HostCSR
from jaxgnn.graph._build.row_chunks import RowChunks


def device_fields(csr: HostCSR) -> dict[str, Any]:
    """The fields of the `Graph`; those of a symmetric structure share buffers."""
    offsets = _index_array(csr.row_offsets, "row_offsets")
    senders = device_array(csr.senders)
    chunks = _device_chunks(csr.row_chunks)
    transpose = (offsets, senders, chunks)
    if not csr.symmetric:
        transpose = (
            _index_array(csr.transpose_row_offsets, "transpose_row_offsets"),
            device_array(csr.transpose_receivers),
            _device_chunks(csr.transpose_row_chunks),
        )
    permutation = csr.edge_permutation
    return dict(
        row_offsets=offsets,
        senders=senders,
        row_chunks=chunks,
        transpose_row_offsets=transpose[0],
        transpose_receivers=transpose[1],
        transpose_permutation=_index_array(csr.transpose_permutation, "permutation"),
        transpose_row_chunks=transpose[2],
        edge_permutation=(
            None if permutation is None else _index_array(permutation, "edge_permutation")
        ),
        self_loops=None if csr.self_loops is None else device_array(csr.self_loops),
        num_senders=csr.num_senders,
        num_receivers=csr.num_receivers,
        num_edges=csr.num_edges,
        symmetric=csr.symmetric,
        edge_positions=(
            None
            if csr.edge_positions is None
            else _index_array(csr.edge_positions, "edge_positions")
        ),
        num_input_edges=csr.num_input_edges,
        merges_edges=csr.merges_edges,
    )


def _device_chunks(chunks: RowChunks) -> RowChunks:
    return dataclasses.replace(chunks, table=device_array(chunks.table))


def _index_array(values: np.ndarray, name: str) -> Array:
    """An array of a graph on the device, which refuses to wrap 64-bit offsets round to 32 bits."""
    if values.dtype == np.int64 and jax.dtypes.canonicalize_dtype(np.int64) != np.int64:
        raise ValueError(
            f"{name}: a graph of 2**31 edges or more needs 64-bit offsets; call "
            "jax.config.update('jax_enable_x64', True) first"
        )
    return device_array(values)
