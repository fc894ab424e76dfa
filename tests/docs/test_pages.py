"""The code of the pages that have no test of their own runs as it stands, but for paths."""

import itertools
import re
import sys
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import data, export, readout, train
from jaxgnn.graph import Graph
from jaxgnn.train import TrainConfig
from tests.support.paths import ROOT
from tests.support.small_sets import small

# Pages whose code other tests run.
ELSEWHERE = {
    *("adding-an-operation", "algebra", "distributed", "graph", "graphs", "links", "minibatches"),
    *(
        "modules",
        "sharding",
        "coming-from",
        "faq",
        "numerics",
        "pitfalls",
        "quickstart",
        "two-node-types",
    ),
    *("export", "graph-classification", "nodes", "own-table", "point-cloud"),
}


class SumOfNodes(nnx.Module):
    """The least that a model of graphs can be."""

    def __init__(self):
        self.scale = nnx.Param(jnp.ones(3))

    def __call__(self, batch, x, edge_features):
        del edge_features
        return readout(batch.membership, x) * self.scale[...]


def blocks(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


def run(page: str, names: dict[str, Any] | None = None, **replaced: str) -> dict[str, Any]:
    names = {} if names is None else names
    for block in blocks(page):
        for old, new in replaced.items():
            block = block.replace(old.replace("__", "/"), new)
        exec(compile(block, page, "exec"), names)
    return names


def test_every_page_with_code_has_a_test():
    here = {"index", "data", "tiles", "sampling", "partition", "training", "serving"}
    here |= {"normalization"}
    pages = {path for path in (ROOT / "docs").rglob("*.md") if "```python" in path.read_text()}
    assert {path.stem for path in pages} == here | ELSEWHERE


def test_every_experiment_is_on_a_page():
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    folder = ROOT / "benchmarks" / "experiments"
    programs = {path for path in folder.rglob("*.py") if path.parent.name != "maxk_paper"}
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in programs}
    assert sorted(name for name in names if not re.search(rf"\b{re.escape(name)}\b", pages)) == []
    assert len(names) > 20


