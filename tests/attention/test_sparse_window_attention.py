"""Additive attention over sparse rows by windows of receivers, against the operation on dense rows.

A CPU has no kernels over windows: there these are further cases of the kernels by rows.
"""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn import Graph, gat_attention, maxk
from jaxgnn._core import platform
from jaxgnn.ops._attention import sparse_rule, sparse_windows
from tests.support.oracle import close
from tests.support.oracle_attention import (
    check_sparse_values,
    dense_attention,
    draw_operands,
    gat_tolerance,
    gradients,
    mixed_graph,
)
from tests.support.strategies import examples, graphs, skewed_graph

DTYPES = ("float32", "bfloat16", "float16")
TARGETS = ("jaxgnn_sparse_window_attention", "jaxgnn_sparse_window_gradients")

CHOICE = {
    f"{way}_{name}": getattr(sparse_rule, f"{way}_{name}")
    for way in ("FORWARD", "BACKWARD")
    for name in ("WINDOWS_SHARES", "EDGES_AN_ENTRY")
}


@pytest.fixture(scope="module", autouse=True)
def windows_wherever_they_are():
    """Also where another engine is faster on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        for way in ("FORWARD", "BACKWARD"):
            patch.setattr(sparse_rule, f"{way}_WINDOWS_SHARES", (1.0, 1.0))
            patch.setattr(sparse_rule, f"{way}_EDGES_AN_ENTRY", 0.0)
        yield


pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]


def sparse_operands(graph, heads, width, k, dtype="float32", seed=0, scale=1.0):
    """The `k` largest entries of each row and head, and the scores of both ends."""
    v, src, dst, *_ = draw_operands(graph, heads, width, dtype, seed, scale)
    return maxk(v, k), src, dst


@functools.partial(jax.jit, static_argnames=("impl", "slope", "loops", "dense"))
def run(graph, operands, *, impl=None, slope=0.2, loops=False, dense=False):
    """The result and the gradients of the values and the scores; of the dense rows with `dense`."""
    cbsr, *scores = operands

    def f(values, src, dst):
        v = dataclasses.replace(cbsr, values=values)
        v = v.to_dense(impl="jax") if dense else v
        options = {"negative_slope": slope, "self_loops": loops, "impl": impl}
        return gat_attention(graph, v, src, dst, **options)

    floats = (cbsr.values, *scores)
    return f(*floats), gradients(f, floats)


def check(graph, operands, dtype="float32", **options):
    """The kernel over windows against the dense reference in the accumulation dtype."""
    check_sparse_values(run, graph.with_windows(), operands, dtype, **options)


@examples(20)
@given(
    graph=graphs(max_nodes=6),
    heads=st.sampled_from([1, 2, 3, 8]),
    width=st.sampled_from([4, 20, 48]),
    kept=st.sampled_from([0.0, 0.3, 0.6]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_brute_force(graph, heads, width, kept, dtype, seed):
    """Empty graphs, isolated nodes, repeated edges, rectangular graphs."""
    v, src, dst = sparse_operands(graph, heads, width, max(1, round(kept * width)), dtype, seed)
    out = jax.jit(gat_attention)(graph.with_windows(), v, src, dst)
    expected = dense_attention(graph, v.to_dense(), src, dst)
    assert out.dtype == v.dtype
    close(out, expected, gat_tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "width", "k"),
    [(4, 64, 8), (4, 64, 1), (4, 64, 4), (4, 64, 16), (1, 256, 32), (3, 20, 10), (20, 32, 7)],
    ids=str,
)
def test_shapes(heads, width, k, dtype):
    """Rows of 0, 1 and 600 edges at either end; each number of lanes a head; slices of heads."""
    graph = mixed_graph()
    check(graph, sparse_operands(graph, heads, width, k, dtype), dtype)


@pytest.mark.parametrize(
    ("heads", "width", "k", "dtype"),
    [(4, 64, 8, "float32"), (3, 20, 10, "bfloat16"), (2, 16, 20, "float16"), (1, 32, 1, "float32")],
    ids=str,
)
@pytest.mark.parametrize("reverse", [False, True])
def test_sanitized_self_loops(heads, width, k, dtype, reverse):
    """In place of the graph's own, also where there are fewer senders than receivers."""
    graph = mixed_graph()
    if reverse:
        ends = np.asarray(graph.receivers), np.asarray(graph.senders)
        graph = Graph.from_edges(*ends, num_senders=30, num_receivers=37)
    operands = sparse_operands(graph, heads, width, min(k, width), dtype)
    check(graph, operands, dtype, loops=True)


