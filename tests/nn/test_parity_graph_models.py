"""GINEConv, APPNP, norms and readouts against PyG, with self-loops and isolated nodes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

torch = pytest.importorskip("torch")
pyg = pytest.importorskip("torch_geometric")

from torch_geometric.nn import MLP as TorchMLP  # noqa: E402

from jaxgnn import Blocks, Graph, batch, readout  # noqa: E402
from jaxgnn.nn import (  # noqa: E402
    APPNP,
    GIN,
    MLP,
    AttentionReadout,
    BatchNorm,
    GINEConv,
    GraphNorm,
    PNAConv,
)
from tests.support.pyg_parity import Edges, assert_parity, empty, error  # noqa: E402


@functools.cache
def awkward() -> tuple[Edges, np.ndarray, np.random.Generator]:
    """Directed, with self-loops (one a node at most), repeated edges and isolated nodes."""
    rng = np.random.default_rng(3)
    senders, receivers = rng.integers(30, size=(2, 200))
    proper = senders != receivers
    senders, receivers = senders[proper], receivers[proper]
    senders = np.concatenate([senders, senders[:9], [1, 5, 7]])
    receivers = np.concatenate([receivers, receivers[:9], [1, 5, 7]])
    return Edges.of(senders, receivers, 36), rng.normal(size=(36, 6)).astype(np.float32), rng


@pytest.mark.parametrize("edge_dim", [None, 4])
def test_gine(edge_dim):
    edges, x, rng = awkward()
    attributes = rng.normal(size=(edges.senders.size, edge_dim or 6)).astype(np.float32)
    widths = [6, 8, 5]
    reference = pyg.nn.GINEConv(
        TorchMLP(widths, norm=None), eps=0.3, train_eps=True, edge_dim=edge_dim
    )
    ours = empty(
        lambda rngs: GINEConv(
            MLP(widths, rngs=rngs), eps=0.3, train_eps=True, edge_dim=edge_dim, rngs=rngs
        )
    )
    assert_parity(
        reference,
        ours,
        edges,
        x,
        attributes,
        forward=lambda conv, x, index, attributes: conv(x, index, edge_attr=attributes),
    )


SCALERS = ["identity", "amplification", "attenuation", "linear", "inverse_linear"]


@pytest.mark.parametrize(
    ("aggregators", "scalers", "options"),
    [
        (["mean", "sum", "max", "min", "var", "std"], SCALERS, {}),
        (["std", "max"], SCALERS[1:3], {"towers": 2, "divide_input": True, "post_layers": 2}),
        (["sum", "var", "min"], SCALERS[:2], {"towers": 2, "pre_layers": 2, "edge_dim": 4}),
    ],
)
def test_pna(aggregators, scalers, options):
    """By `spmm` of projections, and by messages on the edges."""
    edges, x, rng = awkward()
    histogram = np.bincount(np.asarray(edges.graph.in_degrees))
    attributes = None
    if "edge_dim" in options:
        attributes = rng.normal(size=(edges.senders.size, 4)).astype(np.float32)
    reference = pyg.nn.PNAConv(6, 4, aggregators, scalers, torch.from_numpy(histogram), **options)
    ours = empty(lambda rngs: PNAConv(6, 4, aggregators, scalers, histogram, **options, rngs=rngs))
    assert_parity(reference, ours, edges, x, attributes, tolerance=3e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_pna_sums_of_a_hub_in_16_bits(dtype):
    """Differences of 0.25, whose two terms are 3,000 times 30 and more."""
    n = 3001
    graph = Graph.from_edges(np.arange(1, n), np.zeros(n - 1, int), num_nodes=n)
    degrees = np.bincount(np.asarray(graph.in_degrees))
    module = PNAConv(1, 1, ["sum"], ["identity"], degrees, dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0))
    for layer, kernel in (
        (module.pre[0].linears[0], [[-1.0], [1.0]]),
        (module.post[0].linears[0], [[0.0], [1.0]]),
        (module.linear, [[1.0]]),
    ):
        layer.kernel[...], layer.bias[...] = jnp.asarray(kernel), jnp.zeros(1)
    x = jnp.full((n, 1), 30.25, dtype).at[0].set(30.0)
    assert abs(float(module(graph, x)[0, 0]) - 750) <= 3


def test_pna_scales_a_sum_of_messages_before_it_is_rounded():
    """A sum of 3,000 messages of 30 is beyond float16, the mean of them is not."""
    n = 3001
    graph = Graph.from_edges(np.arange(1, n), np.zeros(n - 1, int), num_nodes=n)
    options = {"pre_layers": 2, "dtype": jnp.float16, "rngs": nnx.Rngs(0)}
    module = PNAConv(1, 1, ["sum"], ["inverse_linear"], np.array([0, 1]), **options)
    for layer, kernel in (
        (module.pre[0].linears[0], [[0.0], [1.0]]),
        (module.pre[0].linears[1], [[1.0]]),
        (module.post[0].linears[0], [[0.0], [1.0]]),
        (module.linear, [[1.0]]),
    ):
        layer.kernel[...], layer.bias[...] = jnp.asarray(kernel), jnp.zeros(1)
    np.testing.assert_allclose(module(graph, jnp.full((n, 1), 30.0, jnp.float16))[0, 0], 30)


def test_gine_in_float16_rounds_once():
    """The root's term and the gradient of eps are beyond float16; the result is not."""
    n = 5000
    graph = Graph.from_edges(np.arange(1, n), np.zeros(n - 1, int), num_nodes=n)
    x = jnp.full((n, 2), 10, jnp.float16).at[0].set(-30000)
    edge_attr = jnp.zeros((n - 1, 2), jnp.float16)
    conv = GINEConv(lambda rows: rows, eps=1.5, train_eps=True)
    graphdef, state = nnx.split(conv)

    def out(state):
        return nnx.merge(graphdef, state)(graph, x, edge_attr)

    y = out(state)
    assert y.dtype == jnp.float16
    np.testing.assert_allclose(y[0], 49990 - 75000, rtol=2**-9)
    gradient = jax.grad(lambda state: jnp.sum(out(state)[1:].astype(jnp.float32)))(state)
    np.testing.assert_allclose(gradient["eps"][...], 4999 * 2 * 10, rtol=1e-5)


