"""The CPU loaders of PyG and DGL, each with worker processes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.harness.graphs import StoredGraph
from benchmarks.harness.neighbors import Draw, Hop, Sampler, endless

WORKERS = 8
_COUNTED = 4  # batches


class Samplers:
    """The loaders of one graph."""

    def __init__(self, graph: StoredGraph, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._graph = graph
        self._workers = min(WORKERS, len(os.sched_getaffinity(0)))

    def sampler(self, draw: Draw) -> Sampler:
        seeds = min(draw.seeds, self._graph.num_nodes)
        if draw.impl.startswith("PyG"):
            loader = pyg_loader(
                self._graph,
                draw.num_neighbors,
                seeds,
                self._workers,
                replace="replace" in draw.traits,
            )
            hops_of, count = _pyg_hops, lambda batch: batch.edge_index.shape[1]
        else:
            loader = _dgl_loader(self._graph, draw.num_neighbors, seeds, self._workers)
            hops_of, count = _dgl_hops, lambda batch: sum(b.num_edges() for b in batch[2])
        following = endless(loader)

        def seconds(batches: int) -> float:
            # Workers deliver in turns: as many batches of each.
            start = time.perf_counter()
            for _ in range(batches * self._workers):
                following()
            return (time.perf_counter() - start) / self._workers

        def edges() -> float:
            return sum(count(following()) for _ in range(_COUNTED)) / _COUNTED

        facts = {"workers": self._workers}
        return Sampler(seconds, lambda: hops_of(following()), edges, facts=facts)


def pyg_loader(
    graph: StoredGraph,
    num_neighbors: Sequence[int],
    seeds: int,
    workers: int,
    *,
    replace: bool = False,
    input_nodes: torch.Tensor | None = None,
    shuffle: bool = False,
    pin_memory: bool = False,
    **data: torch.Tensor,
) -> Any:
    """PyG's loader; `data` are tensors of the nodes, such as `x`.

    Raises:
        ImportError: PyG or what it samples with is not installed.
    """
    import torch_geometric
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    if not (torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE):
        raise ImportError("PyG's loader needs pyg-lib or torch-sparse, and there is neither")
    senders = torch.from_numpy(np.array(graph.senders)).long()
    receivers = torch.from_numpy(graph.receivers).long()
    return NeighborLoader(
        Data(edge_index=torch.stack([senders, receivers]), num_nodes=graph.num_nodes, **data),
        num_neighbors=list(num_neighbors),
        input_nodes=input_nodes,
        batch_size=seeds,
        replace=replace,
        shuffle=shuffle,
        is_sorted=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
        pin_memory=pin_memory,
    )


def _pyg_hops(batch: Any) -> list[Hop]:
    """Nodes are numbered by first occurrence: a hop's receivers are those that the last added."""
    nodes, edges = batch.n_id.numpy(), batch.e_id.numpy()
    senders, receivers = batch.edge_index.numpy()
    found, begin, end = [], 0, batch.batch_size
    while begin < end:
        own = np.flatnonzero((receivers >= begin) & (receivers < end))
        own = own[np.argsort(receivers[own], kind="stable")]
        if not own.size:
            break
        counts = np.bincount(receivers[own] - begin, minlength=end - begin)
        found.append(Hop(nodes[begin:end], counts, edges[own], nodes[senders[own]]))
        begin, end = end, max(end, int(senders[own].max()) + 1)
    return found


def _dgl_loader(graph: StoredGraph, num_neighbors: Any, seeds: int, workers: int) -> Any:
    import dgl

    offsets = torch.from_numpy(np.array(graph.row_offsets)).long()
    senders = torch.from_numpy(np.array(graph.senders)).long()
    there = dgl.graph(("csc", (offsets, senders, [])), num_nodes=graph.num_nodes)
    return dgl.dataloading.DataLoader(
        there,
        torch.arange(graph.num_nodes),
        dgl.dataloading.NeighborSampler(list(num_neighbors)[::-1]),
        batch_size=seeds,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
    )


def _dgl_hops(batch: Any) -> list[Hop]:
    import dgl

    found = []
    for block in batch[2][::-1]:
        senders, receivers = (ends.numpy() for ends in block.edges(order="eid"))
        order = np.argsort(receivers, kind="stable")
        counts = np.bincount(receivers, minlength=block.num_dst_nodes())
        sources, targets = (data[dgl.NID].numpy() for data in (block.srcdata, block.dstdata))
        edges = block.edata[dgl.EID].numpy()[order]
        found.append(Hop(targets, counts, edges, sources[senders[order]]))
    return found
