"""Principal neighborhood aggregation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx.nn import dtypes
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float, Int

from jaxgnn._core import checks
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.graph import Graph
from jaxgnn.nn import _inputs
from jaxgnn.nn._features import dense
from jaxgnn.nn._linear import Initializer, count, kaiming_kernel, linear, width
from jaxgnn.nn.mlp import MLP, Activation
from jaxgnn.ops import gather_edges, segment_reduce, spmm
from jaxgnn.ops._projection.project import add_bias

Aggregator = Literal["mean", "sum", "max", "min", "var", "std"]
Scaler = Literal["identity", "amplification", "attenuation", "linear", "inverse_linear"]
_AGGREGATORS = ("mean", "sum", "max", "min", "var", "std")
_SCALERS = ("identity", "amplification", "attenuation", "linear", "inverse_linear")
_LEAST_VARIANCE = 1e-5  # PyG's: below it the deviation is 0


class PNAConv(nnx.Module):
    r"""Several aggregations of a node's messages, each scaled by several functions of its degree.

    $$y_i = W \, \big\Vert_t \; g_t \Big( \Big[ x_i, \; \big\Vert_s \big\Vert_a \; s(d_i) \,
      \mathrm{aggr}^a_{e = (j \to i)} h_t([x_i, x_j, z_e]) \Big] \Big) + b$$

    over the towers $t$, the scalers $s$ and the aggregators $a$. With $d$ the number of edges and
    means over the nodes of the training data the scalers are 1 (`"identity"`),
    $\log(d + 1) / \overline{\log(d + 1)}$ (`"amplification"`), its inverse (`"attenuation"`),
    $d / \bar d$ (`"linear"`) and its inverse (`"inverse_linear"`); `"var"` is
    $\overline{m^2} - \bar m^2$ and `"std"` its root, 0 where the variance is at most $10^{-5}$.

    $h_t$ is an `MLP` with `pre_layers` linear layers, $g_t$ one with `post_layers`. With one layer
    and no edge features $h_t$ is a sum of two projections on the nodes, so that `spmm` aggregates
    and nothing is computed on the edges. Else messages are, and again in the backward pass.

    Args:
        in_features, out_features: widths of $x$ and $y$.
        aggregators: of `"mean"`, `"sum"`, `"max"`, `"min"`, `"var"`, `"std"`.
        scalers: of the names above.
        degree_histogram: how many nodes of the training data have 0, 1, 2, ... edges, as
            `jnp.bincount(graph.in_degrees)` of one graph.
        edge_dim: width of the edges' features $z_e$, which are projected to that of a tower's
            input.
        towers: their number, which divides `out_features`.
        pre_layers, post_layers: linear layers of $h$ and $g$.
        divide_input: each tower gets a part of $x$, not all of it.
        activation: between the layers of $h$ and $g$.
        dtype: of the computation; by default that of `x` and the parameters, promoted.
        param_dtype: of the parameters.
        kernel_init, bias_init: initial values; by default PyTorch's.
        rngs: `params` is used.

    Raises:
        TypeError, ValueError: an option out of range, an unknown or no aggregator or scaler, a
            histogram without edges.

    Source: Corso et al., "Principal neighbourhood aggregation for graph nets" (NeurIPS 2020),
    sections 2 and 3; PyG's `PNAConv`.
    """

    @_inputs.named_options
    def __init__(
        self,
        in_features: int,
        out_features: int,
        aggregators: Sequence[Aggregator],
        scalers: Sequence[Scaler],
        degree_histogram: Int[ArrayLike, " degrees"],
        *,
        edge_dim: int | None = None,
        towers: int = 1,
        pre_layers: int = 1,
        post_layers: int = 1,
        divide_input: bool = False,
        activation: Activation = jax.nn.relu,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: Initializer = kaiming_kernel,
        bias_init: Initializer | None = None,
        rngs: nnx.Rngs,
    ):
        self.in_features = width(in_features, "in_features")
        self.out_features = width(out_features, "out_features")
        self.aggregators = _names(aggregators, "aggregators", _AGGREGATORS)
        self.scalers = _names(scalers, "scalers", _SCALERS)
        self.mean_degree, self.mean_log_degree = _mean_degrees(degree_histogram)
        self.towers = count(towers, "towers", "towers")
        checks.boolean(divide_input, "divide_input")
        self.divide_input, self.edge_dim, self.dtype = divide_input, edge_dim, dtype
        for name, value, parts in (
            ("out_features", out_features, True),
            ("in_features", in_features, divide_input),
        ):
            if parts and value % self.towers:
                raise ValueError(f"{name}: expected a multiple of towers={towers}, got {value}")
        own = in_features // self.towers if divide_input else in_features
        out = out_features // self.towers
        types: dict[str, Any] = {
            "dtype": dtype,
            "param_dtype": param_dtype,
            "kernel_init": kernel_init,
            "bias_init": bias_init,
            "rngs": rngs,
        }
        layers = [count(pre_layers, "pre_layers", "layers")]
        layers.append(count(post_layers, "post_layers", "layers"))
        joined = (2 if edge_dim is None else 3) * own
        aggregated = (len(self.aggregators) * len(self.scalers) + 1) * own

        def mlps(first: int, hidden: int, number: int) -> nnx.List:
            widths = [first, *[hidden] * number]
            return nnx.List(MLP(widths, activation=activation, **types) for _ in range(self.towers))

        self.pre = mlps(joined, own, layers[0])
        self.post = mlps(aggregated, out, layers[1])
        self.linear = linear(out_features, out_features, **types)
        self.linear_edges = None
        if edge_dim is not None:
            self.linear_edges = nnx.data(linear(width(edge_dim, "edge_dim"), own, **types))

    @_inputs.named_arguments
    def __call__(
        self,
        graph: Graph,
        x: Float[Array, "num_nodes in_features"],
        edge_attr: Float[Array, "num_edges edge_dim"] | None = None,
    ) -> Float[Array, "num_nodes out_features"]:
        """Convolves the features of the nodes.

        Args:
            graph: the graph, square.
            x: features `[num_nodes, in_features]`.
            edge_attr: features of the edges in the graph's edge order, not the user's
                (`Graph.sort_edge_data`); with `edge_dim` alone.

        Raises:
            TypeError: `graph` is no `Graph`, or a dtype is not floating.
            ValueError: a rectangular graph, a pair, a shape that does not fit, or edge features
                that are missing or not taken.
        """
        graph = _inputs.square_graph(graph, "PNAConv", substitutes=True)
        _inputs.check_no_pair(x, "PNAConv")
        rows = dense(_inputs.features(x, "x", graph.num_senders, "node", self.in_features))
        rows = checks.floating(rows, "x")
        if rows.ndim != 2:
            raise ValueError(f"x: expected the shape (nodes, features), got {rows.shape}")
        edges = self._edge_features(graph, edge_attr)
        parts = jnp.split(rows, self.towers, axis=1) if self.divide_input else [rows] * self.towers
        outs = [
            post(jnp.concatenate([part, *self._aggregated(graph, pre, part, edges)], axis=-1))
            for pre, post, part in zip(self.pre, self.post, parts, strict=True)
        ]
        return self.linear(jnp.concatenate(outs, axis=-1))

    def _edge_features(self, graph: Graph, edge_attr: Array | None) -> Array | None:
        if (edge_attr is None) != (self.linear_edges is None):
            expected = "None without edge_dim" if self.linear_edges is None else "them"
            raise ValueError(f"edge_attr: PNAConv expected {expected}")
        if edge_attr is None or self.linear_edges is None:
            return None
        edges = checks.floating(edge_attr, "edge_attr")
        if edges.shape != (graph.num_edges, self.edge_dim):
            raise ValueError(
                f"edge_attr: expected the shape ({graph.num_edges}, {self.edge_dim})"
                f"{checks.EDGE_ORDER}, got {edges.shape}"
            )
        return self.linear_edges(edges)

    def _aggregated(
        self, graph: Graph, pre: MLP, x: Array, edges: Array | None
    ) -> list[Float[Array, "num_nodes features"]]:
        """What the aggregators make of a tower's messages, by each scaler in turn."""
        first = pre.linears[0]
        assert first.bias is not None
        x, edges, kernel = dtypes.promote_dtype((x, edges, first.kernel[...]), dtype=self.dtype)
        own, others, *rest = jnp.split(kernel, kernel.shape[0] // x.shape[1])
        at_receivers, at_senders = add_bias(x @ own, first.bias[...]), x @ others
        if edges is None and len(pre.linears) == 1:
            values = _of_sums(graph, at_senders, at_receivers, self.aggregators)
        else:
            at_edges = None if edges is None else edges @ rest[0]
            values = _of_messages(graph, pre, at_senders, at_receivers, at_edges, self.aggregators)
        wide = accumulation_dtype(x.dtype)
        degrees = graph.in_degrees.astype(wide)[:, None]
        factors = (self._factor(scaler, degrees) for scaler in self.scalers)
        return [
            (value.astype(wide) * factor).astype(x.dtype) for factor in factors for value in values
        ]

    def _factor(self, scaler: Scaler, degrees: Float[Array, "num_nodes 1"]) -> Array | float:
        at_least_one = jnp.maximum(degrees, 1)
        match scaler:
            case "identity":
                return 1.0
            case "amplification":
                return jnp.log(degrees + 1) / self.mean_log_degree
            case "attenuation":
                return self.mean_log_degree / jnp.log(at_least_one + 1)
            case "linear":
                return degrees / self.mean_degree
            case _:
                return self.mean_degree / at_least_one


def _names(given: Any, name: str, known: tuple[str, ...]) -> tuple[Any, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise ValueError(f"{name}: expected some of {', '.join(known)}, got {given!r}")
    for value in given:
        checks.choice(value, name, known)
    return tuple(given)


def _mean_degrees(histogram: Any) -> tuple[float, float]:
    """The means over the nodes of the degree and of the logarithm of one more."""
    counts = np.asarray(histogram)
    if counts.ndim != 1 or not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any():
        raise ValueError(
            "degree_histogram: expected a vector of counts, such as jnp.bincount(graph.in_degrees),"
            f" got {counts.dtype} of {counts.shape}"
        )
    if counts[1:].sum() == 0:
        raise ValueError("degree_histogram: expected at least a node with edges")
    degrees, nodes = np.arange(counts.size), counts.sum()
    return float(counts @ degrees / nodes), float(counts @ np.log(degrees + 1) / nodes)


def _of_sums(
    graph: Graph, senders: Array, receivers: Array, aggregators: tuple[Aggregator, ...]
) -> list[Array]:
    """Of messages that are a sum of rows of their senders and receivers."""

    wide = accumulation_dtype(senders.dtype)

    def reduce(how: Any, rows: Array) -> Array:
        # Neither term of a sum is rounded for itself: in 16 bits they may cancel, or leave the
        # range.
        return spmm(graph, rows.astype(wide) if how == "sum" else rows, reduce=how)

    degrees = graph.in_degrees[:, None]

    def shifted(how: str, total: Array) -> Array:
        if how == "sum":
            total = total + degrees.astype(wide) * receivers.astype(wide)
        else:
            total = total + receivers
        return jnp.where(degrees > 0, total, 0)

    return _all_of(reduce, shifted, senders, aggregators)


def _of_messages(
    graph: Graph,
    pre: MLP,
    senders: Array,
    receivers: Array,
    edges: Array | None,
    aggregators: tuple[Aggregator, ...],
) -> list[Array]:
    """Of messages on the edges, which are computed again in the backward pass."""
    graphdef, state = nnx.split(pre)
    wide = accumulation_dtype(senders.dtype)

    @jax.checkpoint
    def run(
        state: nnx.State, graph: Graph, senders: Array, receivers: Array, edges: Array | None
    ) -> list[Array]:
        messages = gather_edges(graph, senders, receivers, "add")
        if edges is not None:
            messages = messages + edges
        messages = nnx.merge(graphdef, state, copy=True).after_first(messages)

        def reduce(how: Any, rows: Array) -> Array:
            # A scaler may bring a sum that is beyond float16 back into its range.
            return segment_reduce(graph, rows.astype(wide) if how == "sum" else rows, how)

        return _all_of(reduce, lambda _, total: total, messages, aggregators)

    return run(state, graph, senders, receivers, edges)


def _all_of(
    reduce: Callable[[str, Array], Array],
    shifted: Callable[[str, Array], Array],
    rows: Array,
    aggregators: tuple[Aggregator, ...],
) -> list[Array]:
    """The aggregations; `shifted` adds what all messages of a receiver share, which a variance does
    not know."""
    wide = rows.astype(accumulation_dtype(rows.dtype))
    variance = None
    if {"var", "std"} & set(aggregators):
        variance = reduce("mean", wide * wide) - reduce("mean", wide) ** 2
    out = []
    for aggregator in aggregators:
        if aggregator == "var":
            assert variance is not None
            out.append(variance)
        elif aggregator == "std":
            assert variance is not None
            there = variance > _LEAST_VARIANCE
            out.append(jnp.where(there, jnp.sqrt(jnp.where(there, variance, 1)), 0))
        else:
            out.append(shifted(aggregator, reduce(aggregator, rows)))
    return out
