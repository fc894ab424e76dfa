"""Aggregation of compressed balanced sparse rows over neighbors."""

from __future__ import annotations

from typing import Literal

import jax
from jaxtyping import Array, Float

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl, chosen
from jaxgnn.graph import Graph
from jaxgnn.ops._aggregation.linear import LinearMap
from jaxgnn.ops._aggregation.spmm import spmm
from jaxgnn.ops._core import checks
from jaxgnn.ops._core.parts import over_parts
from jaxgnn.ops._core.sparse_rows import scatter, sparse_rows_argument
from jaxgnn.ops._maxk import rules
from jaxgnn.ops._maxk.maxk import CBSR


@jax.named_scope("jaxgnn.maxk_spmm")
@over_parts({"cbsr": "senders", "weights": "edges"}, reduces=True)
def maxk_spmm(
    graph: Graph,
    cbsr: CBSR,
    weights: Float[Array, " num_edges"] | None = None,
    *,
    reduce: Literal["sum", "mean"] = "sum",
    transpose: bool = False,
    impl: Impl = None,
) -> Float[Array, "num_receivers width"]:
    r"""Aggregates the sparse features of each receiver's senders into dense ones.

    $$y_{i, c} = \mathrm{reduce}_{e = (j \to i)} \; w_e \, h_{jc}$$

    where $h$ is the dense form of `cbsr`: `spmm(graph, cbsr.to_dense(), weights)`, which reads the
    entries that are there and nothing else. `mean` divides by the number of edges (also when
    weighted). A receiver without edges gets 0. Sums run in float32 for float32, bfloat16 and
    float16, in float64 for float64.

    Derivatives: for the values, the product with the transpose at the kept positions alone
    (SSpMM); for $w$, the dot product of the entries with the receiver's gradient there. Residuals
    are the indices, and the values if there are weights.

    On a GPU the gradient for the values is summed in any order, so that its last bits change from
    run to run, unless `jaxgnn.config.deterministic` is set; sums run in fixed point where a bound
    makes that as good as floats (`jaxgnn.config.maxk_accumulation`): the sum over a receiver's
    edges of $|w_e|$ times the largest magnitude in the sender's row. A graph `with_windows` is
    faster there, with weights one `with_windows(weighted=True)`. The kernels by rows, those over
    windows and `spmm` of the dense rows are chosen from by an estimate of their times
    (`jaxgnn.config.maxk_engine`).

    Args:
        graph: the graph; the weights are in its edge order, not the user's
            (`Graph.sort_edge_data`).
        cbsr: the features of the senders, `[num_senders, width]` with `k` entries a row (`maxk`).
        weights: one for each edge.
        reduce: `"sum"` or `"mean"`.
        transpose: aggregate over the reversed edges, from receivers to senders.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`.

    Returns:
        `[num_receivers, width]` in the dtype of the values.

    Raises:
        TypeError: `graph` is no `Graph`, `cbsr` no `CBSR`, or a dtype does not fit.
        ValueError: a shape does not fit the graph, or `reduce` or `impl` is unknown.

    Source: MaxK-GNN (Peng et al., ASPLOS 2024, section 4: the row-wise product SpGEMM forward,
    SSpMM backward).
    """
    checks.graph_argument(graph)
    checks.choice(reduce, "reduce", ("sum", "mean"))
    transpose = checks.boolean(transpose, "transpose")
    inputs, outputs, kind = graph.num_senders, graph.num_receivers, "sender"
    if transpose:
        inputs, outputs, kind = outputs, inputs, "receiver"
    cbsr = sparse_rows_argument(cbsr, "cbsr")
    values, indices, width = cbsr.values, cbsr.indices, cbsr.width
    if values.ndim != 2 or values.shape[0] != inputs:
        raise ValueError(
            f"cbsr: expected the shape ({inputs}, k), a row for each {kind}, got {values.shape}"
        )
    if weights is not None:
        weights = checks.edge_weights(weights, graph.num_edges, ())
        weights = weights.astype(accumulation_dtype(values.dtype))
    impl = chosen(impl)
    if graph.num_edges == 0:
        return ffi.zeros((outputs, width), values.dtype, graph, values, indices, weights)
    if impl == "jax":
        dense = scatter(width, values, indices)
        return spmm(graph, dense, weights, reduce=reduce, transpose=transpose, impl=impl)
    graph, values, indices, weights = ffi.unify_varying(graph, values, indices, weights)
    rows = "senders" if transpose else "receivers"
    linear_map = LinearMap(transpose, rows if reduce == "mean" else None)
    static = rules.Spgemm(linear_map, width, cbsr.packed)
    with config.use(impl=impl):
        return rules.spgemm(static, (graph, indices), values, weights)
