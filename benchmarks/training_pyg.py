"""PyG's best path: `SAGEConv` over a `torch.sparse` adjacency, TF32 products allowed."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import torch
from torch_geometric.nn import SAGEConv

from benchmarks import timing
from benchmarks.graphs import StoredGraph
from benchmarks.training_worker import Job

warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")


class Model(torch.nn.Module):
    """SAGEConv layers with a ReLU between, and a product before them if there is one."""

    def __init__(self, inputs: dict[str, np.ndarray], layers: int) -> None:
        super().__init__()
        self.linear_in = None
        if "kernel_in" in inputs:
            self.linear_in = torch.nn.Linear(*inputs["kernel_in"].shape)
        shapes = [inputs[f"neighbour_{layer}"].shape for layer in range(layers)]
        self.convs = torch.nn.ModuleList(SAGEConv(*shape, aggr="mean") for shape in shapes)
        with torch.no_grad():
            for name, parameter in self.named(layers).items():
                value = torch.from_numpy(inputs[name])
                parameter.copy_(value if value.ndim == 1 else value.T)

    def named(self, layers: int) -> dict[str, torch.nn.Parameter]:
        """The parameters under the names of the inputs."""
        names = {}
        if self.linear_in is not None:
            names |= {"kernel_in": self.linear_in.weight, "bias_in": self.linear_in.bias}
        for layer in range(layers):
            conv: Any = self.convs[layer]
            names[f"neighbour_{layer}"] = conv.lin_l.weight
            names[f"bias_{layer}"] = conv.lin_l.bias
            names[f"root_{layer}"] = conv.lin_r.weight
        return names

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        if self.linear_in is not None:
            x = self.linear_in(x).relu()
        for conv in self.convs[:-1]:
            x = conv(x, adjacency).relu()
        return self.convs[-1](x, adjacency)


def job(
    graph: StoredGraph,
    features: dict[str, np.ndarray],
    parameters: dict[str, np.ndarray],
    widths: list[int],
    device: str,
    threads: int,
) -> Job:
    """The training step on the CPU or the GPU."""
    layers = len(widths) - 1 - ("kernel_in" in parameters)
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    where = torch.device("cuda" if device == "gpu" else "cpu")
    x = torch.from_numpy(features["x"]).to(where)
    labels = torch.from_numpy(features["labels"]).long().to(where)
    pointers = torch.from_numpy(graph.row_offsets.astype(np.int64)).to(where)
    columns = torch.from_numpy(graph.senders.astype(np.int64)).to(where)
    values = torch.ones(graph.num_edges, device=where)
    adjacency = torch.sparse_csr_tensor(pointers, columns, values, (graph.num_nodes,) * 2)
    del pointers, columns, values
    model = Model(parameters, layers).to(where)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x, adjacency), labels)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss().backward()
        optimiser.step()

    def seconds(count: int) -> float:
        if device == "gpu":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            step()
        if device == "gpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def peak_bytes() -> int | None:
        if device == "gpu":
            return torch.cuda.max_memory_allocated()
        return timing.peak_process_bytes()

    def check() -> tuple[float, dict[str, np.ndarray]]:
        fresh = Model(parameters, layers).to(where)
        value = torch.nn.functional.cross_entropy(fresh(x, adjacency), labels)
        value.backward()
        gradients = {}
        for name, parameter in fresh.named(layers).items():
            assert parameter.grad is not None
            gradient = parameter.grad.cpu().numpy()
            gradients[name] = gradient if gradient.ndim == 1 else gradient.T
        return value.item(), gradients

    return Job(seconds, peak_bytes, check)
