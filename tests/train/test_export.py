"""`jaxgnn.export`: what was trained, as a program for other processes."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Graph, batch, export, readout
from jaxgnn._core.platform import of_device
from jaxgnn.data import DataError, normalize_features
from jaxgnn.nn import GCN, DotDecoder, DynamicEdgeConv, GraphNorm, MLPDecoder
from jaxgnn.train import (
    GraphSetDescription,
    LinkDescription,
    LoadedGraphRun,
    LoadedLinkRun,
    Progress,
    TrainConfig,
    build_model,
    load_link_run,
    load_run,
    run,
)
from jaxgnn.train.graph_model import build_graphs
from jaxgnn.train.links import build_links
from jaxgnn_cli import main
from tests.support.processes import run_python
from tests.support.small_sets import small
from tests.train.test_graph_task import graph_set

pytest.importorskip("flatbuffers")

NODES, EDGES, FEATURES = 40, 1500, 5
PLATFORM = of_device()
OTHER = "cpu" if PLATFORM == "cuda" else "cuda"
COUNTS = {
    "num_nodes": NODES,
    "num_edges": EDGES,
    "num_features": FEATURES,
    "platforms": [PLATFORM],
}


def a_graph(nodes: int = NODES, edges: int = EDGES) -> Graph:
    """With a receiver whose row is cut into chunks, repeated edges and self-loops."""
    rng = np.random.default_rng(0)
    receivers = np.where(rng.random(edges) < 0.5, 0, rng.integers(0, nodes, edges))
    return Graph.from_edges(rng.integers(0, nodes - 1, edges), receivers, num_nodes=nodes)


def a_model(**settings):
    model = build_model(TrainConfig(hidden=8, **settings), FEATURES, 3, nnx.Rngs(0))
    model.eval()
    return model


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("export") / "model"
    export.save(a_model(model="sage"), directory, **COUNTS)
    return directory


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "settings",
    [
        {"model": "gat", "heads": 2},
        {"model": "gcn", "activation": "maxk", "k": 4, "norm": "batch", "dtype": "bfloat16"},
    ],
    ids=lambda settings: settings["model"],
)
def test_exported_models_are_the_models(settings, tmp_path):
    model = a_model(**settings)
    dtype = settings.get("dtype", "float32")
    model_of = jax.jit(lambda graph, x: model(graph, x))
    graphs = [a_graph(), a_graph(30, 1200), Graph.from_edges(np.zeros(0, int), np.zeros(0, int))]
    for portable in (False, True):
        directory = tmp_path / str(portable)
        manifest = export.save(model, directory, dtype=dtype, portable=portable, **COUNTS)
        assert bool(manifest.kernels[PLATFORM]) != portable
        loaded = export.load(directory)
        assert (loaded.manifest.num_classes, loaded.manifest.portable) == (3, portable)
        for graph in graphs:
            x = np.random.default_rng(1).normal(size=(graph.num_nodes, FEATURES))
            found = loaded(graph, x.astype(np.float32))
            assert found.shape == (graph.num_nodes, 3)
            if graph.num_nodes:
                expected = model_of(graph, jnp.asarray(x, dtype)).astype(jnp.float32)
                limit = 1e-2 if dtype == "bfloat16" else 1e-5 if portable else 1e-6
                np.testing.assert_allclose(
                    found.astype(jnp.float32), expected, atol=limit, rtol=limit
                )


def test_programs_of_models_in_training_mode_are_in_inference_mode(tmp_path):
    """Neither dropout nor the statistics of a batch; the model stays as it is."""
    graph, x = a_graph(), np.random.default_rng(1).normal(size=(NODES, FEATURES))
    model = build_model(TrainConfig(hidden=8, norm="batch"), FEATURES, 8, nnx.Rngs(0))
    decoder = MLPDecoder(8, 8, dropout=0.5, rngs=nnx.Rngs(1))
    export.save(model, tmp_path, decoder=decoder, **COUNTS)
    assert not (model.dropout.deterministic or decoder.mlp.dropout.deterministic)
    model.eval(), decoder.eval()
    loaded, ends = export.load_links(tmp_path), np.arange(NODES)
    nodes = loaded.encode(graph, x)
    np.testing.assert_allclose(nodes, model(graph, jnp.asarray(x, "float32")), rtol=1e-5, atol=1e-5)
    expected = decoder(jnp.asarray(nodes), ends, ends[::-1])
    np.testing.assert_allclose(
        loaded.score(nodes, ends, ends[::-1]), expected, rtol=1e-5, atol=1e-5
    )


def test_what_does_not_fit(written):
    loaded = export.load(written)
    x = np.zeros((NODES, FEATURES), np.float32)
    graph = a_graph()
    with pytest.raises(TypeError, match="graph: expected one that is not traced"):
        jax.jit(lambda graph, x: loaded(graph, x))(graph, x)
    assert jax.jit(lambda x: loaded(graph, x))(x).shape == (NODES, 3)
    for graph, features, message in (
        (a_graph(NODES + 1), np.zeros((NODES + 1, FEATURES)), "expected at most 40 nodes and 1,5"),
        (a_graph(edges=EDGES + 1), x, "got 40 and 1,501"),
        (a_graph(edges=EDGES - 1), x, "expected fewer than 40 nodes, or 1,500 edges"),
        (a_graph(), x[:, 1:], r"x: expected the shape \[40, 5\], got \[40, 4\]"),
        (a_graph(), x[1:], r"x: expected the shape \[40, 5\], got \[39, 5\]"),
    ):
        with pytest.raises(DataError, match=message):
            loaded(graph, features)
    with pytest.raises(DataError, match="weights: expected None, the model reads none"):
        loaded(graph, x, np.ones(EDGES))
    with pytest.raises(TypeError, match=r"graph: expected a jaxgnn\.Graph, got NoneType"):
        loaded(None, x)
    for options, error, message in (
        ({"platforms": "cpu"}, DataError, r"platforms: expected a sequence .*, got 'cpu'"),
        ({"dtype": "int32"}, TypeError, "dtype: expected float32, .*, got int32"),
        ({"edge_weights": 1}, DataError, "edge_weights: expected True or False, got 1"),
        ({"normalized_features": None}, DataError, "normalized_features: expected True or False"),
        ({"feature_names": ["a"]}, DataError, "feature_names: expected 5 names, got 1"),
        ({"feature_names": "abcde"}, DataError, "feature_names: expected a sequence of names"),
        (
            {"edge_weights": True, "num_graphs": 2},
            DataError,
            "edge_weights: expected False with num_graphs, got True",
        ),
    ):
        with pytest.raises(error, match=message):
            export.save(a_model(model="sage"), written.parent / "other", **(COUNTS | options))


@pytest.mark.few(1)
@pytest.mark.parametrize("portable", [False, True])
def test_graph_norm_leaves_the_padding_out(tmp_path, portable):
    model = GCN(FEATURES, 8, 3, num_layers=2, norm="graph", rngs=nnx.Rngs(0))
    manifest = export.save(model, tmp_path, portable=portable, edge_weights=True, **COUNTS)
    assert ("graph_ids" in manifest.arrays) == portable
    loaded = export.load(tmp_path)
    for graph in (a_graph(), a_graph(30, 1200), Graph.from_edges([], [], num_nodes=2)):
        x = np.random.default_rng(1).normal(size=(graph.num_nodes, FEATURES)).astype(np.float32)
        weights = np.linspace(0, 1, graph.num_edges, dtype=np.float32)
        expected = model(graph, jnp.asarray(x), jnp.asarray(weights))
        np.testing.assert_allclose(loaded(graph, x, weights), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(DataError, match="graph: expected at most 40 nodes and 1,500 edges, got 41"):
        loaded(a_graph(NODES + 1), np.zeros((NODES + 1, FEATURES)), weights=np.zeros(EDGES))


class Wrapped(nnx.Module):
    """A model that hands its graph to another module."""

    def __init__(self, module):
        self.module = module

    def __call__(self, graph, x):
        return self.module(x)


@pytest.mark.parametrize(
    "module", [GraphNorm(FEATURES), DynamicEdgeConv(5, 3, 2, rngs=nnx.Rngs(0))]
)
def test_modules_that_would_count_padding_nodes_are_refused(tmp_path, module):
    kind = type(module).__name__
    with pytest.raises(
        DataError, match=f"model: expected no {kind}, for which padding nodes count"
    ):
        export.save(Wrapped(module), tmp_path, **COUNTS)


def test_numbers_and_dtypes_of_numpy(tmp_path):
    options = {name: np.int64(COUNTS[name]) for name in ("num_nodes", "num_edges", "num_features")}
    options |= {
        "dtype": jnp.float16,
        "portable": np.True_,
        "class_names": np.array(["a", "b", "c"]),
    }
    export.save(a_model(model="sage"), tmp_path, **(COUNTS | options))
    found = export.load(tmp_path).manifest
    assert (found.num_nodes, found.dtype, found.portable) == (NODES, "float16", True)
    assert found.class_names == ("a", "b", "c")


def test_files_of_a_write_that_failed_are_removed(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr("os.fsync", fail)
        export.save(a_model(model="mlp"), tmp_path, **COUNTS)
    assert not list(tmp_path.iterdir())


class Sum(nnx.Module):
    """Without a row of outputs for each node."""

    def __call__(self, graph, x):
        return x.sum()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_nodes": "9"}, "num_nodes: expected an integer, got str"),
        ({"num_edges": None}, "num_edges: expected an integer, got NoneType"),
        ({"num_features": 0}, "num_features: expected an integer from 1 to 2147483647, got 0"),
        ({"num_graphs": "a"}, "num_graphs: expected an integer, got str"),
        ({"num_edge_features": "a"}, "num_edge_features: expected an integer, got str"),
        ({"platforms": None}, "platforms: expected a sequence such as .*, got None"),
        ({"platforms": 5}, "platforms: expected a sequence such as .*, got 5"),
        ({"platforms": [1]}, "platforms: expected some of cpu, cuda, got 1"),
        ({"portable": "no"}, "portable: expected True or False, got 'no'"),
        ({"multilabel": "no"}, "multilabel: expected True or False, got 'no'"),
        ({"class_names": 5}, "class_names: expected a sequence of names, got 5"),
        ({"class_names": "abc"}, "class_names: expected a sequence of names, got 'abc'"),
        ({"class_names": ["a"]}, "class_names: expected 3 names, got 1"),
        ({"feature_names": 5}, "feature_names: expected a sequence of names, got 5"),
        ({"model": 3}, "model: expected an nnx.Module, got int"),
        ({"model": None}, "model: expected an nnx.Module, got NoneType"),
        ({"model": Sum()}, r"model: expected outputs of the shape \[40, classes\], got \[\]"),
        ({"decoder": 3}, "decoder: expected an nnx.Module, got int"),
        ({"directory": 3}, "directory: expected a path, got int"),
    ],
)
def test_errors_of_save_name_the_argument(tmp_path, options, message):
    given = {"model": a_model(model="mlp"), "directory": tmp_path / "a"} | COUNTS | options
    with pytest.raises((DataError, TypeError), match=message):
        export.save(**given)
    assert not (tmp_path / "a").exists() or not list((tmp_path / "a").iterdir())


@pytest.mark.parametrize("load", [export.load, export.load_links, export.load_graphs])
def test_errors_of_a_directory_that_is_no_path(load):
    with pytest.raises(TypeError, match="directory: expected a path, got int"):
        load(3)


def test_errors_of_arrays_that_are_not_of_real_numbers(written):
    loaded, graph = export.load(written), a_graph()
    x = np.zeros((NODES, FEATURES), np.float32)
    for wrong, got in (
        (x + 1j, "complex64"),
        (x.astype(str), "<U"),
        ([[1, 2], [3]], "list"),
        (None, "None"),
    ):
        with pytest.raises(TypeError, match=f"x: expected an array of real numbers, got {got}"):
            loaded(graph, wrong)
    assert loaded(graph, (x > 0).tolist()).shape == (NODES, 3)


def test_errors_of_pairs_and_their_nodes(tmp_path):
    export.save(a_model(model="mlp"), tmp_path, decoder=DotDecoder(), **COUNTS)
    loaded = export.load_links(tmp_path)
    nodes = loaded.encode(a_graph(), np.ones((NODES, FEATURES)))
    assert loaded.score(nodes, [], []).shape == (0,)
    np.testing.assert_array_equal(
        loaded.score(np.asarray(nodes, np.float64).tolist(), [0], [1]),
        loaded.score(nodes, [0], [1]),
    )
    for wrong, message in (
        ((None, [0], [1]), "nodes: expected an array of real numbers, got None"),
        ((nodes + 1j, [0], [1]), "nodes: expected an array of real numbers, got complex64"),
        ((nodes[:, 1:], [0], [1]), r"nodes: expected the shape \[nodes, 3\], got \[40, 2\]"),
        ((nodes[0], [0], [1]), r"nodes: expected the shape \[nodes, 3\], got \[3\]"),
        ((nodes, [[0], [1, 2]], [1]), "senders: expected an array of integers, got list"),
        ((nodes, [0], [[]]), r"receivers: expected integers with 1 axis, got int32\(1, 0\)"),
    ):
        with pytest.raises((TypeError, DataError), match=message):
            loaded.score(*wrong)


class Readout(nnx.Module):
    """The mean of each graph's nodes."""

    def __call__(self, union, x):
        return readout(union.membership, x, "mean")


