"""What tests of `jaxgnn.export` share: a graph, a model, and directories that differ."""

import hashlib
import json
import shutil
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from jaxgnn import Graph
from jaxgnn._core.platform import of_device
from jaxgnn.train import TrainConfig, build_model

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
