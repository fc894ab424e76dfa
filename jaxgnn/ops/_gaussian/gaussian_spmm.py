"""Aggregation under Gaussian weights of the edges' coordinates."""

from __future__ import annotations

from typing import Any, Literal

import jax
from jaxtyping import Array, Float

from jaxgnn import config
from jaxgnn._core import ffi
from jaxgnn._core.arguments import unwrap
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn._core.platform import Impl, chosen
from jaxgnn.graph import End, Graph, GraphSubstitute
from jaxgnn.ops._core import checks, padding
from jaxgnn.ops._gaussian import rule as gaussian_rule
from jaxgnn.ops._gaussian.kernels import Gaussians
from jaxgnn.ops._gaussian.rule import Operands
from jaxgnn.ops._gaussian.weights import weighting_argument


@jax.named_scope("jaxgnn.gaussian_spmm")
def gaussian_spmm(
    graph: Graph,
    x: Float[Array, "num_senders kernels features"] | Float[Array, "num_senders features"],
    mu: Float[Array, "kernels dims"],
    inv_sigma: Float[Array, "kernels dims"],
    pseudo: Float[Array, "num_edges dims"]
    | tuple[Float[Array, "num_receivers dims"], Float[Array, "num_senders dims"]],
    *,
    reduce: Literal["sum", "mean"] = "sum",
    activation: Literal["tanh"] | None = None,
    impl: Impl = None,
) -> Float[Array, "num_receivers features"] | Float[Array, "num_receivers kernels features"]:
    r"""Aggregates the senders' features by learned Gaussians of the edges' coordinates.

    $$y_i = \mathrm{reduce}_{e = (j \to i)} \; \sum_k w_{ek} \, x_{jk}, \qquad
      w_{ek} = \exp \Big( -\tfrac{1}{2} \sum_d \big( (p_{ed} - \mu_{kd}) \, s_{kd} \big)^2 \Big)$$

    of rows for each kernel; of one row $x_j$ for all kernels there is a result for each,
    $y_{ik} = \mathrm{reduce}_e \; w_{ek} \, x_j$. Here $s$ = `inv_sigma`, and
    $p_e = \sigma(\mathrm{pseudo}_e)$, or $p_e = \sigma(u_i + v_j)$ for the pair `pseudo`
    $= (u, v)$: coordinates that are an affine function of the two ends', as MoNet's, are then made
    in the kernel. $\sigma$ is `activation`. The kernels are summed, as PyG's `GMMConv` does (its
    docstring divides by their number; its code does not). A receiver without edges gets 0.

    The kernels compute the weights, forward and backward. No `[num_edges, K]` array exists, and no
    O(E) intermediates are stored. The gradients of a pair materialize a temporary `[num_edges, r]`
    array if it takes at most a quarter of the memory of the per-kernel rows. Weights, sums
    and the gradients of `mu`, `inv_sigma` and `pseudo` are in float32 for float32, bfloat16 and
    float16, in float64 for float64. Results are bitwise reproducible. Derivatives of second order
    and above are those of the reference, which materializes `[num_edges, K]` weights.

    A linear projection to or from the kernels' rows may come before or after the aggregation. To
    gather fewer bytes, apply it before if it narrows the rows and after if it widens them.

    `vmap` over `x` alone widens it; other batches run one after the other.

    Args:
        graph: the graph.
        x: features of the senders, `[num_senders, K, F]`: a row for each kernel; or
            `[num_senders, F]`: a row for all of them.
        mu: the kernels' means, `[K, r]`, with `r` up to 16.
        inv_sigma: the inverses of their standard deviations, `[K, r]`.
        pseudo: the edges' coordinates, `[num_edges, r]` in the graph's edge order, not the user's
            (`Graph.sort_edge_data`), or the pair of the receivers' shares `[num_receivers, r]` and
            the senders' `[num_senders, r]`.
        reduce: `"sum"` or `"mean"`.
        activation: `"tanh"`, or `None`.
        impl: `None` (our kernel where the platform has one, else JAX), `"kernel"` or `"jax"`.

    Returns:
        `[num_receivers, F]`, or `[num_receivers, K, F]` of a row for all kernels, in the dtype of
        `x`.

    Raises:
        TypeError: `graph` is no `Graph`, or a dtype is not floating.
        ValueError: a shape does not fit, or `reduce`, `activation` or `impl` is unknown.

    Source: Monti et al., "Geometric deep learning on graphs and manifolds using mixture model
    CNNs" (CVPR 2017), section 4, equations 9 to 11; fused and recomputed as in Zhang et al.,
    "Understanding GNN Computational Graph" (MLSys 2022), sections 4 to 6.
    """
    if isinstance(graph, GraphSubstitute):
        return _of_parts(graph, x, mu, inv_sigma, pseudo, reduce, activation, impl)
    checks.graph_argument(graph)
    checks.choice(reduce, "reduce", ("sum", "mean"))
    checks.choice(activation, "activation", (None, "tanh"))
    x = checks.floating_rows(x, "x", graph.num_senders, "sender")
    if x.ndim not in (2, 3):
        raise ValueError(
            f"x: expected the shape ({graph.num_senders}, kernels, features) or "
            f"({graph.num_senders}, features), got {x.shape}"
        )
    kernels = x.shape[1] if x.ndim == 3 else None
    dtype = accumulation_dtype(x.dtype)
    weighting = weighting_argument(graph, mu, inv_sigma, pseudo, kernels, dtype)
    impl = chosen(impl)
    if x.size == 0 or graph.num_receivers == 0 or graph.num_edges == 0:
        shape = (x.shape[2],) if x.ndim == 3 else (weighting.mu.shape[0], x.shape[1])
        return ffi.zeros((graph.num_receivers, *shape), x.dtype, graph, x, weighting)
    static = Gaussians(reduce, activation == "tanh")
    if impl == "jax":
        return gaussian_rule.composition(static, Operands(graph, x, weighting), impl)
    rows = padding.pad_features(x, ends=True)
    with config.use(impl=impl):
        operands = Operands(*ffi.unify_varying(graph, rows, weighting))
        out, _ = gaussian_rule.gaussian_aggregate(static, operands)
    return out[..., : x.shape[-1]]


def _of_parts(
    graph: GraphSubstitute,
    x: Any,
    mu: Any,
    inv_sigma: Any,
    pseudo: Any,
    reduce: Any,
    activation: Any,
    impl: Impl,
) -> Array:
    """On the parts of a graph, where the coordinates are the edges' or the two ends'."""
    pair = isinstance(pseudo, tuple | list) and len(pseudo) == 2
    ends: dict[str, End] = {"x": "senders", "mu": "replicated", "inv_sigma": "replicated"}
    arrays = {"x": x, "mu": mu, "inv_sigma": inv_sigma}
    if pair:
        ends |= {"receivers": "receivers", "senders": "senders"}
        arrays |= {"receivers": pseudo[0], "senders": pseudo[1]}
    else:
        ends["pseudo"] = "edges"
        arrays["pseudo"] = pseudo

    def of_part(part: Graph, **arrays: Any) -> Array:
        if pair:
            arrays["pseudo"] = arrays.pop("receivers"), arrays.pop("senders")
        return gaussian_spmm(part, **arrays, reduce=reduce, activation=activation, impl=impl)

    arrays = {name: unwrap(array) for name, array in arrays.items()}
    return graph.map_parts(of_part, "gaussian_spmm", arrays, ends)