def test_errors_of_many_graphs(tmp_path):
    export.save(Readout(), tmp_path, num_graphs=2, **COUNTS)
    loaded, graph = export.load_graphs(tmp_path), Graph.from_edges([0], [1])
    x = np.ones((4, FEATURES))
    np.testing.assert_allclose(loaded((graph for _ in range(2)), x), x[:2])
    for wrong, message in (
        ((3, x), "graphs: expected a GraphBatch or a sequence of graphs, got int"),
        ((None, x), "graphs: expected a GraphBatch or a sequence of graphs, got NoneType"),
        (([graph] * 2, x + 1j), "x: expected an array of real numbers, got complex128"),
        (([graph] * 2, x.astype(str)), "x: expected an array of real numbers, got <U"),
    ):
        with pytest.raises(TypeError, match=message):
            loaded(*wrong)


def edited(written: Path, directory: Path, **changes) -> Path:
    """A copy whose manifest differs."""
    shutil.copytree(written, directory, dirs_exist_ok=True)
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return directory


def replaced(written: Path, directory: Path, name: str, blob: bytes) -> Path:
    """A copy with another file, whose checksum is right."""
    sums = json.loads((written / "manifest.json").read_text())["sha256"]
    edited(written, directory, sha256=sums | {name: hashlib.sha256(blob).hexdigest()})
    (directory / name).write_bytes(blob)
    return directory


