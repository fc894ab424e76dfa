"""The jobs of neighbor sampling: batches of seeds, and the edges drawn for them hop by hop."""

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

# Receivers of each hop that are checked, and standard deviations of their edges' mean place.
_CHECKED = 4096
_DEVIATIONS = 6.0
_MODULES = {
    "jaxgnn": "benchmarks.ours.neighbors",
    "jax": "benchmarks.baselines.jax_neighbors",
    "PyG": "benchmarks.baselines.loaders",
    "DGL": "benchmarks.baselines.loaders",
}


@dataclasses.dataclass(frozen=True)
class Draw:
    """Sampling to time: the neighborhood of `seeds` nodes, `num_neighbors` hop by hop."""

    impl: str
    case: str
    seeds: int
    num_neighbors: Sequence[int]

    @property
    def framework(self) -> str:
        """Whose worker process runs it."""
        library = self.impl.split()[0]
        return "jax" if library == "jaxgnn" else library

    @property
    def traits(self) -> set[str]:
        """What follows the library's name: replace, labor, weighted, deduplicated."""
        return set(self.impl.replace(",", "").split()[1:])

    def __str__(self) -> str:
        return f"{self.case} {self.seeds} seeds {list(self.num_neighbors)} {self.impl}"


class Hop(NamedTuple):
    """What a hop drew: for each receiver, in their order, so many edges and their senders.

    Attributes:
        receivers: nodes, each with draws of its own.
        counts: edges drawn for each.
        edges: in the graph's order, receiver after receiver.
        senders: nodes, one an edge.
    """

    receivers: np.ndarray
    counts: np.ndarray
    edges: np.ndarray
    senders: np.ndarray


@dataclasses.dataclass
class Sampler:
    """An implementation ready to be timed."""

    seconds: Callable[[int], float]  # of so many batches
    hops: Callable[[], list[Hop]]  # of one batch, on the host
    edges: Callable[[], float]  # the mean number of edges of a batch
    loop: Callable[[int], Callable[[int], float]] | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    close: Callable[[], None] = lambda: None


def make(task: dict[str, Any], threads: int) -> Callable[[dict[str, Any]], Job]:
    """What makes the job of a `Draw`; imports the task's framework."""
    module = importlib.import_module(_MODULES[Draw(**task["entries"][0]).impl.split()[0]])
    held: dict[str, Any] = {}

    def prepare(entry: dict[str, Any]) -> Job:
        draw = Draw(**entry)
        if draw.case not in held:
            held.clear()
            stored = graphs.load(Path(task["graphs"][draw.case]))
            held[draw.case] = (stored, module.Samplers(stored, task["device"], threads))
        stored, samplers = held[draw.case]
        return _job(draw, stored, samplers.sampler(draw), task["device"])

    return prepare


def _job(draw: Draw, graph: StoredGraph, sampler: Sampler, device: str) -> Job:
    def check() -> dict[str, Any]:
        wrong = sum(
            mistakes(graph, hop, size, draw.traits, middle=draw.framework == "jax")
            for hop, size in zip(sampler.hops(), draw.num_neighbors, strict=True)
        )
        return checked(float(wrong), 0.0)

    def after(ms: float) -> dict[str, Any]:
        edges = sampler.edges()
        rate = round(edges / ms / 1e6, 4)
        return {"sampled_edges": round(edges), "giga_edges_per_second": rate}

    shape = {"nodes": graph.num_nodes, "edges": graph.num_edges, "seeds": draw.seeds}
    identity = {
        "case": draw.case,
        "impl": draw.impl,
        "dtype": "int32",
        "shape": shape | {"num_neighbors": list(draw.num_neighbors)},
        "pass": "sample",
    }
    return Job(
        sampler.seconds,
        lambda: None,
        identity,
        check,
        loop=sampler.loop,
        facts=sampler.facts,
        after=after,
        close=sampler.close,
        long_call=2.0,
        # A call from Python hands over dozens of arrays, which a training loop never does.
        loop_steps=max(8, 2**16 // draw.seeds) if device == "gpu" else None,
    )


def mistakes(
    graph: StoredGraph, hop: Hop, size: int, traits: set[str], *, middle: bool = True
) -> int:
    """Wrong counts, edges that are not their receiver's, wrong senders, repeats.

    Of the first receivers, padding (-1) left out. With `middle`, uniform draws must also have their
    mean place in the middle of the row.
    """
    own = np.flatnonzero(hop.receivers >= 0)[:_CHECKED]
    ends = np.cumsum(hop.counts)
    taken = _ranges(ends[own] - hop.counts[own], hop.counts[own])
    receivers, counts, edges = hop.receivers[own], hop.counts[own], hop.edges[taken]
    begins = np.asarray(graph.row_offsets)[receivers]
    degrees = np.asarray(graph.row_offsets)[receivers + 1] - begins
    replace = "replace" in traits
    expected = size * (degrees > 0) if replace else np.minimum(degrees, size)
    row = np.repeat(np.arange(own.size), counts)
    places = edges - begins[row]
    inside = (places >= 0) & (places < degrees[row])
    wrong = int((counts != expected).sum() + (~inside).sum())
    named = graph.senders[np.clip(edges, 0, graph.num_edges - 1)]
    wrong += int((named != hop.senders[taken]).sum())
    if not replace:
        wrong += edges.size - np.unique(np.stack([row, edges]), axis=1).shape[1]
    chosen = degrees[row] > (0 if replace else size)
    if middle and not traits & {"labor", "weighted"} and chosen.any():
        offset = ((places + 0.5) / np.maximum(degrees[row], 1))[chosen].mean() - 0.5
        wrong += int(abs(offset) * np.sqrt(12 * chosen.sum()) > _DEVIATIONS)
    return wrong


def endless(loader: Any) -> Callable[[], Any]:
    """The next batch, epoch after epoch."""

    def batches() -> Any:
        while True:
            yield from loader

    return functools.partial(next, batches())


def _ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The numbers of ranges, one range after the other."""
    first = np.repeat(begins - np.cumsum(lengths) + lengths, lengths)
    return first + np.arange(lengths.sum())
