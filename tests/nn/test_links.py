"""Decoders of links and learned features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn.nn import CategoryEmbedding, DotDecoder, MLPDecoder, NodeEmbedding
from tests.support.arrays import normal


def test_decoders_score_pairs_and_differentiate():
    x, other = normal(7, 4), normal(5, 4, seed=1)
    senders, receivers = jnp.array([0, 6, 2, 0]), jnp.array([1, 6, 4, 1])
    decoder = MLPDecoder(4, 8, num_layers=3, rngs=nnx.Rngs(0))

    @nnx.jit
    def scores(decoder, x, other):
        gradient = jax.grad(lambda x: DotDecoder()(x, senders, receivers).sum())(x)
        narrow = DotDecoder()(x.astype(jnp.bfloat16), senders, receivers)
        return (
            DotDecoder()(x, senders, receivers),
            decoder((x, other), senders, receivers[:].at[1].set(3)),
            gradient,
            narrow,
            DotDecoder()(x, jnp.array([7, -1]), jnp.array([0, 0])),
        )

    dot, mlp, gradient, narrow, outside = scores(decoder, x, other)
    rows = np.asarray(x, np.float64)
    np.testing.assert_allclose(dot, (rows[senders] * rows[receivers]).sum(1), rtol=1e-5)
    expected = np.zeros_like(rows)
    np.add.at(expected, senders, rows[receivers])
    np.add.at(expected, receivers, rows[senders])
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    ends = x[senders] * other[jnp.array([1, 3, 4, 1])]
    np.testing.assert_allclose(mlp, decoder.mlp(ends)[:, 0], rtol=1e-5)
    assert narrow.dtype == jnp.bfloat16 and np.isnan(outside).all()
    with pytest.raises(ValueError, match="senders, receivers: expected two vectors of one length"):
        DotDecoder()(x, senders, receivers[:2])
    with pytest.raises(TypeError, match="receivers: expected integers, got float32"):
        DotDecoder()(x, senders, jnp.asarray(receivers, jnp.float32))
    with pytest.raises(ValueError, match=r"x: expected rows \(nodes, features\)"):
        decoder((x, other[:, :2]), senders, receivers)
    for score in (DotDecoder(), decoder):
        with pytest.raises(TypeError, match=r"x: expected float32, .* got int32"):
            score((x, other.astype(int)), senders, receivers)


def test_the_order_of_a_pair_changes_no_score():
    x, ends = normal(7, 4), (jnp.array([0, 6]), jnp.array([1, 2]))
    narrow = x.astype(jnp.bfloat16)
    one, other = DotDecoder()((narrow, x), *ends), DotDecoder()((x, narrow), *ends[::-1])
    assert one.dtype == other.dtype == jnp.float32
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("compiled", [False, True])
def test_products_of_16_bits_are_summed_as_they_are(compiled):
    """Products out of float16's range that cancel."""
    x = jnp.asarray([[300, 300], [300, -300]], jnp.float16)
    score = jax.jit(DotDecoder()) if compiled else DotDecoder()
    assert score(x, jnp.array([0]), jnp.array([1])) == 0


def test_an_embedding_is_a_row_a_node():
    embedding = NodeEmbedding(300, 16, rngs=nnx.Rngs(0))
    table = embedding()
    assert table.shape == (300, 16) and table.dtype == jnp.float32
    np.testing.assert_array_equal(embedding(jnp.array([3, 299])), table[jnp.array([3, 299])])
    assert 0.9 < float(jnp.linalg.norm(table, axis=1).mean()) < 1.1
    narrow = NodeEmbedding(3, 2, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert narrow().dtype == narrow(jnp.array([1])).dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="num_nodes"):
        NodeEmbedding(0, 4, rngs=nnx.Rngs(0))


def test_gradients_of_an_embedding_of_16_bits_are_sums_in_float32():
    """A sum of 600 ones in bfloat16 would end at 256."""
    embedding = NodeEmbedding(2, 3, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    nodes = jnp.zeros((300, 2), jnp.int32)
    gradient = nnx.grad(lambda embedding: embedding(nodes).sum(dtype=jnp.float32))(embedding)
    np.testing.assert_array_equal(gradient.embedding[...], [[600] * 3, [0] * 3])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64])
def test_nodes_of_any_integers(dtype):
    x = np.asarray(normal(300, 4))
    embedding = NodeEmbedding(300, 4, rngs=nnx.Rngs(0))
    nodes = np.array([5, 100], dtype)
    with jax.numpy_dtype_promotion("strict"):
        np.testing.assert_array_equal(embedding(nodes), np.asarray(embedding())[nodes])
        score = DotDecoder()(x, nodes, nodes)
    np.testing.assert_allclose(score, (x[nodes] ** 2).sum(1), rtol=1e-6)