@pytest.mark.parametrize("slope", [0.0, 1.0, -0.5, 3.0])
@pytest.mark.parametrize("k", [3, 20])
def test_sanitized_slopes(k, slope):
    graph = mixed_graph()
    check(graph, sparse_operands(graph, 4, 64, k), slope=slope)


@pytest.mark.system
@pytest.mark.parametrize("threads", [384, 512])
def test_sanitized_block_sizes(threads, monkeypatch):
    monkeypatch.setattr(sparse_windows, "FORWARD_THREADS", threads)
    monkeypatch.setattr(sparse_windows, "BACKWARD_THREADS", threads)
    graph = skewed_graph(200, 6000)
    jax.clear_caches()
    check(graph, sparse_operands(graph, 4, 64, 8))


def hub_graph():
    """5,000 receivers of a sender and 12,000 edges into one receiver, repeated ones among them:
    windows in parts."""
    rng = np.random.default_rng(0)
    ends = rng.integers(5000, size=(2, 40_000))
    ends[1, :12_000] = 3
    ends[0, 12_000:17_000], ends[1, 12_000:17_000] = 5, np.arange(5000)
    graph = Graph.from_edges(*ends, num_nodes=5000).with_windows()
    assert graph.windows is not None and graph.windows.num_partials > 0
    return graph


def test_hubs():
    """A sender's sums over 5,000 receivers keep the digits of float32."""
    graph = hub_graph()
    operands = sparse_operands(graph, 4, 32, 8)
    out, ours = run(graph, operands, impl="kernel")
    expected, theirs = run(graph, operands, impl="jax", dense=True)
    close(out, expected, 1e-5)
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, 1e-4)


def test_hubs_with_self_loops():
    graph = hub_graph()
    operands = sparse_operands(graph, 2, 16, 4)
    out, ours = run(graph, operands, impl="kernel", loops=True)
    expected, theirs = run(graph, operands, impl="jax", dense=True, loops=True)
    close(out, expected, 1e-5)
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, 1e-4)


def test_senders_of_unlike_magnitude():
    """Each sender's gradients have digits of their own."""
    graph = skewed_graph(60, 2000).with_windows()
    cbsr, *others = sparse_operands(graph, 2, 32, 8)
    factors = 10.0 ** np.linspace(-6, 6, 60).astype(np.float32)
    cbsr = dataclasses.replace(cbsr, values=cbsr.values * factors[:, None, None])
    out, ours = run(graph, (cbsr, *others), impl="kernel")
    expected, theirs = run(graph, (cbsr, *others), impl="jax", dense=True)
    close(out, expected, 4e-6)
    for a, b in zip(ours[:2], theirs[:2], strict=True):
        a, b = np.asarray(a), np.asarray(b)
        for row in range(60):
            close(a[row], b[row], 1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_runs_give_the_same_bits(dtype):
    graph = hub_graph()
    operands = sparse_operands(graph, 4, 64, 8, dtype)
    first = jax.tree.leaves(run(graph, operands, impl="kernel"))
    for _ in range(4):
        again = jax.tree.leaves(run(graph, operands, impl="kernel"))
        jax.tree.map(np.testing.assert_array_equal, first, again)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_stay_visible(place, value):
    """In what depends on them, and nowhere else."""
    graph = Graph.from_edges([0, 1, 2, 3], [0, 0, 1, 1], num_nodes=5).with_windows()
    operands = list(sparse_operands(graph, 1, 4, 2))
    if place == 0:
        values = operands[0].values.at[0].set(value)
        operands[0] = dataclasses.replace(operands[0], values=values)
    else:
        operands[place] = operands[place].at[0].set(value)
    out, (dv, dsrc, ddst) = run(graph, tuple(operands), impl="kernel")
    assert not np.isfinite(out[0]).all() and np.isfinite(out[1:]).all()
    assert np.isnan(dsrc[0]).any() and np.isnan(ddst[0]).any()
    assert np.isfinite(dv[2:]).all() and np.isfinite(dsrc[2:]).all() and np.isfinite(ddst[1:]).all()


def test_large_scores_and_masked_ends():
    """Scores that do not overflow; ends of minus infinity get no weight."""
    graph = skewed_graph(30, 600).with_windows()
    cbsr, src, dst = sparse_operands(graph, 2, 8, 3, scale=1e4)
    out, found = run(graph, (cbsr, src, dst), impl="kernel")
    close(out, dense_attention(graph, cbsr.to_dense(), src, dst), 2e-3)
    assert all(np.all(np.isfinite(g)) for g in found)
    cbsr, src, dst = sparse_operands(graph, 2, 8, 3)
    src, dst = src.at[4].set(-jnp.inf), dst.at[7].set(-jnp.inf)
    out, (dv, dsrc, ddst) = run(graph, (cbsr, src, dst), impl="kernel")
    close(out, dense_attention(graph, cbsr.to_dense(), src, dst), 4e-6)
    for zero in (out[7], dv[4], dsrc[4], ddst[7]):
        np.testing.assert_array_equal(zero, 0)
    assert all(np.all(np.isfinite(g)) for g in (dv, dsrc, ddst))


@pytest.fixture
def cuda_targets(monkeypatch):
    """Programs may be lowered as for a GPU."""
    monkeypatch.setattr(platform, "serves", lambda *_: True)


def lowered(graph, operands, **options):
    """The program of the gradients for a GPU."""
    cbsr, *scores = operands

    def loss(values, *scores):
        v = dataclasses.replace(cbsr, values=values)
        return jnp.sum(gat_attention(graph, v, *scores, **options).astype(jnp.float32))

    traced = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).trace(cbsr.values, *scores)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("heads", "width", "k", "options", "served"),
    [
        (4, 64, 8, {}, True),
        (4, 64, 5, {}, True),
        (4, 64, 33, {}, False),
        (1, 300, 8, {}, False),
        (4, 6, 2, {}, False),
        (4, 64, 8, {"self_loops": True}, True),
        (4, 64, 8, {"dropout_rate": 0.5, "dropout_rng": jax.random.key(0)}, False),
    ],
    ids=str,
)
def test_which_operands_the_kernels_serve(heads, width, k, options, served, cuda_targets):
    graph = skewed_graph(30, 300).with_windows()
    text = lowered(graph, sparse_operands(graph, heads, width, k), **options)
    assert [target in text for target in TARGETS] == [served, served]


