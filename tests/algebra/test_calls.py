"""Calls beside a rule: values on edges, aggregate, graphs without edges, errors, the page."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph, edge_conv
from jaxgnn.algebra import (
    aggregate,
    apply_edge,
    apply_vertex,
    concat,
    dot,
    dropout,
    edge_values,
    evaluate,
    explain,
    gather,
    gaussian,
    linear,
    scatter,
    segment_normalize,
    weighted_sum,
)
from tests.support.message_operands import dense, operands, reduced, symbolic
from tests.support.oracle import close
from tests.support.paths import ROOT
from tests.support.strategies import skewed_graph

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]


def test_values_on_the_edges(graph):
    s = symbolic(graph, operands())
    d = dense(graph, operands())
    close(evaluate(dot(s.y, s.x)), (d.x * d.y).sum(1))
    lowered = jax.jit(lambda x, y: evaluate(dot(*scatter(graph, x, y)))).lower(
        *map(operands().get, "xy")
    )
    assert "@jaxgnn_sddmm" in lowered.as_text()
    close(
        evaluate(segment_normalize(s.b * s.b, "max"), recompute=False),
        d.b**2 / reduced(graph, d.b**2, "max")[d.receivers],
    )


def test_aggregate_is_the_three_in_one(graph):
    arrays = operands()
    x, y, w = (arrays[name] for name in "xyw")
    close(aggregate(graph, x, y, message=lambda u, v: u - v, reduce="max"), edge_conv(graph, x, -y))
    d = dense(graph, arrays)
    out = aggregate(graph, x, e=w, message=lambda u, e: e * u, fuse=False)
    close(out, reduced(graph, d.w[:, None] * d.x, "sum"))
    close(aggregate(graph, x), reduced(graph, d.x, "sum"))


def test_without_edges_or_nodes():
    for nodes in (3, 0):
        lonely = Graph.from_edges([], [], num_nodes=nodes)
        u, v = scatter(lonely, jnp.ones((nodes, 2)), jnp.ones((nodes, 2)))
        messages = (u, u - v, segment_normalize(u) * u, apply_edge(jnp.sin, u * v))
        for out in jax.jit(lambda messages=messages: [gather(message) for message in messages])():
            np.testing.assert_array_equal(out, np.zeros((nodes, 2)))


def bad_calls():
    graph, other = (skewed_graph(4, 9, seed=seed) for seed in range(2))
    x, z = jnp.ones((4, 3)), jnp.ones((9, 3))
    u, half = scatter(graph, x), edge_values(graph, z.astype(jnp.bfloat16))
    return {
        "graph": (lambda: scatter(x, x), TypeError, "graph: expected a jaxgnn.Graph"),
        "u": (lambda: scatter(graph, z), ValueError, r"u: .*\(4, ...\).* got \(9, 3\)"),
        "neither": (lambda: scatter(graph), ValueError, "u, v: .* got neither"),
        "values": (lambda: edge_values(graph, x), ValueError, r"values: .*\(9, ...\).*\(4, 3\)"),
        "two graphs": (lambda: u + scatter(other, x), ValueError, "one graph, got two"),
        "array": (lambda: u * z, TypeError, "got ArrayImpl: wrap an array .* edge_values"),
        "numpy": (lambda: np.ones((9, 3)) * u, TypeError, "got ndarray: wrap an array"),
        "no array": (lambda: np.asarray(u), TypeError, "applies a function"),
        "power": (lambda: u**2, TypeError, "no array: algebra.apply_edge"),
        "matrix": (lambda: u @ np.eye(3), TypeError, r"algebra.linear\(edges, kernel\) a matrix"),
        "of a matrix": (lambda: np.eye(9) @ u, TypeError, "no array"),
        "column": (lambda: u[:, 0], TypeError, "no array"),
        "absolute": (lambda: abs(u), TypeError, "no array"),
        "comparison": (lambda: u > 0, TypeError, "no array"),
        "unpacked": (lambda: list(u), TypeError, "no array"),
        "dtypes": (lambda: u + half, TypeError, "equal dtypes"),
        "reduce": (lambda: gather(u, "median"), ValueError, "reduce: .* got 'median'"),
        "impl": (lambda: explain(u, impl="cuda"), ValueError, "impl"),
        "recompute": (lambda: gather(u, recompute="all"), ValueError, "recompute: .* got 'all'"),
        "recompute each": (
            lambda: gather(u, recompute=np.array([1, 2])),
            ValueError,
            "recompute: expected .*, got array",
        ),
        "budget": (lambda: gather(u, budget=-1), ValueError, "budget: .* got -1"),
        "budget alone": (lambda: gather(u, recompute=True, budget=1), ValueError, "budget: .*True"),
        "vector": (lambda: dot(u, jnp.ones(4)), ValueError, r"dot: .*\(3,\) of a row, got \(4,\)"),
        "gaussian": (lambda: gaussian(u, x[:, :2], x[:, :2]), ValueError, r"mu: .*\(4, 2\)"),
        "inv_sigma": (lambda: gaussian(u, x, x[:3]), ValueError, r"inv_sigma: .*\(4, 3\)"),
        "kernels": (
            lambda: weighted_sum(u, edge_values(graph, z[:, :2])),
            ValueError,
            r"weighted_sum: .*\(3,\) and \(2,\)",
        ),
        "gather": (lambda: gather(x), TypeError, "edges: expected values on edges"),
        "method": (lambda: segment_normalize(u, "std"), ValueError, "method: .* got 'std'"),
        "kernel": (lambda: linear(u, x), ValueError, r"kernel: .*\(3, out_features\)"),
        "bias": (lambda: linear(u, jnp.ones((3, 2)), jnp.ones(3)), ValueError, r"bias: .*\(2,\)"),
        "concat": (lambda: concat(u, edge_values(graph, z[:, 0])), ValueError, "concat: .*last"),
        "dot": (lambda: dot(u, edge_values(graph, z[:, :2])), ValueError, "dot: expected equal"),
        "no function": (lambda: apply_edge(u, u), TypeError, "function: expected a function"),
        "no vertex function": (lambda: apply_vertex(3, x), TypeError, "function: .* got int"),
        "message": (lambda: aggregate(graph, x, message=3), TypeError, "message: .* got int"),
        "fuse": (lambda: gather(u, fuse="no"), TypeError, "fuse: expected True or False, got 'no'"),
        "integers": (
            lambda: explain(apply_edge(lambda x: x.astype(jnp.int32), u)),
            TypeError,
            "edges: expected float32, .* got int32",
        ),
        "inverse": (lambda: z / u, TypeError, "/: .* got ArrayImpl: wrap an array"),
        "rows": (lambda: apply_edge(lambda x: x[:3], u), ValueError, "apply_edge: expected a row"),
        "closure": (lambda: apply_edge(lambda x: x + z, u), TypeError, "any number of them|shapes"),
        "key": (lambda: dropout(u, 0.5), ValueError, "dropout_rng: expected a JAX key"),
        "rate": (lambda: dropout(u, "a"), TypeError, "^rate: expected a number, got str"),
        "big": (
            lambda: apply_edge(lambda x: x > 0, u) * 2**40,
            ValueError,
            r"edges \* scalar: expected a number within int32, got 1099511627776",
        ),
        "aggregate": (lambda: aggregate(graph), ValueError, "u, v, e: expected at least one"),
    }


@pytest.mark.parametrize("name", bad_calls())
def test_bad_calls(name):
    call, error, message = bad_calls()[name]
    with pytest.raises(error, match=message):
        call()


def test_the_snippets_of_the_documentation_run():
    text = (ROOT / "docs" / "algebra.md").read_text()
    names: dict = {}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for snippet in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(compile(snippet, "docs/algebra.md", "exec"), names)
    assert names["y"].shape == (4, 8)