def test_nodes_out_of_range_are_nan():
    """Also those whose lower 32 bits are the number of a node."""
    outside = np.array([3, 2**32 + 1, 2**31, 2**63 - 1])
    embedding = NodeEmbedding(3, 2, rngs=nnx.Rngs(0))
    assert np.isnan(embedding(outside)).all()
    assert np.isnan(embedding(2**70)).all() and np.isnan(embedding([-(2**70), 2**32])).all()
    assert np.isnan(NodeEmbedding(1, 2, rngs=nnx.Rngs(0))(outside)).all()
    assert np.isnan(DotDecoder()(normal(3, 2), outside, np.zeros(4, int))).all()
    np.testing.assert_array_equal(embedding([-1, -3]), embedding()[np.array([2, 0])])
    assert embedding([]).shape == (0, 2)
    with pytest.raises(TypeError, match="nodes: expected integers, got float32"):
        embedding(jnp.ones(3))
    with pytest.raises(TypeError, match="nodes: expected integers, got object"):
        embedding([None, 2**70])


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int32, jnp.bfloat16, jnp.float32])
def test_categories_are_taken_under_strict_promotion(dtype):
    embedding = CategoryEmbedding([3, 4], 2, rngs=nnx.Rngs(0))
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        out = embedding(jnp.asarray([[2, 3], [0, 1]], dtype))
    table = np.asarray(embedding.embedding[...])
    np.testing.assert_allclose(out, table[[2, 0]] + table[[6, 4]], rtol=1e-6)


def test_a_category_embedding_is_a_sum_over_the_columns():
    sizes = (5, 2, 300)
    embedding = CategoryEmbedding(sizes, 4, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(size, size=50) for size in sizes], axis=1)
    weights = normal(50, 4)

    @jax.jit
    def both(table, x):
        def rows(table):
            model = CategoryEmbedding(sizes, 4, rngs=nnx.Rngs(0))
            model.embedding[...] = table
            return model(x)

        out, vjp = jax.vjp(rows, table)
        return out, vjp(weights)[0]

    table = embedding.embedding[...]
    out, gradient = both(table, x.astype(np.float32))
    places = x + np.array([0, 5, 7])
    np.testing.assert_allclose(out, np.asarray(table)[places].sum(1), rtol=1e-6, atol=1e-6)
    expected = np.zeros((307, 4))
    np.add.at(expected, places, np.asarray(weights, np.float64)[:, None])
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
    # What is no category adds nothing, to no other column either.
    odd = jnp.array([[5.0, -1.0, 1.0], [jnp.nan, 2.0, 1.0]])
    fresh = CategoryEmbedding(sizes, 4, rngs=nnx.Rngs(0))
    found = fresh(odd)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], fresh.embedding[...][8])
    for narrow in (jnp.bfloat16, jnp.int8):
        with pytest.raises(TypeError, match="x: expected a dtype that holds numbers to 299"):
            fresh(jnp.zeros((1, 3), narrow))
    assert fresh(jnp.zeros((1, 3), jnp.float16)).dtype == jnp.float32
    # The last category is one where the dtype has no larger number after it.
    last = CategoryEmbedding([257], 4, rngs=nnx.Rngs(0))
    row = last(jnp.full((1, 1), 256, jnp.bfloat16))
    np.testing.assert_array_equal(row, last.embedding[...][256:])
    with pytest.raises(ValueError, match=r"x: expected the shape \(rows, 3\)"):
        fresh(jnp.zeros((1, 2)))
    with pytest.raises(ValueError, match="num_categories: expected a number for each column"):
        CategoryEmbedding((), 4, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="num_categories"):
        CategoryEmbedding((3, 0), 4, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"num_categories: .* each column, got int"):
        CategoryEmbedding(3, 4, rngs=nnx.Rngs(0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "x",
    [
        np.array([[2**32 + 1, 2**32], [-(2**32), 2**32 + 3]]),
        np.array([[2**63, 2**63 + 1], [2**32, 2**64 - 1]], np.uint64),
        [[2**32 + 1, 2**32], [2**31, -(2**63)]],
        [[2**70, -(2**70)], [2**64, 2**64 + 1]],
        np.array([[1.5, 0.5], [-0.5, 2.75]]),
        jnp.array([[0.25, 0.5], [1.5, jnp.inf]], jnp.bfloat16),
    ],
)
def test_what_is_no_category_adds_nothing(x):
    """Nor do integers whose lower 32 bits are a category, or fractions."""
    embedding = CategoryEmbedding([3, 4], 2, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(embedding(x), np.zeros((2, 2)))


def test_categories_may_be_a_list():
    embedding = CategoryEmbedding([3, 4], 2, rngs=nnx.Rngs(0))
    expected = embedding(jnp.array([[1, 2]]))
    np.testing.assert_array_equal(embedding([[1, 2]]), expected)
    np.testing.assert_array_equal(jax.jit(lambda one: embedding([[one, 2]]))(1), expected)
    for bad in ([["1", "2"]], [[1, 2], [1]], None):
        with pytest.raises(TypeError, match="x: expected an array of numbers, got"):
            embedding(bad)


@pytest.mark.parametrize(
    "create", [NodeEmbedding, lambda n, *a, **k: CategoryEmbedding([n], *a, **k)]
)
def test_bad_options_of_embeddings_are_named(create):
    for name in ("dtype", "param_dtype"):
        with pytest.raises(TypeError, match=rf"^{name}: expected float32, .* got int32"):
            create(3, 4, **{name: jnp.int32}, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"rngs: expected nnx.Rngs, got NoneType"):
        create(3, 4, rngs=None)
