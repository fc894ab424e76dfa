"""`MaxK` as an activation, and its schedule."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn._core.platform import kernels_available
from jaxgnn.nn import GCN, GIN, MLP, MaxK, annealed_k
from jaxgnn.ops import maxk
from tests.support.maxk_models import (
    CLASSES,
    HIDDEN,
    NODES,
    WIDTH,
    K,
    close,
    example,
    loss,
    make,
    masked,
    single,
)

pytestmark = pytest.mark.few(1)


def test_any_perceptron_takes_it():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 7, WIDTH)), jnp.float32)
    widths = [WIDTH, HIDDEN, HIDDEN, CLASSES]
    net = MLP(widths, activation=MaxK(K), norm="layer", rngs=nnx.Rngs(0))

    @nnx.jit
    def both(net, x):
        out = x
        for i, layer in enumerate(net.linears):
            if i:
                rows = net.norms[i - 1](out).reshape(-1, out.shape[-1])
                out = masked(rows, K).reshape(out.shape)
            out = layer(out)
        return net(x), out

    close(*both(net, x), 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_applies_the_layer_normalization_before_it(dtype):
    """In the dtype of the normalization's result, which its parameters may widen."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 7, WIDTH)), dtype)
    for own in (None, jnp.bfloat16):
        norm = nnx.LayerNorm(WIDTH, dtype=own, use_fast_variance=False, rngs=nnx.Rngs(0))
        norm.bias[...] = jnp.linspace(-1, 1, WIDTH)
        ours, apart = MaxK(K)(x, norm=norm), MaxK(K)(norm(x))
        assert ours.dtype == apart.dtype
        unit = float(jnp.finfo(ours.dtype).eps)
        close(ours.astype(jnp.float32), apart.astype(jnp.float32), 8 * unit)


def test_a_model_stores_no_normalized_row():
    model = make("sage", norm="layer", recompute=False)
    graph, x, weights = single(example())
    text = jax.jit(nnx.merge(*nnx.split(model))).lower(graph, x, weights).as_text()
    fused = text.count("@jaxgnn_maxk_normalized(")
    assert fused == (len(model.norms) if kernels_available("jaxgnn_maxk") else 0)


def test_gin_keeps_relu_in_its_perceptrons_unless_told_otherwise():
    model = make("gin")
    assert all(conv.nn.activation is jax.nn.relu for conv in model.convs)
    model = make("gin", mlp_activation=jax.nn.elu)
    assert all(conv.nn.activation is jax.nn.elu for conv in model.convs)
    model = make("gin", activation=jax.nn.silu)
    assert all(conv.nn.activation is jax.nn.silu for conv in model.convs)


@pytest.mark.parametrize(
    ("create", "error", "message"),
    [
        (lambda r: MaxK(0), ValueError, "k: expected at least 1, got 0"),
        (lambda r: MaxK(2.5), TypeError, "k: expected a number of entries to keep, got 2.5"),
        (lambda r: MaxK(True), TypeError, "k: expected a number"),
        (lambda r: MaxK(9)(jnp.ones((3, 8))), ValueError, "k: .* got 9"),
        (
            lambda r: MaxK(2)(jnp.ones((3, 8)), jnp.ones(8), norm=nnx.LayerNorm(8, rngs=r)),
            ValueError,
            "bias: expected None with norm",
        ),
        (lambda r: MaxK(2, dropout=1.0, rngs=r), ValueError, "dropout: .* to less than 1, got 1.0"),
        (lambda r: MaxK(2, dropout=0.5), ValueError, "rngs: expected nnx.Rngs with dropout=0.5"),
        (
            lambda r: MaxK(2)(jnp.ones((3, 8)), norm=nnx.RMSNorm(8, rngs=r)),
            TypeError,
            r"norm: expected an nnx\.LayerNorm, got RMSNorm",
        ),
        (
            lambda r: MaxK(2)(jnp.ones((3, 8)), norm=nnx.LayerNorm(8, reduction_axes=0, rngs=r)),
            ValueError,
            "norm: expected reduction_axes=-1, over features, got 0",
        ),
        (
            lambda r: GCN(6, 12, 3, num_layers=2, activation=MaxK(13), rngs=r),
            ValueError,
            "activation: expected MaxK's k to be at most the width 12 .* got 13",
        ),
        (
            lambda r: GIN(
                6, 12, 3, num_layers=2, activation=MaxK(8), mlp_activation=MaxK(4), rngs=r
            ),
            ValueError,
            "at most the width 3 .* got 4",
        ),
        (lambda r: MLP([6, 3, 12], activation=MaxK(4), rngs=r), ValueError, "width 3 .* got 4"),
        (lambda r: annealed_k(0, 4, 8, 10), ValueError, "narrow: expected at most wide, 4, got 8"),
        (lambda r: annealed_k(0, 4, 2, 0), ValueError, "steps: expected at least 1, got 0"),
        (lambda r: annealed_k(0, 4, 2, 2**31), ValueError, r"steps: expected fewer than 2\^31"),
        (lambda r: annealed_k(0, 4, 2.0, 3), TypeError, "narrow: .* got 2.0"),
        (lambda r: annealed_k("3", 4, 2, 3), TypeError, "step: expected an integer, got str"),
        (lambda r: annealed_k(jnp.ones(2), 4, 2, 3), TypeError, r"step: .* got float32\[2\]"),
    ],
)
def test_bad_arguments_are_named(create, error, message):
    with pytest.raises(error, match=message):
        create(nnx.Rngs(0))


