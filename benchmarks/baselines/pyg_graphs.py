"""A `GraphSet` as PyG's data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxgnn.data import GraphSet


def pyg_graphs(graphs: GraphSet, indices: Iterable[int]) -> list[Any]:
    """`torch_geometric.data.Data` of these graphs, with features and classes."""
    import torch
    from torch_geometric.data import Data

    assert graphs.features is not None and graphs.labels is not None
    out = []
    for i in indices:
        nodes = slice(*graphs.node_offsets[i : i + 2].tolist())
        edges = slice(*graphs.edge_offsets[i : i + 2].tolist())
        ends = np.stack([graphs.senders[edges], graphs.receivers[edges]]).astype(np.int64)
        x, label = torch.from_numpy(graphs.features[nodes]), torch.tensor(int(graphs.labels[i]))
        out.append(Data(x=x, edge_index=torch.from_numpy(ends), y=label))
    return out