@pytest.mark.parametrize(("width", "served"), [(236, True), (240, False), (256, False)])
def test_gpus_with_little_shared_memory(width, served, cuda_targets, monkeypatch):
    """Self-loops of wide heads are served by rows there."""
    graph = skewed_graph(30, 300).with_windows()
    operands = sparse_operands(graph, 1, width, 8)
    for capability, expected in (("8.9", served), ("9.0", True)):
        gpu = types.SimpleNamespace(compute_capability=capability)
        monkeypatch.setattr(jax, "local_devices", lambda gpu=gpu: [gpu])
        text = lowered(graph, operands, self_loops=True)
        assert [target in text for target in TARGETS] == [expected] * 2
        assert all(target in lowered(graph, operands) for target in TARGETS)


def test_graphs_without_windows(cuda_targets):
    graph = skewed_graph(30, 300)
    text = lowered(graph, sparse_operands(graph, 4, 64, 8))
    assert not any(target in text for target in TARGETS)


@pytest.mark.parametrize(
    ("edges", "dtype", "k", "served"),
    [
        (3_600, "float32", 16, [True, True]),
        (3_600, "float32", 17, [False, False]),
        (3_600, "bfloat16", 8, [True, True]),
        (3_600, "bfloat16", 9, [False, False]),
        (20, "float32", 8, [False, False]),
        (100, "float32", 8, [False, True]),
    ],
)
def test_where_windows_are_faster(edges, dtype, k, served, cuda_targets, monkeypatch):
    """Up to a quarter of the features, an eighth in 16 bits, and from two edges an entry forward,
    1.25 backward (docs/kernels/attention.md)."""
    for name, value in CHOICE.items():
        monkeypatch.setattr(sparse_rule, name, value)
    pairs = np.random.default_rng(0).choice(640 * 640, edges * 64, replace=False)
    graph = Graph.from_edges(*np.divmod(pairs, 640), num_nodes=640).with_windows()
    text = lowered(graph, sparse_operands(graph, 1, 64, k, dtype))
    assert [target in text for target in TARGETS] == served


def test_vmap_multiplies_the_heads():
    graph = skewed_graph(40, 400).with_windows()
    many = [sparse_operands(graph, 2, 16, 4, seed=seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)
    out, found = jax.vmap(lambda operands: run(graph, operands, impl="kernel"))(stacked)
    for i, operands in enumerate(many):
        expected, theirs = run(graph, operands, impl="jax", dense=True)
        close(out[i], expected, 1e-5)
        for a, b in zip(found, theirs, strict=True):
            close(a[i], b, 1e-4)
