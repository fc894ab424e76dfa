"""SciPy's CSR product, on one thread."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from benchmarks.harness.graphs import StoredGraph
from benchmarks.harness.job import Unsupported
from benchmarks.harness.operations import Candidate, Framework, Inputs
from benchmarks.harness.plan import Measurement


class ScipyFramework(Framework):
    """`scipy.sparse.csr_array @ ndarray`."""

    def load(self, graph: StoredGraph) -> None:
        self._graph = graph

    def candidate(self, m: Measurement, inputs: Inputs) -> Candidate:
        if m.dtype != "float32":
            raise Unsupported(f"SciPy has no {m.dtype}")
        dense, weights = inputs.dense, inputs.weights
        offsets, columns = self._graph.rows(backward=m.direction == "backward")
        values = np.ones(columns.size, np.float32) if weights is None else weights
        matrix = scipy.sparse.csr_array(
            (values, np.array(columns), np.array(offsets)), shape=(self._graph.num_nodes,) * 2
        )
        size = values.nbytes + columns.nbytes + offsets.nbytes + dense.nbytes
        return Candidate(lambda: matrix @ dense, input_bytes=size)

    def poison(self, shape: tuple[int, int], dtype: str) -> None:
        np.full(shape, np.nan, np.float32)

    def rows(self, result: Any, rows: np.ndarray) -> np.ndarray:
        return result[rows]
