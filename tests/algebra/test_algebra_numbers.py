"""The algebra where numbers are hard: sums in 16 bits, and rows of nodes that have no edges."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import Graph
from jaxgnn.algebra import (
    apply_edge,
    concat,
    dot,
    dropout,
    edge_values,
    evaluate,
    explain,
    gather,
    gaussian,
    leaky_relu,
    linear,
    scatter,
    segment_normalize,
    weighted_sum,
)
from tests.support.oracle import close

pytestmark = [pytest.mark.usefixtures("strict"), pytest.mark.few(1)]


def times(number, edges):
    return apply_edge(lambda x: number * x, edges)


# Of rows u of 100 (one entry is 101), v and e of -100, a small factor f of the receiver, a weight s
# of the edge, and a kernel k whose products cancel: parts of these sums are beyond float16, or have
# more digits than 16 bits; what is left of them has not.
PARTS = {
    "sender and edge": ("[spmm({0}) of u] + [segment_reduce({0}) of e]", lambda p: p.u + p.e),
    "both ends": ("edge_conv({}) of (u + v)", lambda p: p.u + p.v),
    "terms apart": (
        "edge_conv({}) of (((<lambda>(u) + <lambda>(v)) + <lambda>(u)) + <lambda>(v))",
        lambda p: times(512, p.u) + times(512, p.v) + times(512, p.u) + times(512, p.v),
    ),
    "linear": ("linear of [spmm({}) of u]", lambda p: linear(p.u, p.k)),
    "linear twice": (
        "linear of [linear of [spmm({}) of u]]",
        lambda p: linear(linear(p.u, p.k), p.k),
    ),
    "linear of a sum": (
        "linear of [edge_conv({}) of (u + v)]",
        lambda p: linear(p.u + p.v, p.k),
    ),
    "receivers' factor": ("v * [spmm({}) of u]", lambda p: p.f * p.u),
    "receivers' factor of a sum": (
        "v * [[spmm({0}) of u] + [segment_reduce({0}) of e]]",
        lambda p: p.f * (p.u + p.e),
    ),
    "receivers' factor of any function": (
        "v * [reference: cos((u + e)) on the edges, segment_reduce({}), recomputed in backward]",
        lambda p: p.f * apply_edge(jnp.cos, p.u + p.e),
    ),
    "rows apart": (
        "spmm({}) of (u * <lambda>(u)) weighted by e",
        lambda p: p.s * p.u * times(8, p.u),
    ),
    "a number's factor": (
        "(1000 * [[spmm({0}) of u] + [segment_reduce({0}) of e]])",
        lambda p: 1000 * (p.u + p.e),
    ),
    "a number's factor of terms": (
        "edge_conv({}) of ((1024 * (u + v)) + v)",
        lambda p: 1024 * (p.u + p.v) + p.f,
    ),
}


@pytest.fixture(scope="module")
def many():
    """One receiver of many edges, each of another sender, and one without."""
    edges = np.arange(4096), np.zeros(4096, int)
    return Graph.from_edges(*edges, num_senders=4096, num_receivers=2)


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_sum_are_not_rounded_to_16_bits(name, dtype, many):
    planned, expression = PARTS[name]
    rows = np.full((4096, 2), 100.0)
    rows[0, 0] = 101
    values = {
        "u": rows,
        "v": np.full((2, 2), -100),
        "e": np.full((4096, 2), -100),
        "f": np.full((2, 2), 2.0**-4),
        "s": np.full(4096, 2.0**-14),
        "k": [[1, 0.5], [-1, -0.5]],
    }

    def message(arrays):
        ends = {"u": "u", "v": "v", "f": "v"}
        given = {name: scatter(many, **{end: arrays[name]}) for name, end in ends.items()}
        given |= {name: edge_values(many, arrays[name]) for name in "es"}
        return expression(SimpleNamespace(**given, k=arrays["k"]))

    def run(reduce, dtype, **options):
        def loss(arrays):
            out = gather(message(arrays), reduce, **options)
            # Gradients that all have a place in float16.
            factor = 2.0**5 if reduce == "mean" else 2.0**-7
            return jnp.sum(out.astype(jnp.float32)) * factor, out

        arrays = {name: jnp.asarray(value, dtype) for name, value in values.items()}
        if not options:
            text = explain(message(arrays), reduce).splitlines()[0]
            assert text == planned.format(reduce)
        return jax.jit(jax.grad(loss, has_aux=True))(arrays)

    for reduce in ("sum", "mean", *(["max"] if "terms" in name else [])):
        results = run(reduce, dtype), run(reduce, "float32", fuse=False, impl="jax")
        for ours, exact in zip(*map(jax.tree.leaves, results), strict=True):
            assert ours.dtype == dtype
            ours, exact = np.asarray(ours, float), np.asarray(exact, float)
            tolerance = 2 * float(jnp.finfo(dtype).eps) * np.abs(exact).max()
            np.testing.assert_allclose(ours, exact, rtol=0, atol=tolerance)


# Rows of receivers that come out of a sum, and functions that are computed on the nodes: u and v
# have rows of no edge, whose values and derivatives are infinite or NaN.
UNUSED = {
    "receivers' factor": lambda u, v, k: v * u,
    "receivers' factors": lambda u, v, k: v * (u * v),
    "of the senders": lambda u, v, k: apply_edge(jnp.sqrt, u),
    "of the receivers": lambda u, v, k: apply_edge(jnp.log, v),
    "one after another": lambda u, v, k: apply_edge(jnp.log, apply_edge(jnp.sqrt, 2 * u)) + v,
    "of both ends": lambda u, v, k: u / apply_edge(jnp.sqrt, v),
    "of two of one end": lambda u, v, k: u * apply_edge(jnp.sqrt, u),
    "linear": lambda u, v, k: apply_edge(jnp.sin, linear(concat(v, u - v), k)),
    "attention": lambda u, v, k: segment_normalize(leaky_relu(u + v)) * apply_edge(jnp.sqrt, u),
    "normalized": lambda u, v, k: segment_normalize(apply_edge(jnp.sqrt, u), "mean") * u,
    "gatv2": lambda u, v, k: segment_normalize(dot(leaky_relu(u + v), k[:3, 0])) * u,
    "scores": lambda u, v, k: segment_normalize(apply_edge(jnp.log, u) - 2 * v) * u,
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", UNUSED)
def test_rows_without_edges_do_not_matter(name):
    """Nor do they to derivatives: those on the edges do not know them."""
    graph = Graph.from_edges([0, 1, 0], [1, 2, 3], num_senders=3, num_receivers=4)
    u = jnp.asarray([[4, 1, 2], [2, 3, 1], [0, jnp.inf, jnp.nan]])
    v = jnp.asarray([[0, jnp.inf, jnp.nan], [1, 5, 2], [3, 2, 4], [6, 1, 3]])
    arrays = {"u": u, "v": v, "k": jnp.cos(jnp.arange(12.0)).reshape(6, 2)}
    reduces = ("sum", "mean", "max")

    def run(fuse):
        def outs(arrays):
            message = UNUSED[name](*scatter(graph, arrays["u"], arrays["v"]), arrays["k"])
            return [gather(message, reduce, fuse=fuse) for reduce in reduces]

        def gradient(arrays):
            return jax.grad(lambda arrays: sum(jnp.sum(jnp.sin(x)) for x in outs(arrays)))(arrays)

        def steepness(arrays):
            return sum(jnp.sum(x**2) for x in gradient(arrays).values())

        batch = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), arrays)
        return outs(arrays), jax.vmap(gradient)(batch), jax.grad(steepness)(arrays)

    fused, plain = (jax.jit(run, static_argnums=0)(fuse) for fuse in (True, False))
    for a, b in zip(*map(jax.tree.leaves, (fused, plain)), strict=True):
        assert np.all(np.isfinite(b))
        close(a, b, 3e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_functions_of_nodes_without_any_edge(dtype):
    lonely = Graph.from_edges([], [], num_nodes=3)

    def loss(x, k):
        u, v = scatter(lonely, x, x)
        messages = apply_edge(jnp.sqrt, u), v * apply_edge(jnp.log, u), linear(u / v, k)
        return sum(jnp.sum(gather(m, r)) for m in messages for r in ("sum", "mean", "max"))

    gradients = jax.jit(jax.value_and_grad(loss, (0, 1)))(jnp.zeros((3, 2), dtype), jnp.eye(2))
    for x in jax.tree.leaves(gradients):
        np.testing.assert_array_equal(np.asarray(x, float), 0)


@pytest.mark.parametrize("scalar", [1e-5, np.float64(1e-5), jnp.float32(1e-5)])
def test_a_divisor_whose_inverse_is_beyond_float16(scalar, many):
    rows = jnp.full((4096, 2), 2.0**-13, jnp.float16)
    for fuse in (True, False):
        out = gather(scatter(many, rows) / scalar, "mean", fuse=fuse)
        np.testing.assert_allclose(out[0], 2.0**-13 / 1e-5, rtol=2**-9)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_scalar_divided_by_values(dtype, many):
    rows = jnp.arange(1, 8193, dtype=dtype).reshape(4096, 2)
    for fuse in (True, False):
        out = gather(3 / scatter(many, rows), "max", fuse=fuse)
        np.testing.assert_array_equal(out, np.array([[3, 1.5], [0, 0]], dtype))
    assert "(3 / u)" in explain(3 / scatter(many, rows))


@pytest.mark.parametrize("scalar", [2, np.float64(2), jnp.int32(2), jnp.float32(2)])
def test_scores_times_a_scalar_of_any_type(scalar, many):
    """Under strict promotion, in 16 bits too."""
    x = jnp.ones((2, 4), jnp.float16)
    senders = jnp.tile(x, (2048, 1))
    u, v = scatter(many, senders, x)
    for planned, scores in (
        ("dot_attention", dot(u, v)),
        ("gatv2_attention", dot(leaky_relu(u + v), x[0])),
    ):
        message = segment_normalize(scores * scalar) * u
        assert explain(message).startswith(planned)
        np.testing.assert_allclose(gather(message)[0], 1, rtol=2**-9)


@pytest.mark.parametrize("fuse", [True, False])
def test_a_scalar_of_16_bits_divides_as_the_number_that_it_is(fuse):
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0])
    u, _ = scatter(graph, jnp.full((3, 1), 3.0), jnp.zeros((3, 1)))
    for three in (jnp.bfloat16(3), np.float16(3), np.int32(3), 3):
        np.testing.assert_array_equal(gather(u / three, fuse=fuse), np.ones((3, 1)))
    assert np.isposinf(gather(u / 0, fuse=fuse)).all()
    with pytest.raises(TypeError, match="expected a real number, got 1j"):
        u * np.complex64(1j)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_masks_and_indices_between(reduce):
    """What is no floating number is made on the edges, and is a weight as 0 or 1."""
    graph = Graph.from_edges([0, 1, 2, 0], [1, 2, 0, 2])
    x = jnp.array([[1.0, -2.0], [3.0, 4.0], [-5.0, 6.0]])
    u, v = scatter(graph, x, x[::-1])
    s = edge_values(graph, jnp.array([1.0, -2.0, 3.0, 0.5]))

    def positive(edges):
        return apply_edge(lambda x: x > 0, edges)

    largest = apply_edge(lambda x: jnp.argmax(x, -1)[:, None], u)
    for edges in (
        apply_edge(lambda mask, y: jnp.where(mask, y, 0.0), positive(u), v),
        apply_edge(lambda column, y: jnp.where(column == 1, y, 0.0), largest, v),
        positive(s) * u,
        positive(s) * v,
    ):
        fused, apart = (gather(edges, reduce, fuse=fuse) for fuse in (True, False))
        np.testing.assert_array_equal(fused, apart)
        assert np.asarray(fused).any()


@pytest.fixture(scope="module")
def ring():
    return Graph.from_edges([0, 1, 2, 0], [1, 2, 0, 2])


COUNTS = jnp.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["int32", "bool"])
@pytest.mark.parametrize(
    "expression",
    [
        lambda m: 0.5 * m,
        lambda m: m + 0.5,
        lambda m: 1 - m,
        lambda m: m / 2,
        lambda m: 3 / (m + 1),
        lambda m: -m,
        lambda m: 3 * m,
        lambda m: m * jnp.bfloat16(0.3),
        lambda m: m / jnp.bfloat16(3),
    ],
)
def test_integers_and_masks_are_promoted_as_in_jax_numpy(expression, dtype, ring):
    edges = apply_edge(lambda x: x.astype(dtype), edge_values(ring, COUNTS))
    with jax.numpy_dtype_promotion("standard"):
        expected = expression(COUNTS.astype("int32"))
    out = evaluate(expression(edges))
    assert out.dtype == expression(edges).dtype == expected.dtype
    np.testing.assert_array_equal(out, expected)


# Of counts `m`, a weight `w` of the edge, rows `u` of the senders, and a kernel `k`.
OF_COUNTS = {
    "weight": lambda m, w, u, k: w * m,
    "entries": lambda m, w, u, k: m * u,
    "sum": lambda m, w, u, k: u - m,
    "factor of a sum": lambda m, w, u, k: 0.5 * (u + 3 * m),
    "factor of a product": lambda m, w, u, k: 0.5 * (w * m),
    "half": lambda m, w, u, k: (0.5 * m) * u,
    "quotient": lambda m, w, u, k: m / w,
    "linear": lambda m, w, u, k: linear(0.3 * m, k),
    "concat": lambda m, w, u, k: linear(concat(u, m), jnp.concatenate([k, 2 * k])),
    "dot": lambda m, w, u, k: dot(m, k[0]),
    "weighted sum": lambda m, w, u, k: weighted_sum(u, m),
    "gaussian": lambda m, w, u, k: gaussian(m, k, k),
    "softmax": lambda m, w, u, k: segment_normalize(m) * u,
    "normalized": lambda m, w, u, k: segment_normalize(m + 1, "sum") * u,
    "dropout": lambda m, w, u, k: dropout(m, 0.25, jax.random.key(0)),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", OF_COUNTS)
@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_integers_and_masks_give_what_the_same_floating_numbers_do(name, dtype, ring):
    x, k = jnp.sin(jnp.arange(6.0)).reshape(3, 2), jnp.cos(jnp.arange(4.0)).reshape(2, 2)
    m = edge_values(ring, COUNTS)
    counts = apply_edge(lambda x: x.astype(dtype), m)
    rest = edge_values(ring, jnp.array([0.3, -1.2, 2.5, 0.7])), scatter(ring, x), k

    @jax.jit
    def run():
        messages = OF_COUNTS[name](m, *rest), OF_COUNTS[name](counts, *rest)
        options = [(reduce, fuse) for reduce in ("sum", "max") for fuse in (True, False)]
        return [[gather(e, reduce, fuse=fuse) for reduce, fuse in options] for e in messages]

    with jax.numpy_dtype_promotion("standard"):
        for expected, out in zip(*run(), strict=True):
            assert out.dtype == expected.dtype
            close(out, expected)


# As written they are finite; a factor that meets one part first leaves float16's range.
IN_RANGE = {
    "product": ("max", 100, lambda p, k: (p(u=100) * p(e=1e-3)) * 1000.0),
    "kernel": ("max", 200, lambda p, k: linear((p(u=2e-3) - p(v=1e-3)) * 1e5, k)),
    "small": ("max", 2, lambda p, k: linear((p(u=2e4) - p(v=1e4)) / 1e8, k * 1e4)),
    "vector": ("max", 200, lambda p, k: dot((p(u=2e-3) - p(v=1e-3)) * 1e5, k[0])),
    "term": ("sum", 124, lambda p, k: (p(u=100) * p(e=1) - p(v=99.875)) * 1000.0 - p(e=1)),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", IN_RANGE)
def test_a_factor_in_float16_does_not_leave_its_range(name):
    graph = Graph.from_edges([0, 1], [1, 0])
    reduce, expected, expression = IN_RANGE[name]

    def part(**number):
        rows = {end: jnp.full((2, 2), value, jnp.float16) for end, value in number.items()}
        return edge_values(graph, rows["e"]) if "e" in rows else scatter(graph, **rows)

    for fuse in (True, False):
        out = gather(expression(part, jnp.ones((2, 2), jnp.float16)), reduce, fuse=fuse)
        assert out.dtype == jnp.float16
        np.testing.assert_allclose(np.asarray(out, float), expected, rtol=2e-3)


def test_scaled_concatenations_are_projected_on_the_nodes_in_float16(ring):
    u, v = scatter(ring, *2 * [jnp.ones((3, 2), jnp.float16)])
    scores = linear(0.5 * concat(v, u), jnp.ones((4, 1), jnp.float16))
    assert explain(segment_normalize(leaky_relu(scores)) * u).startswith("gat_attention of u")


def test_an_integer_beyond_32_bits_beside_floating_values(ring):
    u = scatter(ring, jnp.full((3, 1), 0.5))
    for big in (2**40, np.int64(2**40)):
        for edges, expected in ((u * big, 2.0**39), (u + big, 2.0**40), (u / big, 2.0**-41)):
            np.testing.assert_array_equal(gather(edges, "max"), np.full((3, 1), expected))