def other_program(function, *arguments) -> bytes:
    checks = [jax.export.DisabledSafetyCheck.custom_call("xla_ffi_other")]
    made = jax.export.export(jax.jit(function), platforms=[PLATFORM], disabled_checks=checks)
    return bytes(made(*arguments).serialize())


def test_damaged_and_hostile_directories(written, tmp_path):
    def message(directory):
        with pytest.raises(DataError) as caught:
            export.load(directory)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    copies = (tmp_path / str(number) for number in range(1000))
    assert "no exported model" in message(tmp_path / "nowhere")
    assert "no exported model" in message("x" * 5000)
    for changes, expected in (
        ({"format": 1}, "expected format 4, got 1: export the run again"),
        ({"jaxgnn": "0.0.1"}, "exported by jaxgnn '0.0.1', whose kernels are not those of"),
        (
            {"platforms": [OTHER], "kernels": {OTHER: []}},
            f"exported for {OTHER}, the default device",
        ),
        (
            {"kernels": {PLATFORM: ["jaxgnn_later"]}},
            f"needs the kernel 'jaxgnn_later' on {PLATFORM}",
        ),
        ({"dtype": "float64"}, "needs jax.config.update('jax_enable_x64', True)"),
        ({"num_nodes": "40"}, "num_nodes: expected a count, got '40'"),
        ({"num_nodes": 41}, "the program expects float32[40, 5], the files hold float32[41, 5]"),
        ({"arrays": ["senders"]}, "arrays: expected row_offsets, senders"),
        ({"class_names": ["a"]}, "class_names: expected 3 names, got 1"),
        ({"feature_names": ["a"]}, "feature_names: expected 5 names, got 1"),
        ({"normalized_features": None}, "normalized_features: expected true or false"),
        ({"sha256": {}}, "sha256: expected those of program.bin and variables.npz"),
        ({"num_graphs": 3}, "a model of graphs, for jaxgnn.export.load_graphs"),
        ({"num_graphs": 3, "links": True}, "links: expected false of graphs, got True"),
        ({"num_edge_features": 2}, "arguments are not the weights and the arrays of a graph"),
        ({"edge_weights": True}, "arguments are not the weights and the arrays of a graph"),
        ({"edge_weights": 1}, "edge_weights: expected true or false, got 1"),
        ({"edge_weights": True, "num_graphs": 3}, "edge_weights: expected false of links and of"),
        ({"more": 1}, "expected the keys format, jaxgnn"),
        (
            {"kernels": {PLATFORM: []}},
            "expected calls of jaxgnn's kernels alone, got 'jaxgnn_spmm'",
        ),
    ):
        assert expected in message(edited(written, next(copies), **changes))
    for text in ("", "[]", "[" * 100_000, "{", "\0"):
        directory = edited(written, next(copies))
        (directory / "manifest.json").write_text(text)
        assert "manifest.json: " in message(directory)

    program = (written / "program.bin").read_bytes()
    for name in ("program.bin", "variables.npz"):
        directory = edited(written, next(copies))
        blob = bytearray((directory / name).read_bytes())
        blob[len(blob) // 2] ^= 1
        (directory / name).write_bytes(blob)
        assert "its checksum is not that of the manifest" in message(directory)
        (directory / name).unlink()
        assert f"{name}: cannot be read" in message(directory)
    for blob in (b"", program[:100], program[: len(program) // 2], b"\xff" * 1000):
        found = message(replaced(written, next(copies), "program.bin", blob))
        assert "cannot read it, written by jax" in found
    x = jax.ShapeDtypeStruct((NODES, FEATURES), jnp.float32)

    def calls_another(x):
        return jax.ffi.ffi_call("xla_ffi_other", jax.ShapeDtypeStruct((NODES, 3), x.dtype))(x)

    blob = other_program(calls_another, x)
    found = message(replaced(written, next(copies), "program.bin", blob))
    assert "expected calls of jaxgnn's kernels alone, got 'xla_ffi_other'" in found
    blob = other_program(lambda x: x[:, :3], x)
    found = message(replaced(written, next(copies), "program.bin", blob))
    assert "the program's arguments are not the weights and the arrays of a graph" in found
    np.savez(tmp_path / "pickled.npz", a=np.array([{}], object))
    blob = (tmp_path / "pickled.npz").read_bytes()
    assert "pickled" in message(replaced(written, next(copies), "variables.npz", blob))


@pytest.mark.few(1)
@pytest.mark.parametrize("portable", [False, True])
def test_exported_links_are_the_models(tmp_path, portable):
    """Features and a perceptron; smaller graphs, any number of pairs, and JAX alone."""
    config = TrainConfig(task="link", hidden=8, model="gat", heads=2, decoder="mlp")
    program, state = build_links(config, 1, FEATURES)
    model = nnx.merge(program.inference, state.params, state.rest)
    description = LinkDescription("a", NODES, EDGES, FEATURES, False)
    run = LoadedLinkRun(Path(), config, description, model, Progress())
    directory = tmp_path / "model"
    written = export.save(
        run.exportable(), directory, decoder=model.decoder, portable=portable, **COUNTS
    )
    assert written.links and written.num_classes == 8
    loaded = export.load_links(directory)
    rng = np.random.default_rng(0)
    for graph, count in ((a_graph(), 7), (a_graph(30, 1200), 1), (a_graph(30, 1200), 0)):
        x = rng.normal(size=(graph.num_nodes, FEATURES)).astype(np.float32)
        pairs = rng.integers(0, graph.num_nodes, (2, count))
        nodes = run.encode(graph, x)
        np.testing.assert_allclose(loaded.encode(graph, x), nodes, atol=1e-5)
        expected = run.logits(nodes, *pairs)
        np.testing.assert_allclose(loaded(graph, x, *pairs), expected, atol=1e-5)
        np.testing.assert_allclose(expected, run.logits(nodes, *pairs[::-1]), atol=1e-6)
    decoder = jax.export.deserialize(bytearray((directory / "decoder.bin").read_bytes()))
    weights = dict(np.load(directory / "decoder.npz"))
    ends = np.array([[3, 4], [5, 6]], np.int32)
    np.testing.assert_allclose(
        decoder.call(weights, nodes, *ends), run.logits(nodes, *ends), atol=1e-5
    )
    for call, message in (
        (lambda: loaded.encode(graph), "x: expected 5 features a node, got None"),
        (lambda: run.encode(graph, None), "features: expected node features, got a graph without"),
        (lambda: loaded.score(nodes, [0], [30]), "receivers: expected 0 to 29, got 30 to 30"),
        (lambda: run.logits(nodes, [-1], [0]), "senders: expected 0 to 29, got -1 to -1"),
        (lambda: loaded.score(nodes, [0, 1], [0]), "expected one length, got 2 and 1"),
        (lambda: loaded.score(nodes, [0.5], [0]), "senders: expected integers with 1 axis"),
        (lambda: export.load(directory), "model: a model of links, for jaxgnn.export.load_links"),
    ):
        with pytest.raises(DataError, match=message):
            call()
    if portable:
        return
    # Another decoder, with checksums that fit.
    sizes = jax.export.symbolic_shape("n, p")
    ids = jax.ShapeDtypeStruct(sizes[1:], jnp.int32)
    rows = jax.ShapeDtypeStruct((sizes[0], 8), jnp.float32)
    shapes = {name: jax.ShapeDtypeStruct(w.shape, w.dtype) for name, w in weights.items()}
    narrow = jax.ShapeDtypeStruct((sizes[0], 7), jnp.float32)
    other = {
        "the decoder's arguments are not its weights": (lambda x, i, j: x[i, 0], rows, ids, ids),
        "does not score pairs": (lambda w, x, i, j: x[i], shapes, rows, ids, ids),
        "score pairs of any number": (lambda w, x, i, j: x[i, 0], shapes, narrow, ids, ids),
    }
    for number, (message, arguments) in enumerate(other.items()):
        copy = replaced(directory, tmp_path / str(number), "decoder.bin", other_program(*arguments))
        with pytest.raises(DataError, match=message):
            export.load_links(copy)
    copy = edited(directory, tmp_path / "node", links=False)
    with pytest.raises(DataError, match=r"sha256: expected those of program.bin and variables"):
        export.load(copy)


@pytest.mark.few(1)
@pytest.mark.parametrize("inputs", ["edges", "degrees"])
def test_exported_graphs_are_the_models(tmp_path, inputs):
    """Of nodes' and edges' features, and of degrees; unions of any number of graphs, in one call
    and in several, and JAX alone. Two of the graphs have no node and one."""
    sets = graph_set("values" if inputs == "edges" else "class", edges=inputs == "edges")
    settings = {"model": "gin", "readout": "attention"}
    if inputs == "degrees":
        sets = dataclasses.replace(sets, features=None)
        settings = {"model": "sage", "norm": "graph", "readout": "max"}
    config = TrainConfig(task="graph", hidden=8, batch_size=16, **settings)
    description = GraphSetDescription.of(config, sets)
    assert description.inputs == ("features" if inputs == "edges" else "degrees")
    program, state = build_graphs(config, description, 1, sets.labels)
    model = nnx.merge(program.inference, state.params, state.rest)
    run = LoadedGraphRun(Path(), config, description, model, Progress())
    expected = run.logits(sets)
    nodes, edges = run.union_size(sets)
    graphs = [item.graph for item in sets]
    x, edge_features = sets.features, None
    if inputs == "edges":
        edge_features = np.concatenate([item.edge_features for item in sets])
    counts = {
        "num_graphs": 16,
        "num_nodes": nodes,
        "num_edges": edges,
        "num_features": 3 if inputs == "edges" else 0,
        "num_edge_features": description.num_edge_features,
        "platforms": [PLATFORM],
    }
    for portable in (False, True):
        directory = tmp_path / str(portable)
        written = export.save(run.exportable(), directory, portable=portable, **counts)
        assert bool(written.kernels[PLATFORM]) != portable and written.kind == "graphs"
        loaded = export.load_graphs(directory)
        limit = {"atol": 1e-5 if portable else 1e-6, "rtol": 1e-5 if portable else 1e-6}
        np.testing.assert_allclose(loaded(graphs, x, edge_features), expected, **limit)
        # A batch, which may have padding of its own.
        union = batch.pad(batch.disjoint_union(graphs[:5]), num_nodes=nodes - 1, num_graphs=7)
        real = sum(graph.num_nodes for graph in graphs[:5])
        rows = None if x is None else rows_of(x, real, nodes - 1)
        some = None if edge_features is None else edge_features[: union.graph.num_edges]
        for _ in range(2):
            found = loaded(union, rows, some)
            assert found.shape == (7, description.num_outputs)
            np.testing.assert_allclose(found[:5], expected[:5], **limit)
        assert loaded([], *(None if a is None else a[:0] for a in (x, edge_features))).size == 0
        for call in (loaded, run.predict):
            with pytest.raises(TypeError, match="a sequence of graphs, got one Graph"):
                call(graphs[0])

    names = json.loads((directory / "manifest.json").read_text())["arrays"]
    assert names == ["senders", "receivers", "graph_ids"]
    program = jax.export.deserialize(bytearray((directory / "program.bin").read_bytes()))
    union = batch.disjoint_union(graphs[:5])
    arrays = [
        np.append(a, np.full(size - a.size, last)).astype(np.int32)
        for a, size, last in (
            (union.graph.senders, edges, nodes - 1),
            (union.graph.receivers, edges, nodes - 1),
            (np.repeat(np.arange(5), [g.num_nodes for g in graphs[:5]]), nodes, 16),
        )
    ]
    rows = np.zeros((nodes, 0), np.float32) if x is None else rows_of(x, real, nodes)
    more = [] if edge_features is None else [rows_of(edge_features, union.graph.num_edges, edges)]
    found = program.call(dict(np.load(directory / "variables.npz")), arrays, rows, *more)
    np.testing.assert_allclose(found[:5], expected[:5], atol=1e-5, rtol=1e-5)

    large = Graph.from_edges(np.zeros(edges + 1, int), np.zeros(edges + 1, int))
    wide = Graph.from_edges(np.zeros(1, int), np.zeros(1, int), num_senders=2, num_receivers=1)
    of = np.zeros((1, 3), np.float32) if inputs == "edges" else None
    of_edges = np.zeros((edges + 1, 2)) if inputs == "edges" else None
    unfit = "expected None" if inputs == "degrees" else r"expected the shape \[0, 3\], got \[9, 3\]"
    many = batch.disjoint_union([Graph.from_edges([], [])] * 17)
    empty = (None, None) if of is None else (of[:0], of_edges[:0])
    for call, message in (
        (lambda: loaded([large], of, of_edges), f"and {edges:,} edges, got 1 and {edges + 1:,}"),
        (lambda: loaded([wide]), r"graphs\[0\]: expected a square graph, got"),
        (lambda: loaded([], np.zeros((9, 3))), unfit),
        (lambda: loaded(many, *empty), "graphs: expected at most 16, got 17"),
        (lambda: export.load(directory), "True: a model of graphs, for jaxgnn.export.load_graphs"),
    ):
        with pytest.raises(DataError, match=message):
            call()
    with pytest.raises(DataError, match="num_edge_features: expected num_graphs with it, got 2"):
        export.save(model, tmp_path / "o", **COUNTS, num_edge_features=2)


def rows_of(x: np.ndarray, count: int, size: int) -> np.ndarray:
    """The first rows, and zeros."""
    return np.pad(x[:count], ((0, size - count), (0, 0)))


CHILD = """
import json, sys
import jax, numpy as np
directory, portable, data = sys.argv[1:]

# JAX alone.
sys.modules["jaxgnn"] = None
manifest = json.load(open(f"{portable}/manifest.json"))
program = jax.export.deserialize(bytearray(open(f"{portable}/program.bin", "rb").read()))
weights = dict(np.load(f"{portable}/variables.npz"))
arrays = np.load(data)
senders, receivers, x = arrays["senders"], arrays["receivers"], arrays["x"]
order = np.lexsort((senders, receivers))
edges = [senders[order].astype(np.int32), receivers[order].astype(np.int32)]
missing = manifest["num_edges"] - senders.size
edges = [np.append(e, np.full(missing, manifest["num_nodes"] - 1, np.int32)) for e in edges]
padded = np.pad(x, ((0, manifest["num_nodes"] - len(x)), (0, 0)))
np.save("portable.npy", program.call(weights, edges, padded)[: len(x)])

del sys.modules["jaxgnn"]
import jaxgnn
graph = jaxgnn.Graph.from_edges(senders, receivers, num_nodes=len(x))
np.save("exported.npy", jaxgnn.export.load(directory)(graph, x))
print(*[name for name in ("flax", "optax", "orbax", "jaxgnn.train") if name in sys.modules])
"""


@pytest.mark.system
def test_the_command_and_a_fresh_process(tmp_path, capsys):
    small(tmp_path / "small.npz")
    small(tmp_path / "other.npz", nodes=100)
    path = str(tmp_path / "run")
    data = str(tmp_path / "small.npz")
    run(TrainConfig(data, model="gin", hidden=8, epochs=2, run_directory=path))
    directory, portable = str(tmp_path / "exported"), str(tmp_path / "portable")
    here = ["--platforms", PLATFORM]
    assert main(["export", path, "--output", directory, "--graph", data, *here]) == 0
    sizes = ["--nodes", "150", "--edges", "1000"]
    assert main(["export", path, "--output", portable, *sizes, *here, "--portable"]) == 0
    assert f"graphs of 151 nodes and 1,000 edges, {PLATFORM}, portable" in capsys.readouterr().out
    loaded = load_run(path)
    data = loaded.load_data(tmp_path / "other.npz")
    arrays = {"senders": data.graph.senders, "receivers": data.graph.receivers, "x": data.features}
    np.savez(tmp_path / "data.npz", **arrays)
    arguments = ("-c", CHILD, directory, portable, str(tmp_path / "data.npz"))
    assert run_python(*arguments, directory=tmp_path).stdout.split() == []
    expected = loaded.logits(data.graph, data.features)
    for name, limit in (("exported", 1e-6), ("portable", 1e-5)):
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), expected, atol=limit)

    for arguments, message in (
        ([path], "--output: expected a directory, got none"),
        ([path, "--output", directory], "exported: expected an empty directory"),
        (["nowhere", "--output", directory], "RUN: nowhere is no run directory"),
        ([path, "--output", "/dev/null/x"], "/dev/null/x: Not a directory"),
        ([path, "--output", "o", "--platforms", "tpu"], "--platforms: expected some of cpu, cuda"),
        ([path, "--output", "o", "--platforms", "cpu,cpu"], "--platforms: expected each once"),
        ([path, "--output", "o", "--nodes", "3"], "--nodes: expected both --nodes and --edges"),
        ([path, "--output", "o", *sizes, "--graph", "sbm"], "--graph: expected no --nodes and no"),
        ([path, "--output", "o", "--graph", "digits"], "digits: expected 3 features a node"),
    ):
        assert main(["export", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and message in captured.err and captured.err.count("\n") == 1
    assert not Path("o").exists()


@pytest.mark.system
@pytest.mark.parametrize("task", ["node", "link"])
def test_features_that_training_normalized(tmp_path, capsys, task):
    """Features and names of the columns are in the manifest: the program takes them as they are."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)).round(3)
    rows = [f"{i},{i % 2},{a},{b}\n" for i, (a, b) in enumerate(x)]
    (tmp_path / "nodes.csv").write_text("id,label,age,height\n" + "".join(rows))
    pairs = "".join(f"{i},{j}\n" for i, j in rng.integers(0, 40, (200, 2)))
    (tmp_path / "edges.csv").write_text("source,target\n" + pairs)
    for features in ("raw", "normalized"):
        path, directory = str(tmp_path / f"run-{features}"), str(tmp_path / features)
        config = TrainConfig(
            str(tmp_path), task=task, features=features, hidden=4, epochs=1, run_directory=path
        )
        run(config)
        assert main(["export", path, "--output", directory, "--platforms", PLATFORM]) == 0
        normalized = features == "normalized"
        assert ("jaxgnn.data.normalize_features" in capsys.readouterr().out) == normalized
        loaded = load_link_run(path) if task == "link" else load_run(path)
        exported = (export.load_links if task == "link" else export.load)(directory)
        assert exported.manifest.normalized_features == normalized
        assert exported.manifest.feature_names == ("age", "height")
        graph = loaded.own_data().graph
        expected = (loaded.encode if task == "link" else loaded.logits)(
            graph, loaded.own_data().features
        )
        call = exported.encode if task == "link" else exported
        raw = x.astype(np.float32)
        given = normalize_features(raw) if normalized else raw
        np.testing.assert_allclose(call(graph, given), expected, atol=1e-6)
        assert np.allclose(call(graph, raw), expected, atol=1e-4) != normalized
