"""What cannot be exported, and what an exported model does not take."""

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgnn import export
from jaxgnn.data import DataError
from jaxgnn.nn import DynamicEdgeConv, GraphNorm
from tests.support.exports import COUNTS, EDGES, FEATURES, NODES, a_graph, a_model

pytest.importorskip("flatbuffers")


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
