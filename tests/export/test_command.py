"""`jaxgnn export`, and a process without jaxgnn."""

from pathlib import Path

import numpy as np
import pytest

from jaxgnn import export
from jaxgnn.data import normalize_features
from jaxgnn.train import TrainConfig, load_link_run, load_run, run
from jaxgnn_cli import main
from tests.support.exports import PLATFORM
from tests.support.processes import run_python
from tests.support.small_sets import small

pytest.importorskip("flatbuffers")


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
        ([path, "--output", "o", "--nodes", "3"], "--edges: expected a number with --nodes, got"),
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
