"""The training step in PyG, by its best path for a model, TF32 products allowed.

GraphSAGE over a `torch.sparse` adjacency; the models of the suite `attention` over the edges, for
their convolutions take nothing else.
"""

from __future__ import annotations

import functools
import time
import warnings
from typing import Any

import numpy as np
import torch
from torch_geometric.nn import SAGEConv

from benchmarks import timing
from benchmarks.graphs import StoredGraph
from benchmarks.training import EDGE_MODELS, Setting, layers_in
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

    def named(self) -> dict[str, torch.nn.Parameter]:
        """The parameters under the names of the inputs."""
        names = {}
        if self.linear_in is not None:
            names |= {"kernel_in": self.linear_in.weight, "bias_in": self.linear_in.bias}
        convs: Any = self.convs
        for layer, conv in enumerate(convs):
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


def adjacency(graph: StoredGraph, where: torch.device) -> torch.Tensor:
    """The graph as a `torch.sparse` matrix of ones."""
    pointers = torch.from_numpy(graph.row_offsets.astype(np.int64)).to(where)
    columns = torch.from_numpy(graph.senders.astype(np.int64)).to(where)
    values = torch.ones(graph.num_edges, device=where)
    return torch.sparse_csr_tensor(pointers, columns, values, (graph.num_nodes,) * 2)


def job(
    setting: Setting,
    graph: StoredGraph,
    features: dict[str, np.ndarray],
    parameters: dict[str, np.ndarray],
    device: str,
    threads: int,
) -> Job:
    """The training step on the CPU or the GPU."""
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    where = torch.device("cuda" if device == "gpu" else "cpu")
    x = torch.from_numpy(features["x"]).to(where)
    labels = torch.from_numpy(features["labels"]).long().to(where)
    layers = layers_in(parameters)
    if setting.model in EDGE_MODELS:
        from benchmarks import attention_pyg

        structure = attention_pyg.edge_index(graph, setting.model).to(where)
        new = functools.partial(attention_pyg.Model, parameters, setting.model, layers)
    else:
        structure = adjacency(graph, where)
        new = functools.partial(Model, parameters, layers)

    def make() -> Any:
        model: Any = new()
        with torch.no_grad():
            for name, parameter in model.named().items():
                parameter.copy_(_there(name, torch.from_numpy(parameters[name]), parameter.ndim))
        return model.to(where)

    model = make()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss() -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x, structure), labels)

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
        # Of a model that is not continuous, the gradients of float32 products.
        torch.backends.cuda.matmul.allow_tf32 = setting.continuous
        fresh = make()
        value = torch.nn.functional.cross_entropy(fresh(x, structure), labels)
        value.backward()
        gradients = {}
        for name, parameter in fresh.named().items():
            assert parameter.grad is not None
            gradient = parameter.grad.cpu()
            gradients[name] = _here(name, gradient).numpy()
        return value.item(), gradients

    return Job(seconds, peak_bytes, check)


# Kinds that PyG's Gaussians keep as the inputs have them.
_AS_THEY_ARE = ("mixture", "mu", "sigma")


def _there(name: str, value: torch.Tensor, ndim: int) -> torch.Tensor:
    """An input in PyTorch's layout: kernels transposed, one axis more for attention's vectors."""
    if value.ndim == 2 and not name.startswith(_AS_THEY_ARE):
        return value[None] if ndim == 3 else value.T
    return value


def _here(name: str, value: torch.Tensor) -> torch.Tensor:
    """The inverse of `_there`."""
    if value.ndim == 3:
        return value[0]
    return value.T if value.ndim == 2 and not name.startswith(_AS_THEY_ARE) else value
