"""torch.sparse, PyG, and each algorithm of cuSPARSE."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.harness import plan
from benchmarks.harness.graphs import StoredGraph
from benchmarks.harness.job import Unsupported
from benchmarks.harness.operations import Candidate, Framework, Inputs, score_error
from benchmarks.harness.plan import Measurement

warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")


def gpu_seconds(call: Callable[[], Any], count: int) -> float:
    """The time of `count` calls between two events on the stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    # Events around one short call see the gap before it: never more than the wall clock.
    return min(start.elapsed_time(end) / 1e3, time.perf_counter() - begin)


class TorchFramework(Framework):
    """Tensors on the CPU or the GPU; each candidate owns its matrices."""

    def __init__(self, device: str, threads: int) -> None:
        super().__init__(device, threads)
        torch.set_num_threads(threads)
        self._device = torch.device("cuda" if device == "gpu" else "cpu")
        self._cusparse: Any = None
        self._dense: torch.Tensor | None = None
        self._dense_of: Any = None

    def load(self, graph: StoredGraph) -> None:
        self._graph = graph
        self._dense = None

    def candidate(self, m: Measurement, inputs: Inputs) -> Candidate:
        dtype, weights = getattr(torch, m.dtype), inputs.weights
        backward = m.direction == "backward"
        offsets, columns = self._graph.rows(backward=backward)
        x = self._put_dense(inputs.dense, dtype)
        if m.impl == plan.PYG_EDGE_INDEX:
            if weights is not None:
                raise Unsupported("PyG is timed without weights")
            return self._pyg(x, backward)
        values = torch.ones(columns.size, dtype=dtype, device=self._device)
        if weights is not None:
            values = self._put(weights).to(dtype)
        rows, cols = self._put(offsets), self._put(columns)
        if m.impl == plan.TORCH:
            # 32-bit indices: with 64-bit ones MKL's interface converts them in every call.
            matrix = torch.sparse_csr_tensor(rows, cols, values, (self._graph.num_nodes,) * 2)
            return self._candidate(lambda: matrix @ x, rows, cols, values, x)
        if self.device != "gpu":
            raise Unsupported("cuSPARSE runs on the GPU only")
        from benchmarks.baselines import cusparse

        self._cusparse = self._cusparse or cusparse.CuSparse()
        if m.impl == plan.CUSPARSE_SDDMM:
            sampled = cusparse.SampledProduct(self._cusparse, rows, cols, x, x)
            return Candidate(
                sampled,
                close=sampled.close,
                error=lambda out: score_error(self._graph, inputs.dense, out.float().cpu().numpy()),
            )
        out = torch.full_like(x, torch.nan)  # the products are square
        algorithm = m.impl.removeprefix("cuSPARSE ")
        product = cusparse.Product(self._cusparse, rows, cols, values, x, out, algorithm)
        return Candidate(product, close=product.close)

    def _pyg(self, x: torch.Tensor, backward: bool) -> Candidate:
        import torch_geometric

        nodes = self._graph.num_nodes
        edges = [self._put(self._graph.receivers), self._put(self._graph.senders)]
        edge_index: Any = torch_geometric.EdgeIndex
        index = edge_index(
            torch.stack(edges).long(),
            sparse_size=(nodes, nodes),
            sort_order="row",
            is_undirected=self._graph.facts["symmetric"],
        )
        index.fill_cache_()
        product, edges = index.matmul, index.as_tensor()
        if not backward:
            return self._candidate(torch.inference_mode()(lambda: product(x)), edges, x)
        at = torch.zeros_like(x, requires_grad=True)
        y = product(at)
        return self._candidate(
            lambda: torch.autograd.grad(y, at, x, retain_graph=True)[0], edges, x
        )

    def _candidate(self, call: Callable[[], Any], *inputs: torch.Tensor) -> Candidate:
        return Candidate(call, input_bytes=sum(t.numel() * t.element_size() for t in inputs))

    def _put(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(array)).to(self._device)

    def _put_dense(self, dense: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        if self._dense is None or self._dense_of is not dense:
            self._dense = None
            # torch does not read NumPy's bfloat16; the float32 of such a value is exact.
            self._dense = self._put(dense.astype(np.float32)).to(dtype)
            self._dense_of = dense
        return self._dense

    def poison(self, shape: tuple[int, int], dtype: str) -> None:
        torch.full(shape, torch.nan, dtype=getattr(torch, dtype), device=self._device)

    def wait(self, result: Any) -> None:
        if self.device == "gpu":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any], count: int) -> float:
        if self.device == "cpu":
            return super().seconds(call, count)
        return gpu_seconds(call, count)

    def peak_bytes(self, candidate: Candidate) -> int | None:
        if self.device == "cpu":
            return super().peak_bytes(candidate)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        result = candidate.call()
        torch.cuda.synchronize()
        del result
        return torch.cuda.max_memory_allocated()

    def rows(self, result: Any, rows: np.ndarray) -> np.ndarray:
        place = torch.from_numpy(rows).to(result.device)
        return result[place].float().cpu().numpy()
