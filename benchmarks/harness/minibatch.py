"""The jobs of mini-batch training steps: sampling, features, forward, backward, Adam.

A process of jaxgnn first writes the initial parameters and some batches, deduplicated as PyG's are,
with their losses in float64. Every other step's loss is compared with that of its own batch.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import graphs
from benchmarks.harness.graphs import StoredGraph
from benchmarks.harness.job import Job, checked
from benchmarks.harness.setting import layer_parameters

BATCHES = "jaxgnn batches"  # the entry that writes them
READY = 8  # batches
SEED_SHARE = 0.08  # of the nodes: as in ogbn-products
_MODULES = {
    "jaxgnn": "benchmarks.ours.minibatch",
    "jax": "benchmarks.baselines.jax_minibatch",
    "PyG": "benchmarks.baselines.pyg_minibatch",
}
_TOLERANCE = {"cpu": 1e-4, "gpu": 1e-2}  # of the loss; a GPU multiplies in TF32


@dataclasses.dataclass(frozen=True)
class Step:
    """A step to time: a hop of `num_neighbors` and a layer for each two neighboring `widths`."""

    impl: str
    case: str
    seeds: int
    num_neighbors: Sequence[int]
    widths: Sequence[int]

    @property
    def framework(self) -> str:
        """Whose worker process runs it; ours apart from plain JAX."""
        return self.impl.split()[0]

    def __str__(self) -> str:
        return f"{self.case} step of {self.seeds} seeds {list(self.num_neighbors)} {self.impl}"


class Batch(NamedTuple):
    """A batch on the host, without padding.

    Attributes:
        nodes: of each place, the seeds' first.
        senders, receivers: the places of each edge's ends.
        num_seeds: the first places.
    """

    nodes: np.ndarray
    senders: np.ndarray
    receivers: np.ndarray
    num_seeds: int


@dataclasses.dataclass
class Trainer:
    """An implementation ready to be timed. `loss` is that of a batch with the initial
    parameters."""

    seconds: Callable[[int], float]
    loss: Callable[[], tuple[float, Batch]]
    peak_bytes: Callable[[], int | None] = lambda: None
    loop: Callable[[int], Callable[[int], float]] | None = None
    loop_steps: int | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Data:
    """What all steps read."""

    graph: StoredGraph
    x: np.ndarray
    labels: np.ndarray
    input_nodes: np.ndarray
    folder: Path  # of the parameters and the ready batches
    device: str
    threads: int

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """The initial ones, by the paths of jaxgnn's model."""
        with np.load(self.folder / "parameters.npz") as archive:
            return dict(archive)


def make(task: dict[str, Any], threads: int) -> Callable[[dict[str, Any]], Job | None]:
    """What makes the job of a `Step`; imports its framework."""
    module = importlib.import_module(_MODULES[Step(**task["entries"][0]).framework])
    return functools.partial(_prepare, task, threads, module)


def _prepare(task: dict[str, Any], threads: int, module: Any, entry: dict[str, Any]) -> Job | None:
    step = Step(**entry)
    graph = graphs.load(Path(task["graphs"][step.case]))
    n = graph.num_nodes
    rng = np.random.default_rng(8)
    x = rng.random((n, step.widths[0]), np.float32) - np.float32(0.5)
    labels = rng.integers(0, step.widths[-1], n).astype(np.int32)
    chosen = rng.permutation(n)[: max(int(SEED_SHARE * n), step.seeds)].astype(np.int32)
    data = Data(graph, x, labels, chosen, Path(task["folder"]), task["device"], threads)
    if step.impl == BATCHES:
        module.write_batches(step, data)
        return None
    trainer: Trainer = module.trainer(step, data)

    def check() -> dict[str, Any]:
        loss, batch = trainer.loss()
        expected = float64_loss(data.parameters, x, labels, batch)
        tolerance = _TOLERANCE[task["device"]]
        return {**checked(abs(loss - expected) / expected, tolerance), "loss": loss}

    shape = {"nodes": n, "edges": graph.num_edges, "seeds": step.seeds}
    shape |= {"num_neighbors": list(step.num_neighbors), "widths": list(step.widths)}
    identity = {"case": step.case, "impl": step.impl, "dtype": "float32"}
    return Job(
        trainer.seconds,
        trainer.peak_bytes,
        identity | {"shape": shape, "pass": "step"},
        check,
        loop=trainer.loop,
        loop_steps=trainer.loop_steps,
        facts=trainer.facts,
    )


def float64_loss(
    parameters: dict[str, np.ndarray], x: np.ndarray, labels: np.ndarray, batch: Batch
) -> float:
    """The mean cross-entropy of the seeds in float64.

    A layer computes the rows that the next one reads, from the rows of the layer before.
    """
    import scipy.sparse

    layers = layer_parameters(parameters)
    # The places within so many hops of the seeds; a place keeps its edges in all layers.
    reach = [np.arange(batch.nodes.size) < batch.num_seeds]
    for _ in layers:
        wider = reach[-1].copy()
        wider[batch.senders[reach[-1][batch.receivers]]] = True
        reach.append(wider)
    h = x[batch.nodes].astype(np.float64)
    for number, own in enumerate(layers):
        rows = reach[len(layers) - number - 1]
        used = rows[batch.receivers]
        ends = (batch.receivers[used], batch.senders[used])
        size = (batch.nodes.size,) * 2
        matrix = scipy.sparse.csr_array((np.ones(used.sum()), ends), shape=size)[rows]
        mean = (matrix @ h) / np.maximum(matrix.sum(axis=1), 1)[:, None]
        weights = {name: value.astype(np.float64) for name, value in own.items()}
        new = mean @ weights["linear_neighbors.kernel"] + weights["linear_neighbors.bias"]
        new += h[rows] @ weights["linear_root.kernel"]
        if number < len(layers) - 1:
            new = np.maximum(new, 0)
        h = np.zeros((batch.nodes.size, new.shape[1]))
        h[rows] = new
    logits = h[: batch.num_seeds]
    logits = logits - logits.max(axis=1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    own = labels[batch.nodes[: batch.num_seeds]]
    return float(-logs[np.arange(own.size), own].mean())