# The schedule.


def test_the_schedule_is_linear_and_ends():
    values = [int(annealed_k(step, 64, 16, 100)) for step in range(130)]
    assert values[0] == 64 and values[100:] == [16] * 30
    assert all(a >= b for a, b in itertools.pairwise(values))
    expected = 64 - 48 * np.minimum(np.arange(130) / 100, 1)
    assert np.all(np.abs(np.array(values) - expected) <= 0.5)
    assert int(jax.jit(lambda t: annealed_k(t, 8, 2, 10))(5)) == 5
    assert int(annealed_k(3, 8, 8, 10)) == 8
    # Of steps whose number times that of the entries is above 2^31.
    long = [int(annealed_k(step, 1024, 1, 10**7)) for step in (0, 10**6, 3 * 10**6, 10**7)]
    assert long == [1024, 922, 717, 1]
    # Steps that int32 does not hold, and a dtype that does not hold `steps`.
    beyond = (np.int64(2**31), 2**40, jnp.uint32(2**31), -(2**40), jnp.int8(100))
    assert [int(annealed_k(step, 32, 8, 1000)) for step in beyond] == [8, 8, 8, 32, 30]


def test_annealed_k_equals_a_narrower_maxk_without_compiling_again():
    graph, x, weights = single(example())
    annealed = make("gcn", 2, activation=MaxK(8, anneal=True), input_layer=True)
    traces = []

    @nnx.jit
    def gradient(model, graph, x, weights):
        traces.append(1)
        return nnx.value_and_grad(lambda model: loss(model(graph, x, weights)))(model)

    for k in (8, 5, 1):
        annealed.activation.active[...] = jnp.asarray(k, jnp.int32)
        value, gradients = gradient(annealed, graph, x, weights)
        fixed = make("gcn", 2, activation=MaxK(k), input_layer=True)
        value_and_gradient = nnx.value_and_grad(lambda model: loss(model(graph, x, weights)))
        expected = nnx.jit(value_and_gradient)(fixed)
        close(value, expected[0], 1e-5)
        close(jax.tree.leaves(gradients), jax.tree.leaves(expected[1]), 1e-5)
    assert len(traces) == 1


def test_an_annealed_model_trains_with_one_trace():
    import optax

    graph, x, _ = single(example())
    labels = jnp.asarray(np.random.default_rng(0).integers(CLASSES, size=NODES))
    model = make("sage", 2, activation=MaxK(8, anneal=True))
    optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)
    traces, losses = [], []

    @nnx.jit
    def step(model, optimizer, graph, x, labels, number):
        traces.append(1)
        model.activation.active[...] = annealed_k(number, 8, 2, 30)

        def mean_loss(model):
            logits = model(graph, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, gradients = nnx.value_and_grad(mean_loss)(model)
        optimizer.update(model, gradients)
        return value

    for number in range(40):
        losses.append(float(step(model, optimizer, graph, x, labels, jnp.asarray(number))))
    assert len(traces) == 1 and int(model.activation.active[...]) == 2
    assert losses[-1] < 0.7 * losses[0]


def test_annealing_is_state_and_no_parameter():
    model = make("gcn", activation=MaxK(8, anneal=True))
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    assert [int(leaf) for leaf in jax.tree.leaves(rest)] == [8]
    assert not jax.tree.leaves(nnx.split(make("gcn"), nnx.Param, ...)[2])
    graph, x, weights = single(example())
    out = jax.jit(lambda p, r: nnx.merge(graphdef, p, r)(graph, x, weights))(params, rest)
    close(out, make("gcn", activation=MaxK(8))(graph, x, weights), 1e-6)


def test_own_dropout_comes_before_the_selection_and_follows_train_and_eval():
    x = jax.random.normal(jax.random.key(0), (40, 24))
    bias = jnp.linspace(-1, 1, 24)
    activation = MaxK(5, dropout=0.5, rngs=nnx.Rngs(3))
    key = MaxK(5, dropout=0.5, rngs=nnx.Rngs(3)).dropout.rngs()
    expected = maxk(x, 5, bias=bias, dropout_rate=0.5, dropout_rng=key).to_dense()
    np.testing.assert_array_equal(activation(x, bias), expected)
    assert not np.array_equal(activation(x, bias), expected)  # another mask
    activation.eval()
    np.testing.assert_array_equal(activation(x), maxk(x, 5).to_dense())
    activation.train()
    assert not np.array_equal(activation(x), maxk(x, 5).to_dense())


def test_a_model_trains_with_its_activations_dropout():
    graph, x, weights = single(example())
    model = make("sage", 2, activation=MaxK(K, dropout=0.3, rngs=nnx.Rngs(1)), input_layer=True)

    @nnx.jit
    def step(model):
        return nnx.value_and_grad(lambda model: jnp.sum(model(graph, x, weights) ** 2))(model)

    (first, gradient), (second, _) = step(model), step(model)
    assert first != second
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    model.eval()
    np.testing.assert_array_equal(model(graph, x, weights), model(graph, x, weights))
