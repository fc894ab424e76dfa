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
# Batches whose hops are counted, and parts of a row that draws are counted in.
_COUNTED = 4
_PARTS = 20
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
        """Whose worker process runs it: ours apart from plain JAX, as in `_MODULES`."""
        return self.impl.split()[0]

    @property
    def is_jax(self) -> bool:
        """Whether it is ours or plain JAX, whose draws are held to the law."""
        return self.framework in ("jaxgnn", "jax")

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
    (framework,) = {Draw(**entry).framework for entry in task["entries"]}
    module = importlib.import_module(_MODULES[framework])
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
    batches: list[list[Hop]] = []

    def check() -> dict[str, Any]:
        batches.extend(sampler.hops() for _ in range(_COUNTED))
        wrong = sum(
            mistakes(graph, hop, size, draw.traits, middle=draw.is_jax)
            for hop, size in zip(batches[0], draw.num_neighbors, strict=True)
        )
        if {"weighted", "replace"} <= draw.traits:
            wrong += sum(not follows_weights(graph, hop) for hop in batches[0])
        return checked(float(wrong), 0.0)

    def after(ms: float) -> dict[str, Any]:
        edges = sampler.edges()
        rate = round(edges / ms / 1e6, 4)
        found = {"sampled_edges": round(edges), "giga_edges_per_second": rate}
        if not draw.is_jax or "deduplicated" in draw.traits:
            counts = np.mean([counts_of_hops(hops) for hops in batches], axis=0)
            found |= {"edges_of_hops": counts[0].tolist(), "nodes_of_hops": counts[1].tolist()}
        if not draw.traits & {"labor", "weighted"}:
            hops = zip(*batches, strict=True)
            found["inclusion_p"] = min(
                inclusion_p(graph, same, 0 if "replace" in draw.traits else size)
                for same, size in zip(hops, draw.num_neighbors, strict=True)
            )
        return found

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


def edge_weights(num_edges: int) -> np.ndarray:
    """What edges are drawn by: positive, of mean 1."""
    return np.random.default_rng(7).exponential(size=num_edges).astype(np.float32)


def follows_weights(graph: StoredGraph, hop: Hop) -> bool:
    """Whether the mean weight of the drawn edges is that of draws in proportion to the weights."""
    offsets = np.asarray(graph.row_offsets).astype(np.int64)
    own = np.flatnonzero((hop.receivers >= 0) & (hop.counts > 0))[:_CHECKED]
    ends = np.cumsum(hop.counts)
    edges = hop.edges[_ranges(ends[own] - hop.counts[own], hop.counts[own])]
    nodes, weights = hop.receivers[own], edge_weights(graph.num_edges).astype(np.float64)
    degrees = offsets[nodes + 1] - offsets[nodes]
    there = weights[_ranges(offsets[nodes], degrees)]
    starts = np.cumsum(degrees) - degrees
    sums, squares, cubes = (np.add.reduceat(there**power, starts) for power in (1, 2, 3))
    mean = squares / sums
    deviation = np.sqrt((hop.counts[own] * (cubes / sums - mean**2)).sum())
    return bool(abs(weights[edges].sum() - (hop.counts[own] * mean).sum()) <= 6 * deviation)


def counts_of_hops(hops: Sequence[Hop]) -> tuple[list[int], list[int]]:
    """The edges that each hop draws, and the nodes that it adds, of a sampler that has a node once.

    DGL draws anew in each hop for the nodes of earlier ones, too: those draws are left out.
    """
    edges, nodes = [], []
    frontier = known = np.unique(hops[0].receivers[hops[0].receivers >= 0])
    for hop in hops:
        own = np.isin(hop.receivers, frontier)
        edges.append(int(hop.counts[own].sum()))
        frontier = np.setdiff1d(hop.senders[np.repeat(own, hop.counts)], known)
        known = np.union1d(known, frontier)
        nodes.append(frontier.size)
    return edges, nodes


def inclusion_p(graph: StoredGraph, hops: Sequence[Hop], size: int) -> float:
    """The p-value of a chi-squared test that edges anywhere in rows longer than `size` are drawn
    alike: the rows in equal parts, an edge spread over what it has of its row."""
    from scipy import stats

    offsets, rng = np.asarray(graph.row_offsets).astype(np.int64), np.random.default_rng(0)
    drawn = np.zeros(_PARTS)
    for hop in hops:
        nodes = np.repeat(hop.receivers, hop.counts)
        degrees = offsets[nodes + 1] - offsets[nodes]
        places = (hop.edges - offsets[nodes] + rng.random(nodes.size)) / degrees
        parts = (places[degrees > size] * _PARTS).astype(np.int64)
        drawn += np.bincount(np.clip(parts, 0, _PARTS - 1), minlength=_PARTS)
    return float(stats.chisquare(drawn).pvalue) if drawn.sum() >= 100 * _PARTS else 1.0


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
