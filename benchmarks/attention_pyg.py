"""The models of the suite `attention` in PyG: convolutions over an `edge_index`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch_geometric.nn import AGNNConv, EdgeConv, GATConv, GATv2Conv, GMMConv
from torch_geometric.utils import degree

from benchmarks.graphs import StoredGraph
from benchmarks.training import LOOPED_MODELS


class Model(torch.nn.Module):
    """Convolutions with a ReLU between, under the parameters of the inputs.

    AGNN's have products before and behind them, and one ReLU, as in PyG's example.
    """

    def __init__(self, inputs: dict[str, np.ndarray], model: str, layers: int) -> None:
        super().__init__()
        make, self._places = _MODELS[model]
        self.convs = torch.nn.ModuleList(
            make({kind: inputs[f"{kind}_{layer}"] for kind in self._places})
            for layer in range(layers)
        )
        self.ends = torch.nn.ModuleDict(
            {
                end: torch.nn.Linear(*inputs[f"kernel_{end}"].shape)
                for end in ("in", "out")
                if f"kernel_{end}" in inputs
            }
        )

    def named(self) -> dict[str, torch.nn.Parameter]:
        """The parameters under the names of the inputs."""
        of_layers = {
            f"{kind}_{layer}": conv.get_parameter(place)
            for layer, conv in enumerate(self.convs)
            for kind, place in self._places.items()
        }
        of_ends = {
            f"{kind}_{end}": product.get_parameter(place)
            for end, product in self.ends.items()
            for kind, place in (("kernel", "weight"), ("bias", "bias"))
        }
        return of_layers | of_ends

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        if self.ends:
            x = self.ends["in"](x).relu()
            for conv in self.convs:
                x = conv(x, edge_index)
            return self.ends["out"](x)
        for conv in self.convs[:-1]:
            x = conv(x, edge_index).relu()
        return self.convs[-1](x, edge_index)


def edge_index(graph: StoredGraph, model: str) -> torch.Tensor:
    """Senders over receivers, sorted by receiver.

    The attention's self-loops are among them: a layer that adds them does so in each call.
    """
    senders, degrees = np.asarray(graph.senders), np.diff(graph.row_offsets)
    if model in LOOPED_MODELS:
        nodes = np.arange(graph.num_nodes, dtype=senders.dtype)
        senders = np.insert(senders, graph.row_offsets[1:], nodes)
        degrees = degrees + 1
    receivers = np.repeat(np.arange(graph.num_nodes), degrees)
    return torch.from_numpy(np.stack([senders, receivers]).astype(np.int64))


def _gat(inputs: dict[str, np.ndarray]) -> torch.nn.Module:
    heads, features = inputs["source"].shape
    width = inputs["kernel"].shape[0]
    return GATConv(width, features, heads=heads, add_self_loops=False)


def _gatv2(inputs: dict[str, np.ndarray]) -> torch.nn.Module:
    heads, features = inputs["vector"].shape
    width = inputs["left"].shape[0]
    return GATv2Conv(width, features, heads=heads, add_self_loops=False)


def _agnn(inputs: dict[str, np.ndarray]) -> torch.nn.Module:
    del inputs
    return AGNNConv(add_self_loops=False)


def _edge_conv(inputs: dict[str, np.ndarray]) -> torch.nn.Module:
    return EdgeConv(torch.nn.Linear(*inputs["kernel"].shape), aggr="max")


class _DegreeGMMConv(torch.nn.Module):
    """PyG's layer on coordinates made of the degrees, which are counted in the first call."""

    def __init__(self, inputs: dict[str, np.ndarray]) -> None:
        super().__init__()
        kernels, coordinates = inputs["mu"].shape
        fan_in, fan_out = inputs["root"].shape
        self.conv = GMMConv(fan_in, fan_out, coordinates, kernels)
        self.linear = torch.nn.Linear(2, coordinates)
        self._ends: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        if self._ends is None:
            nodes = x.shape[0]
            ends = [degree(edge_index[end], nodes)[edge_index[end]] for end in (1, 0)]
            self._ends = torch.stack(ends, dim=1).rsqrt()
        return self.conv(x, edge_index, self.linear(self._ends).tanh())


# How a layer is made, and where it keeps the parameters that the inputs name.
_MODELS: dict[str, tuple[Any, dict[str, str]]] = {
    "gat": (
        _gat,
        {"kernel": "lin.weight", "source": "att_src", "target": "att_dst", "bias": "bias"},
    ),
    "gatv2": (
        _gatv2,
        {
            "left": "lin_l.weight",
            "left_shift": "lin_l.bias",
            "right": "lin_r.weight",
            "right_shift": "lin_r.bias",
            "vector": "att",
            "bias": "bias",
        },
    ),
    "agnn": (_agnn, {"beta": "beta"}),
    "edgeconv": (_edge_conv, {"kernel": "nn.weight", "bias": "nn.bias"}),
    "monet": (
        _DegreeGMMConv,
        {
            "mixture": "conv.g",
            "root": "conv.root.weight",
            "mu": "conv.mu",
            "sigma": "conv.sigma",
            "slope": "linear.weight",
            "shift": "linear.bias",
            "bias": "conv.bias",
        },
    ),
}