def test_files_that_pages_name_exist():
    folders = "benchmarks|common|cpu|cuda|docs|examples|ffi|jaxgnn|jaxgnn_cli|scripts|tests"
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    codes = [re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")) for page in pages]
    paths = re.findall(rf"(?<![\w/.-])(?:{folders})/[\w/.-]*", " ".join(itertools.chain(*codes)))
    named = {path.rstrip(".") for path in paths if not re.search(r"FAMILY|\bOP\b|\.\.\.", path)}
    assert len(named) > 60
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_pages_of_few_lines():
    assert run("index.md")["y"].shape == (4, 3)
    assert run("data.md")["split"].train.any()
    assert run("kernels/tiles.md")["result"].restore().size == 4
    assert run("kernels/normalization.md")["norm"].num_features == 64


@pytest.mark.system
def test_sampling():
    names = run("sampling.md")
    assert names["few"].shape == (4, 48) and names["z"].shape == (100, 48)
    nodes, around = np.asarray(names["hop"].nodes), np.asarray(names["around"])
    assert around[nodes >= 0].any(axis=1).all() and not around[nodes < 0].any()
    assert names["two_hops"].shape == (2, 16)
    graph, weights, x = names["graph"], names["weights"], np.asarray(names["x"])
    for node in (0, 99):  # the custom strategy
        own = np.flatnonzero(np.asarray(graph.receivers) == node)
        own = own[np.argsort(-weights[own])][:16]
        expected = x[np.asarray(graph.senders)[own]].mean(0)
        np.testing.assert_allclose(names["own"][node], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.system
def test_partition(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second, third = blocks("partition.md")
    names: dict[str, Any] = {"x": np.zeros((3, 2)), "y": np.zeros(3)}
    exec(first, names)
    csr = names["csr"]
    np.asarray(csr.row_offsets, np.int64).tofile("row_offsets.bin")
    np.asarray(csr.senders, np.int32).tofile("senders.bin")
    owner = names["split"].owner
    exec(second, names)
    np.testing.assert_array_equal(names["split"].owner, owner)
    nodes = owner.size
    names |= {"x": np.zeros((nodes, 2), np.float32), "y": np.arange(nodes)}
    names["weights"] = np.arange(csr.num_edges)
    exec(third, names)
    np.testing.assert_array_equal(names["split"].owner, owner)
    assert names["data"].edge_arrays["weights"].shape == names["data"].senders.shape


@pytest.mark.system
def test_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small("small.npz")
    found: list[Any] = []
    writer = SimpleNamespace(add_scalar=lambda *values: found.append(values))
    loggers = {
        "tensorboardX": SimpleNamespace(SummaryWriter=lambda directory: writer),
        "wandb": SimpleNamespace(
            init=lambda **_: None, log=lambda row, step: found.append(step), finish=lambda: None
        ),
    }
    for name, module in loggers.items():
        monkeypatch.setitem(sys.modules, name, module)
    replaced = {"PATH__TO__cora": "small.npz", "epochs=100": "epochs=2"}
    names = run("training.md", None, **replaced)
    assert names["summary"]["epochs"] == 2 and names["in_memory"]["epochs"] == 2
    assert [value for value in found if isinstance(value, int)] == [1, 2]
    assert ("epoch", 1, 1) in found and any(value[0] == "loss" for value in found[:-2])


@pytest.mark.system
def test_serving(tmp_path, monkeypatch):
    pytest.importorskip("flatbuffers")
    monkeypatch.chdir(tmp_path)
    small("small.npz")
    (tmp_path / "pairs.csv").write_text("source,target\n0,1\n2,3\n")
    options: dict[str, Any] = {"hidden": 4, "epochs": 1}
    for task in ("node", "link"):
        train.run(TrainConfig("small.npz", task=task, run_directory=task, **options))
    rng = np.random.default_rng(0)
    rows = rng.integers(200, size=(2, 300))
    graph = Graph.from_edges(*rows, num_nodes=200)
    x = data.load("small.npz").features
    node, link = train.load_run("node"), train.load_link_run("link")
    sizes: dict[str, Any] = {"num_nodes": 210, "num_edges": 400, "num_features": 3}
    export.save(node.model, "nodes", **sizes)
    export.save(node.model, "portable", portable=True, **sizes)
    export.save(node.model, "weighted", portable=True, edge_weights=True, **sizes)
    counts = {"num_graphs": 2, "num_edge_features": 1}
    export.save(SumOfNodes(), "graphs", num_nodes=500, num_edges=700, num_features=3, **counts)
    export.save(link.model.encoder, "links", decoder=link.model.decoder, **sizes)

    names: dict[str, Any] = {"graph": graph, "x": x, "senders": rows[0], "receivers": rows[1]}
    folders = iter(["nodes", "links", "graphs", "portable"])
    *pages, portable, with_weights = blocks("serving.md")
    for block in (*pages, portable):
        block = block.replace("PATH/TO/DATA", "small.npz")
        block = block.replace('"RUN"', '"link"' if "load_link_run" in block else '"node"')
        if "DIRECTORY" in block:
            folder = next(folders)
            block = block.replace("DIRECTORY", folder)
            if folder == "graphs":
                of_graphs = {"jaxgnn": jaxgnn, "graphs": [graph, graph], "x": np.ones((400, 3))}
                of_graphs["edge_features"] = np.ones((600, 1))
                exec(compile(block, "serving.md", "exec"), of_graphs)
                np.testing.assert_array_equal(of_graphs["logits"], np.full((2, 3), 200))
                continue
        exec(compile(block, "serving.md", "exec"), names)
        if "predict_links" in block:
            assert names["predictions"].scores.shape == (2,) and names["scores"].shape == (2,)
        elif "load_run" in block:
            np.testing.assert_allclose(names["probabilities"].sum(axis=1), 1, rtol=1e-5)
    expected = node.logits(graph, x)
    np.testing.assert_allclose(names["logits"], expected, rtol=1e-5, atol=1e-5)
    # In place of the last line.
    weighted = portable.replace("DIRECTORY", "weighted").rpartition("logits = ")[0] + with_weights
    names["weights"] = rng.random(rows.shape[1], np.float32)
    exec(compile(weighted, "serving.md", "exec"), names)
    own, weights = Graph.from_edges(*rows, num_nodes=200, edge_data=names["weights"])
    expected = node.model(own, x, weights)
    np.testing.assert_allclose(names["logits"], expected, rtol=1e-5, atol=1e-5)