def test_pna_refuses():
    def make(aggregators=("mean",), scalers=("identity",), histogram=(0, 3), **options):
        return PNAConv(6, 4, aggregators, scalers, histogram, rngs=nnx.Rngs(0), **options)

    graph = awkward()[0].graph
    for arguments, message in (
        ({"aggregators": "mean"}, "aggregators: expected some of mean, sum, .*'mean'"),
        ({"scalers": ["log"]}, "scalers: expected one of .*'log'"),
        ({"histogram": [4]}, "degree_histogram: expected at least a node with edges"),
        ({"histogram": [0.5]}, "degree_histogram: expected a vector of counts"),
        ({"towers": 3}, "out_features: expected a multiple of towers=3, got 4"),
        ({"towers": 4, "divide_input": True}, "in_features: expected a multiple of towers=4"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**arguments)
    with pytest.raises(ValueError, match="edge_attr: PNAConv expected None without edge_dim"):
        make()(graph, jnp.ones((36, 6)), jnp.ones((graph.num_edges, 2)))
    with pytest.raises(TypeError, match=r"x: expected float32, .*, got int32"):
        make()(graph, jnp.ones((36, 6), jnp.int32))
    with pytest.raises(ValueError, match="edge_attr: PNAConv expected them"):
        make(edge_dim=2)(graph, jnp.ones((36, 6)))
    with pytest.raises(ValueError, match="x: PNAConv expected one array, got a pair"):
        make()(graph, (jnp.ones((36, 6)), jnp.ones((36, 6))))
    with pytest.raises(ValueError, match=r"x: expected the shape \(nodes, features\), got"):
        make()(graph, jnp.ones((36, 2, 6)))
    with pytest.raises(ValueError, match="graph: PNAConv expected a square graph"):
        make()(Graph.from_edges([0], [0], num_senders=2, num_receivers=1), jnp.ones((2, 6)))


@pytest.mark.parametrize("weighted", [False, True])
def test_appnp(weighted):
    edges, x, rng = awkward()
    weights = rng.uniform(0.2, 2, edges.senders.size).astype(np.float32) if weighted else None
    options = {} if weighted else {"normalize": False, "add_self_loops": False}
    steps = 10 if weighted else 2
    reference = pyg.nn.APPNP(K=steps, alpha=0.1, **options)
    assert_parity(reference, APPNP(steps, 0.1, **options), edges, x, weights)


def test_graph_norm():
    rng = np.random.default_rng(0)
    graphs = [Graph.from_edges([0], [0], num_nodes=n) for n in (4, 1, 7)]
    union = batch.pad(batch.disjoint_union(graphs), num_nodes=16, num_edges=8, num_graphs=5)
    rows = [rng.normal(3, 2, (n, 5)).astype(np.float32) for n in (4, 1, 7)]
    x, given = batch.union_node_data(union, rows), np.concatenate(rows)
    reference = pyg.nn.GraphNorm(5)
    parameters = rng.uniform(0.5, 1.5, (3, 5)).astype(np.float32)
    names = ("weight", "bias", "mean_scale")
    with torch.no_grad():
        for name, value in zip(names, parameters, strict=True):
            getattr(reference, name).copy_(torch.from_numpy(value))
    module = GraphNorm(5)
    module.scale[...], module.bias[...], module.mean_scale[...] = map(jnp.asarray, parameters)
    cotangent = rng.normal(size=(12, 5)).astype(np.float32)

    @jax.jit
    def run(module, x, membership, cotangent):
        graphdef, params = nnx.split(module)
        padding = jnp.zeros((x.shape[0] - 12, 5))
        cotangent = jnp.concatenate([cotangent, padding])
        call = lambda params, x: nnx.merge(graphdef, params)(x, membership)  # noqa: E731
        out, pullback = jax.vjp(call, params, x)
        whole = nnx.merge(graphdef, params)(x[5:12])
        narrow = nnx.merge(graphdef, params)(x.astype(jnp.bfloat16), membership)
        return out, pullback(cotangent), whole, narrow

    out, (of_parameters, of_x), whole, narrow = run(module, x, union.membership, cotangent)
    tensor = torch.from_numpy(given).requires_grad_()
    expected = reference(tensor, torch.tensor([0] * 4 + [1] + [2] * 7))
    expected.backward(torch.from_numpy(cotangent))
    assert error(out[:12], expected.detach()) < 1e-5 and np.isfinite(out).all()
    assert error(whole, expected.detach()[5:]) < 1e-5
    assert narrow.dtype == jnp.bfloat16 and error(narrow[:12], expected.detach()) < 0.02
    assert error(of_x[:12], tensor.grad) < 2e-5
    for ours, name in zip(("scale", "bias", "mean_scale"), names, strict=True):
        assert error(of_parameters[ours][...], getattr(reference, name).grad) < 1e-5, name


def test_models_normalize_each_graph_alone():
    edges = awkward()[0]
    graphs = [edges.graph, Graph.from_edges([0, 1], [1, 2], num_nodes=4)]
    union = batch.pad(
        batch.disjoint_union(graphs), num_nodes=48, num_edges=edges.graph.num_edges + 6
    )
    model = GIN(6, 8, 2, num_layers=2, norm="graph", rngs=nnx.Rngs(0))
    assert isinstance(model.norms[0], GraphNorm) and model.convs[0].nn.norms is None
    x = jax.random.normal(jax.random.key(0), (48, 6)) + 3
    calls = (union, x), (union.graph, x), (graphs[0], x[:36]), (graphs[1], x[36:40])
    whole, as_one, *alone = jax.jit(lambda calls: [model(*call) for call in calls])(calls)
    np.testing.assert_allclose(whole[:40], jnp.concatenate(alone), atol=2e-5)
    assert error(as_one[:40], whole[:40]) > 0.01
    with pytest.raises(ValueError, match='norm="graph" expected all nodes of a graph, got Blocks'):
        model(Blocks((graphs[0],) * 2, jnp.arange(36), jnp.arange(9), jnp.zeros((), bool), 36), x)


def test_refusals():
    with pytest.raises(ValueError, match="norm: expected one of None, 'batch', 'layer'"):
        MLP([2, 3, 2], norm="graph", rngs=nnx.Rngs(0))
    graph = awkward()[0].graph
    with pytest.raises(ValueError, match="add_self_loops: expected normalize=True"):
        APPNP(2, 0.1, normalize=False, add_self_loops=True)
    with pytest.raises(ValueError, match=r"alpha: expected a finite number from 0 to 1, got 1.5"):
        APPNP(2, 1.5)
    with pytest.raises(ValueError, match="edge_dim: expected in_features"):
        GINEConv(jax.nn.relu, edge_dim=3)
    with pytest.raises(ValueError, match=r"x, edge_attr: expected the shapes .* got \(36, 6\)"):
        GINEConv(jax.nn.relu)(graph, jnp.ones((36, 6)), jnp.ones((graph.num_edges, 5)))
    with pytest.raises(TypeError, match="normalize: expected True or False, got 'sym'"):
        APPNP(2, 0.1, normalize="sym")
    x, edge_attr = jnp.ones((36, 6)), jnp.ones((graph.num_edges, 6))
    with pytest.raises(ValueError, match=r"x\[1\]: expected the feature axes of x\[0\], \(6,"):
        GINEConv(jax.nn.relu)(graph, (x, x[:, :1]), edge_attr)
    with pytest.raises(TypeError, match=r"x: expected float32, .* got int32"):
        GINEConv(jax.nn.relu)(graph, x.astype(jnp.int32), edge_attr)
    for norm in (GraphNorm, BatchNorm):
        with pytest.raises(TypeError, match=r"^dtype: expected float32, .* got int32"):
            norm(3, dtype=jnp.int32)
        with pytest.raises(TypeError, match=r"param_dtype: expected float32, .* got int32"):
            norm(3, param_dtype=jnp.int32)
    mlp = MLP([6, 3], rngs=nnx.Rngs(0))
    for options, error_type, message in (
        ({"edge_dim": 0}, ValueError, "edge_dim: expected at least 1, got 0"),
        ({"in_features": 4}, ValueError, "in_features: expected that of nn, 6, got 4"),
        ({"in_features": 6.5}, TypeError, "in_features: .* got 6.5"),
        ({"dtype": jnp.int32}, TypeError, "dtype: expected float32, .* got int32"),
        ({"eps": "a"}, TypeError, "eps: expected a number, got str"),
    ):
        with pytest.raises(error_type, match=message):
            GINEConv(mlp, rngs=nnx.Rngs(0), **options)
    with pytest.raises(ValueError, match=r"x: expected the shape \(36, 4\), got \(36, 6\)"):
        GraphNorm(4)(jnp.ones((36, 6)))


@pytest.mark.parametrize("gates", [1, 4])
def test_attention_readout(gates):
    rng = np.random.default_rng(1)
    graphs = [Graph.from_edges([], [], num_nodes=n) for n in (4, 0, 1, 7)]
    union = batch.pad(batch.disjoint_union(graphs), num_nodes=16, num_graphs=6)
    x = rng.normal(size=(16, 5)).astype(np.float32)
    kernels = [rng.normal(size=(5, n)).astype(np.float32) for n in (gates, 4)]
    cotangent = rng.normal(size=(4, 4)).astype(np.float32)

    @jax.jit
    def ours(x, kernels):
        module = AttentionReadout(lambda x: x @ kernels[0], lambda x: x @ kernels[1])
        return module(union.membership, x)[:4]

    value, vjp = jax.vjp(ours, x, kernels)
    gradients = vjp(jnp.asarray(cotangent))
    theirs = [torch.from_numpy(a).requires_grad_() for a in (x[:12], *kernels)]
    reference = pyg.nn.aggr.AttentionalAggregation(lambda x: x @ theirs[1], lambda x: x @ theirs[2])
    index = torch.from_numpy(np.repeat(np.arange(4), [4, 0, 1, 7]))
    expected = reference(theirs[0], index, dim_size=4)
    expected.backward(torch.from_numpy(cotangent))
    assert error(value, expected.detach()) < 1e-5
    found = gradients[0][:12], *gradients[1]
    for mine, given in zip(found, theirs, strict=True):
        assert error(mine, given.grad) < 1e-5
    assert not np.asarray(gradients[0][12:]).any()
    smallest = readout(union.membership, jnp.asarray(x), "min")[:4]
    # PyG's minimum of no nodes is 0 as well.
    expected = pyg.nn.aggr.MinAggregation()(theirs[0].detach(), index, dim_size=4)
    assert error(smallest, expected) == 0


def test_what_an_attention_readout_refuses():
    membership = batch.disjoint_union([Graph.from_edges([], [], num_nodes=3)]).membership
    with pytest.raises(TypeError, match="gate: expected a module or a function, got NoneType"):
        AttentionReadout(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"x: expected the shape \(3, features\), got \(2, 5\)"):
        AttentionReadout(lambda x: x)(membership, jnp.ones((2, 5)))
    with pytest.raises(ValueError, match=r"gate: expected an output of the shape \(3, 1\)"):
        AttentionReadout(lambda x: x[:, :2])(membership, jnp.ones((3, 5)))


def test_batch_norm_of_the_rows_that_count():
    rng = np.random.default_rng(2)
    x = rng.normal(50, 2, (9, 5)).astype(np.float32)
    mask = np.arange(9) < 6
    module, reference = BatchNorm(5), torch.nn.BatchNorm1d(5, momentum=0.1)
    cotangent = rng.normal(size=(9, 5)).astype(np.float32)

    definition, state = nnx.split(module)

    @jax.jit
    def ours(state, x, mask):
        def apply(x):
            module = nnx.merge(definition, state, copy=True)
            return module(x, mask=mask)[:6], nnx.state(module)

        _, vjp, state = jax.vjp(apply, x, has_aux=True)
        return vjp(cotangent[:6])[0], state

    gradient, state = ours(state, x, mask)
    given = torch.from_numpy(x[:6]).requires_grad_()
    reference(given).backward(torch.from_numpy(cotangent[:6]))
    assert error(gradient[:6], given.grad) < 1e-4 and not np.asarray(gradient[6:]).any()
    assert error(state["mean"][...], reference.running_mean) < 1e-5
    np.testing.assert_allclose(state["var"][...], 0.9 + 0.1 * x[:6].var(axis=0), rtol=1e-5)
    gradient, unchanged = ours(state, x, np.zeros(9, bool))
    assert np.isfinite(gradient).all()
    jax.tree.map(np.testing.assert_array_equal, unchanged, state)
    with pytest.raises(ValueError, match=r"mask: expected the shape \(9,\), got \(3,\)"):
        module(jnp.asarray(x), mask=jnp.ones(3, bool))


@pytest.mark.parametrize("masked", [False, True])
def test_running_statistics_of_float64(x64, masked):
    x = np.random.default_rng(2).normal(50, 2, (9, 5))
    module = BatchNorm(5, param_dtype=jnp.float64)
    reference = torch.nn.BatchNorm1d(5, momentum=0.1, dtype=torch.float64)
    module(jnp.asarray(x), mask=jnp.ones(9, bool) if masked else None)
    reference(torch.from_numpy(x))
    assert module.mean[...].dtype == module.var[...].dtype == jnp.float64
    np.testing.assert_allclose(module.mean[...], reference.running_mean, rtol=1e-13)
    np.testing.assert_allclose(module.var[...], 0.9 + 0.1 * x.var(axis=0), rtol=1e-13)
    module.eval()
    expected = (x - 0.1 * x.mean(axis=0)) / np.sqrt(0.9 + 0.1 * x.var(axis=0) + 1e-5)
    np.testing.assert_allclose(module(jnp.asarray(x)), expected, rtol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("rows", [4, 3000])
def test_padding_that_is_not_finite_stays_out_of_batch_norm(rows, value):
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)
    mask = np.arange(rows) < rows - 1
    clean, module = BatchNorm(3), BatchNorm(3)
    expected = clean(jnp.asarray(x), mask=jnp.asarray(mask))
    x[-1, 1] = value
    found = module(jnp.asarray(x), mask=jnp.asarray(mask))
    np.testing.assert_array_equal(found[:-1], expected[:-1])
    assert not np.isfinite(found[-1, 1])
    for name in ("mean", "var"):
        np.testing.assert_array_equal(getattr(module, name)[...], getattr(clean, name)[...])


def test_batch_norm_without_rows_and_of_other_rows():
    module = BatchNorm(3)
    assert module(jnp.ones((0, 3))).shape == (0, 3)
    np.testing.assert_array_equal(module.mean[...], np.zeros(3))
    np.testing.assert_array_equal(module.var[...], np.ones(3))
    with pytest.raises(ValueError, match=r"x: expected the shape \(\.\.\., 1\), got \(4, 3\)"):
        BatchNorm(1)(jnp.ones((4, 3)))
    with pytest.raises(TypeError, match="mask: expected booleans, got float32"):
        module(jnp.ones((4, 3)), mask=jnp.ones(4))  # pyright: ignore


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_norms_and_pna_do_not_rely_on_promotion(dtype):
    union = batch.disjoint_union([awkward()[0].graph])
    x = jnp.ones((union.graph.num_nodes, 4), dtype)
    options = {"dtype": dtype, "rngs": nnx.Rngs(0)}
    module = PNAConv(4, 3, ["mean", "std"], ["identity", "linear"], np.array([0, 1, 2]), **options)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        assert GraphNorm(4)(x, union.membership).dtype == dtype
        single = GraphNorm(4, dtype=jnp.float32, rngs=nnx.Rngs(0))
        assert single(x, union.membership).dtype == jnp.float32
        assert BatchNorm(4, **options)(x, mask=union.node_mask).dtype == dtype
        assert module(union.graph, x).dtype == dtype


@pytest.mark.system
def test_derivatives_of_batch_norm_are_those_of_its_equation():
    rng = np.random.default_rng(3)
    x, tangent, weights = rng.normal(100, 2, (3, 9, 2, 4)).astype(np.float32)
    weights -= 100
    mask = np.arange(9) < 6
    module = BatchNorm(4, rngs=nnx.Rngs(0))
    module.scale[...] = jnp.asarray(rng.normal(size=4), jnp.float32)
    definition, state = nnx.split(module)

    def ours(x):
        return nnx.merge(definition, state, copy=True)(x, mask=mask)

    def equation(x):
        rows = x[:6].reshape(-1, 4)
        mean = rows.mean(axis=0)
        variance = ((rows - mean) ** 2).mean(axis=0)
        return module.scale[...] * (x - mean) / jnp.sqrt(variance + 1e-5)

    def derivatives(function, x, tangent, weights):
        gradient = jax.grad(lambda x: (jnp.tanh(function(x)) * weights).sum())
        return function(x), jax.jvp(function, (x,), (tangent,))[1], jax.jvp(gradient, (x,), (x,))

    found = jax.jit(derivatives, static_argnums=0)(ours, x, tangent - 100, weights)
    with jax.enable_x64(True):
        wide = (np.asarray(a, np.float64) for a in (x, tangent - 100, weights))
        expected = derivatives(equation, *wide)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert error(a, b) < 1e-3
    assert BatchNorm(4, dtype=jnp.bfloat16)(x, mask=mask).dtype == jnp.bfloat16
    assert BatchNorm(4)(jnp.asarray(x, jnp.bfloat16), mask=mask).dtype == jnp.float32


@pytest.mark.parametrize("kind", ["far from 0", "sorted", "one row", "few rows", "none"])
def test_statistics_of_many_rows_do_not_cancel(kind):
    """The shift that a few rows give is near the mean, whichever rows count."""
    rng = np.random.default_rng(4)
    x = rng.normal(1e3, 1, (1000, 3)).astype(np.float32)
    mask = np.arange(1000) < 900
    if kind == "sorted":
        x = np.sort(x + 1000 * rng.random((1000, 3), np.float32), axis=0)
    elif kind in ("one row", "few rows"):
        mask = np.isin(np.arange(1000), [333] if kind == "one row" else [333, 334, 501])
    elif kind == "none":
        mask[:] = False
    x[~mask] += 5e3
    module = BatchNorm(3, momentum=0.0, rngs=nnx.Rngs(0))
    module(jnp.asarray(x), mask=jnp.asarray(mask))
    counted = x[mask].astype(np.float64)
    if kind == "none":
        counted = np.array([[-1.0], [1.0]]) * np.ones(3)  # the initial statistics
    np.testing.assert_allclose(module.mean[...], counted.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(module.var[...], counted.var(axis=0), rtol=1e-4, atol=1e-6)


def test_a_model_leaves_padding_out_of_its_statistics():
    rng = np.random.default_rng(4)
    graphs = [Graph.from_edges(*rng.integers(0, n, (2, 2 * n)), num_nodes=n) for n in (4, 1, 6)]
    rows = [rng.normal(size=(n, 3)).astype(np.float32) for n in (4, 1, 6)]
    union = batch.disjoint_union(graphs)
    padded = batch.pad(union, num_nodes=32, num_edges=40, num_graphs=5)
    apply = nnx.jit(lambda model, graph, x: model(graph, x))
    models = [GIN(3, 8, 2, num_layers=2, norm="batch", rngs=nnx.Rngs(0)) for _ in range(2)]
    x = [batch.union_node_data(b, rows, fill_value=9.0) for b in (union, padded)]
    expected = apply(models[0], union.graph, x[0])
    found = apply(models[1], padded, x[1])
    np.testing.assert_allclose(found[:11], expected, rtol=1e-4, atol=1e-5)
    states = [jax.tree.leaves(nnx.state(model, nnx.BatchStat)) for model in models]
    for mine, given in zip(*states, strict=True):
        np.testing.assert_allclose(mine, given, rtol=1e-4, atol=1e-6)
