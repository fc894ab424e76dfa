"""The Gaussian mixture layer against dense float64: options, dtypes, further axes, bad input."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph
from jaxgnn.nn import GMMConv, MoNet
from tests.support.arrays import normal
from tests.support.oracle import close, edges
from tests.support.strategies import skewed_graph

pytestmark = pytest.mark.usefixtures("strict")

NODES, EDGES, WIDTH = 12, 60, 6


def make(out_features=4, **options):
    bias = jax.nn.initializers.normal(1.0)
    return GMMConv(WIDTH, out_features, 2, 3, bias_init=bias, rngs=nnx.Rngs(0), **options)


CALL = nnx.jit(
    lambda conv, graph, x, pseudo, activation=None: conv(graph, x, pseudo, activation=activation),
    static_argnames="activation",
)


def wide(array):
    return np.asarray(array[...], np.float64)


def dense_gmm(conv, graph, x, places):
    """The layer edge by edge; `places` are the coordinates of the edges."""
    senders, receivers = edges(graph)
    x = wide(x)
    distance = (wide(places)[:, None, :] - wide(conv.mu)) / np.sqrt(1e-15 + wide(conv.sigma) ** 2)
    weights = np.exp(-0.5 * np.sum(distance**2, axis=-1))
    rows = (x @ wide(conv.linear.kernel)).reshape(-1, conv.kernel_size, conv.out_features)
    out = np.zeros((graph.num_receivers, conv.out_features))
    np.add.at(out, receivers, np.einsum("ek,ekf->ef", weights, rows[senders]))
    if conv.aggr == "mean":
        degree = np.bincount(receivers, minlength=graph.num_receivers)
        out = out / np.maximum(degree, 1)[:, None]
    if conv.linear_root is not None:
        out = out + x @ wide(conv.linear_root.kernel)
    return out if conv.bias is None else out + wide(conv.bias)


@pytest.mark.parametrize("options", [{}, {"aggr": "sum", "root_weight": False, "use_bias": False}])
@pytest.mark.parametrize("out_features", [4, 7])
def test_is_the_dense_formula(out_features, options):
    """With the product before the aggregation, and behind it."""
    graph, x, conv = skewed_graph(NODES, EDGES), normal(NODES, WIDTH), make(out_features, **options)
    places = normal(EDGES, 2, seed=1)
    close(CALL(conv, graph, x, places), dense_gmm(conv, graph, x, places))
    senders, receivers = edges(graph)
    u, v = normal(NODES, 2, seed=2), normal(NODES, 2, seed=3)
    places = np.tanh(wide(u)[receivers] + wide(v)[senders])
    close(CALL(conv, graph, x, (u, v), "tanh"), dense_gmm(conv, graph, x, places))


@pytest.mark.parametrize(("out_features", "separate"), [(4, False), (7, False), (4, True)])
def test_further_axes_and_16_bits(out_features, separate):
    graph, x = skewed_graph(NODES, EDGES), normal(NODES, 3, WIDTH)
    options = {"out_features": out_features, "separate_gaussians": separate}
    conv, places = make(**options), normal(EDGES, 2, seed=1)
    expected = jnp.stack([CALL(conv, graph, x[:, i], places) for i in range(3)], axis=1)
    close(CALL(conv, graph, x, places), expected, 1e-6)
    half = make(**options, dtype=jnp.bfloat16)
    out = CALL(half, graph, x, places)
    assert out.dtype == jnp.bfloat16
    close(out, expected, 0.03)


def test_starts_as_glorot():
    """PyG's bounds, of the last two axes."""
    conv = make(separate_gaussians=True)
    assert conv.mu.shape == conv.sigma.shape == (WIDTH, 4, 3, 2)
    for array, bound in ((conv.mu, 6 / 5), (conv.sigma, 6 / 5), (conv.linear.kernel, 6 / 18)):
        largest = np.abs(wide(array)).max()
        assert 0.8 * bound**0.5 < largest <= bound**0.5


def test_monet_s_coordinates_are_of_the_degrees():
    ends = np.random.default_rng(0).integers(NODES, size=(2, 40))
    graph, x = Graph.from_edges(*ends, num_nodes=NODES), normal(NODES, WIDTH)
    model = MoNet(WIDTH, 5, 4, num_layers=1, dim=3, aggr="sum", rngs=nnx.Rngs(0))
    layer = model.convs[0]
    layer.linear.bias[...] = normal(3)
    senders, receivers = edges(graph)
    ends = np.stack([np.bincount(receivers)[receivers], np.bincount(senders)[senders]], axis=1)
    places = np.tanh(ends**-0.5 @ wide(layer.linear.kernel) + wide(layer.linear.bias))
    close(
        nnx.jit(lambda m, g, x: m(g, x))(model, graph, x), dense_gmm(layer.conv, graph, x, places)
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g, x: make(aggr="max"), ValueError, "aggr: expected one of 'mean', 'sum'"),
        (
            lambda g, x: GMMConv(6, 4, 17, 3, rngs=nnx.Rngs(0)),
            ValueError,
            "dim: expected an integer from 1 to 16, got 17",
        ),
        (
            lambda g, x: GMMConv(6, 4, 2, 0, rngs=nnx.Rngs(0)),
            ValueError,
            "kernel_size: expected at least 1, got 0",
        ),
        (
            lambda g, x: make()(g, x, normal(EDGES, 3)),
            ValueError,
            f"pseudo: expected the shape ({EDGES}, 2), got ({EDGES}, 3)",
        ),
        (
            lambda g, x: make()(g, (jnp.stack([x] * NODES, 1), x), normal(EDGES, 2)),
            ValueError,
            f"between the nodes and the features, ({NODES},), got ()",
        ),
        (
            lambda g, x: MoNet(WIDTH, 5, 4, num_layers=1, dim=0, rngs=nnx.Rngs(0)),
            ValueError,
            "dim: expected an integer from 1 to 16, got 0",
        ),
        (
            lambda g, x: MoNet(WIDTH, 5, 4, num_layers=1, rngs=nnx.Rngs(0))(g, x, normal(EDGES)),
            ValueError,
            "weights: MoNet has none, expected None",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call(skewed_graph(NODES, EDGES), normal(NODES, WIDTH))
