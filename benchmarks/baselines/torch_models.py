"""The models of the training steps in PyTorch.

PyG by its best path for a model: GraphSAGE over a `torch.sparse` adjacency, models whose messages
belong to edges over an `edge_index`, GCN over either, normalized in the first call. And without
PyG, the aggregation by hand: the CSR of A and of its transpose in an autograd function, by the
fastest algorithm of cuSPARSE (torch's CSR product on the CPU), around the narrower side of a layer,
as jaxgnn has it.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.baselines.torch_operations import gpu_seconds
from benchmarks.harness import plan, timing
from benchmarks.harness.graphs import StoredGraph, row_ids
from benchmarks.harness.job import Job, Unsupported
from benchmarks.harness.setting import NORM_EPSILON, Arrays, Setting, layer_parameters

warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")
Inputs = dict[str, np.ndarray]

# Where PyG's layers keep the parameters that the inputs name.
_PLACES = {
    "sage": {
        "linear_neighbors.kernel": "lin_l.weight",
        "linear_neighbors.bias": "lin_l.bias",
        "linear_root.kernel": "lin_r.weight",
    },
    "gcn": {"linear.kernel": "lin.weight", "linear.bias": "bias"},
    "gat": {
        "linear.kernel": "lin.weight",
        "attention_senders": "att_src",
        "attention_receivers": "att_dst",
        "bias": "bias",
    },
    "gatv2": {
        "linear_senders.kernel": "lin_l.weight",
        "linear_senders.bias": "lin_l.bias",
        "linear_receivers.kernel": "lin_r.weight",
        "linear_receivers.bias": "lin_r.bias",
        "attention": "att",
        "bias": "bias",
    },
    "agnn": {"beta": "beta"},
    "edgeconv": {"linear.kernel": "nn.weight", "linear.bias": "nn.bias"},
    "monet": {
        "conv.linear.kernel": "conv.g",
        "conv.linear_root.kernel": "conv.root.weight",
        "conv.mu": "conv.mu",
        "conv.sigma": "conv.sigma",
        "linear.kernel": "linear.weight",
        "linear.bias": "linear.bias",
        "conv.bias": "conv.bias",
    },
}


class Model(torch.nn.Module):
    """Convolutions, with what `benchmarks.harness.setting.Setting` puts around them."""

    def __init__(self, setting: Setting, inputs: Inputs, structure: Any) -> None:
        super().__init__()
        self._setting, self._inputs, self._structure = setting, inputs, structure
        layers = layer_parameters(inputs)
        self._by_hand = setting.impl == plan.CUSPARSE_STEP
        if self._by_hand:
            convs = [_ByHand(own, setting.model) for own in layers]
            self._places = {kind: kind.replace(".", "_") for kind in layers[0]}
        else:
            convs = [_pyg_layer(setting.model, own) for own in layers]
            self._places = _PLACES[setting.model]
        self.convs = torch.nn.ModuleList(convs)
        self.norms, self.ends = torch.nn.ModuleDict(), torch.nn.ModuleDict()
        for name, value in inputs.items():
            parts = name.split(".")
            if parts[0] == "norms" and parts[2] == "scale":
                self.norms[parts[1]] = torch.nn.LayerNorm(value.shape, eps=NORM_EPSILON)
            if name in ("linear_in.kernel", "linear.kernel"):
                self.ends[parts[0]] = torch.nn.Linear(*value.shape)
        with torch.no_grad():
            for name, parameter in self.named().items():
                value = self._layout(name, torch.from_numpy(inputs[name]))
                parameter.copy_(value.reshape(parameter.shape))

    def named(self) -> dict[str, torch.nn.Parameter]:
        """The parameters under the names of the inputs."""
        names = {
            f"convs.{layer}.{kind}": conv.get_parameter(place)
            for layer, conv in enumerate(self.convs)
            for kind, place in self._places.items()
        }
        for prefix, kind, modules in (("norms.", "scale", self.norms), ("", "kernel", self.ends)):
            for name, module in modules.items():
                names[f"{prefix}{name}.{kind}"] = module.get_parameter("weight")
                names[f"{prefix}{name}.bias"] = module.get_parameter("bias")
        return names

    def gradients(self) -> Arrays:
        """Those of the parameters, in the layout of the inputs."""
        found = {}
        for name, parameter in self.named().items():
            assert parameter.grad is not None
            value = self._layout(name, parameter.grad.cpu())
            found[name] = value.reshape(self._inputs[name].shape).numpy()
        return found

    def _layout(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Kernels are transposed, but for those by hand and of PyG's Gaussians."""
        own = self._by_hand and name.startswith("convs.")
        kernel = name.endswith("kernel") and not name.endswith("conv.linear.kernel")
        return value.T if kernel and not own else value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ends:
            x = self._after(self.ends["linear_in"](x), "in")
        for layer, conv in enumerate(self.convs):
            x = conv(x, self._structure)
            hidden = self._setting.input_layer or layer < len(self.convs) - 1
            if hidden and self._setting.model != "agnn":
                x = self._after(x, str(layer))
        return self.ends["linear"](x) if self.ends else x

    def _after(self, x: torch.Tensor, layer: str) -> torch.Tensor:
        """Normalization, activation and dropout of hidden rows."""
        if layer in self.norms:
            x = self.norms[layer](x).to(x.dtype)  # autocast leaves it in float32
        rate = plan.DROPOUT_RATE if self._setting.regularized else 0.0
        return functional.dropout(x.relu(), rate, self.training)


# The aggregation by hand.


class _Product(torch.autograd.Function):
    """A sparse product whose gradient is the product with the transpose."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, matrices: Matrices) -> torch.Tensor:
        ctx.matrices = matrices
        return matrices.product(x, backward=False)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        return ctx.matrices.product(cotangents[0], backward=True), None


class Matrices:
    """The matrix of a model's aggregation in CSR, and its transpose.

    The mean's divisors, GCN's normalization and the self-loops of GCN and GIN are among the
    matrix's values and entries: the product is all that is left to do in a step.
    """

    def __init__(self, graph: StoredGraph, model: str, dtype: torch.dtype, where: Any) -> None:
        self._parts, self._prepared, self._cusparse = [], {}, None
        degrees = np.diff(graph.row_offsets).astype(np.float32)
        for backward in (False, True):
            offsets, columns = graph.rows(backward=backward, loops=model in ("gcn", "gin"))
            rows = row_ids(offsets)
            if model == "sage":  # divided by the degrees of the receivers
                values = 1 / np.maximum(degrees, 1)[columns if backward else rows]
            elif model == "gcn":
                scale = 1 / np.sqrt(degrees + 1)
                values = scale[rows] * scale[columns]
            else:
                values = np.ones(columns.size, np.float32)
            arrays = (np.array(offsets, np.int32), np.array(columns), values)
            offsets, columns, values = (torch.from_numpy(array).to(where) for array in arrays)
            self._parts.append((offsets, columns, values.to(dtype)))
        self._shape = (graph.num_nodes,) * 2

    def product(self, x: torch.Tensor, *, backward: bool) -> torch.Tensor:
        key = (backward, x.shape[1])
        if key not in self._prepared:
            self._prepared[key] = self._prepare(x, backward)
        return self._prepared[key](x)

    def _prepare(self, x: torch.Tensor, backward: bool) -> Callable[[torch.Tensor], torch.Tensor]:
        """The fastest algorithm for rows of this width."""
        offsets, columns, values = self._parts[backward]
        if x.device.type == "cpu":
            if x.dtype != torch.float32:
                raise Unsupported(f"torch on the CPU has no CSR product in {x.dtype}")
            matrix = torch.sparse_csr_tensor(offsets, columns, values, self._shape)
            return lambda x: matrix @ x
        from benchmarks.baselines import cusparse

        self._cusparse = self._cusparse or cusparse.CuSparse()
        x, products = x.contiguous(), {}
        for algorithm in cusparse.ALGORITHMS:
            parts = (offsets, columns, values, x, torch.empty_like(x))
            product = cusparse.Product(self._cusparse, *parts, algorithm)
            product()
            products[product] = gpu_seconds(product, 3)
        best = min(products, key=products.__getitem__)
        for product in products:
            if product is not best:
                product.close()
        return best.of


class _ByHand(torch.nn.Module):
    """A convolution whose aggregation is one sparse product, of the narrower of its two sides."""

    def __init__(self, inputs: Inputs, model: str) -> None:
        super().__init__()
        self._model = model
        for kind, array in inputs.items():
            self.register_parameter(kind.replace(".", "_"), torch.nn.Parameter(torch.tensor(array)))

    def forward(self, x: torch.Tensor, matrices: Matrices) -> torch.Tensor:
        own = {name: value.to(x.dtype) for name, value in self.named_parameters()}

        def around(kernel: torch.Tensor) -> Any:
            """The aggregation and the projection, in the cheaper order."""
            if kernel.shape[1] < kernel.shape[0]:
                return _Product.apply(x @ kernel, matrices)
            return _Product.apply(x, matrices) @ kernel

        if self._model == "sage":
            out = around(own["linear_neighbors_kernel"]) + own["linear_neighbors_bias"]
            return torch.addmm(out, x, own["linear_root_kernel"])
        if self._model == "gcn":
            return around(own["linear_kernel"]) + own["linear_bias"]
        hidden = around(own["nn_linears_0_kernel"]) + own["nn_linears_0_bias"]
        scale, shift = own["nn_norms_0_scale"], own["nn_norms_0_bias"]
        hidden = functional.layer_norm(hidden, scale.shape, scale, shift, NORM_EPSILON)
        return torch.addmm(own["nn_linears_1_bias"], hidden.relu(), own["nn_linears_1_kernel"])


# PyG's layers.


def _pyg_layer(model: str, inputs: Inputs) -> torch.nn.Module:
    from torch_geometric import nn

    if model == "sage":
        return nn.SAGEConv(*inputs["linear_neighbors.kernel"].shape, aggr="mean")
    if model == "gcn":
        return nn.GCNConv(*inputs["linear.kernel"].shape, cached=True)
    if model == "gat":
        heads, features = inputs["attention_senders"].shape
        width = inputs["linear.kernel"].shape[0]
        return nn.GATConv(width, features, heads=heads, add_self_loops=False)
    if model == "gatv2":
        heads, features = inputs["attention"].shape
        width = inputs["linear_senders.kernel"].shape[0]
        return nn.GATv2Conv(width, features, heads=heads, add_self_loops=False)
    if model == "edgeconv":
        return nn.EdgeConv(torch.nn.Linear(*inputs["linear.kernel"].shape), aggr="max")
    return _DegreeGMMConv(inputs) if model == "monet" else nn.AGNNConv(add_self_loops=False)


class _DegreeGMMConv(torch.nn.Module):
    """PyG's layer on coordinates made of the degrees, which are counted in the first call."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        from torch_geometric.nn import GMMConv

        kernels, coordinates = inputs["conv.mu"].shape
        self.conv = GMMConv(*inputs["conv.linear_root.kernel"].shape, coordinates, kernels)
        self.linear = torch.nn.Linear(2, coordinates)
        self._ends: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        if self._ends is None:
            counts = [torch.bincount(ends, minlength=x.shape[0])[ends] for ends in edge_index]
            self._ends = torch.stack(counts[::-1], dim=1).to(x.dtype).rsqrt()
        return self.conv(x, edge_index, self.linear(self._ends).tanh())


def _structure(setting: Setting, graph: StoredGraph, where: torch.device) -> Any:
    """What the layers aggregate over: matrices by hand, PyG's adjacency or edges."""
    dtype = getattr(torch, setting.dtype)
    if setting.impl == plan.CUSPARSE_STEP:
        return Matrices(graph, setting.model, dtype, where)
    if setting.impl == plan.PYG_ADJ:
        pointers, columns = (
            torch.from_numpy(array.astype(np.int64)).to(where) for array in graph.rows()
        )
        values = torch.ones(graph.num_edges, dtype=dtype, device=where)
        return torch.sparse_csr_tensor(pointers, columns, values, (graph.num_nodes,) * 2)
    # A layer that adds the attention's self-loops does so in each call: they are among the edges.
    offsets, senders = graph.rows(loops=setting.model in plan.LOOPED_MODELS)
    return torch.from_numpy(np.stack([senders, row_ids(offsets)]).astype(np.int64)).to(where)


def step(
    setting: Setting,
    graph: StoredGraph,
    features: Arrays,
    parameters: Arrays,
    device: str,
    threads: int,
) -> Job:
    """The training step on the CPU or the GPU; bfloat16 by autocast, as PyTorch's users have it."""
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = setting.tf32
    where = torch.device("cuda" if device == "gpu" else "cpu")
    dtype = getattr(torch, setting.dtype)
    x = torch.from_numpy(features["x"]).to(where).to(dtype)
    labels = torch.from_numpy(features["labels"]).long().to(where)
    structure = _structure(setting, graph, where)

    def make() -> Model:
        return Model(setting, parameters, structure).to(where)

    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(model: Model) -> torch.Tensor:
        narrow = setting.dtype != "float32"
        cast = torch.autocast(where.type, dtype) if narrow else contextlib.nullcontext()
        with cast:
            return functional.cross_entropy(model(x).float(), labels)

    first: list[torch.Tensor] = []

    def one_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        value = loss(model)
        value.backward()
        optimizer.step()
        if not first:
            first.append(value.detach())
            if device == "gpu":  # without what the choice of an algorithm took
                torch.cuda.reset_peak_memory_stats()

    def forward() -> torch.Tensor:
        cast = torch.autocast(where.type, dtype) if setting.dtype != "float32" else None
        with torch.no_grad(), cast or contextlib.nullcontext():
            return model(x)

    if setting.forward:
        model.eval()
    call = forward if setting.forward else one_step

    def seconds(count: int) -> float:
        wait = torch.cuda.synchronize if device == "gpu" else lambda: None
        wait()
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        return time.perf_counter() - start

    def peak_bytes() -> int | None:
        if device == "gpu":
            return torch.cuda.max_memory_allocated()
        return timing.process_bytes("VmHWM")

    def gradients() -> tuple[float, float, Arrays]:
        # Of a model that is not continuous, the gradients of float32 products.
        torch.backends.cuda.matmul.allow_tf32 = setting.tf32 and setting.continuous
        fresh = make()
        fresh.eval()
        value = loss(fresh)
        value.backward()
        return first[0].item() if first else value.item(), value.item(), fresh.gradients()

    def rows(rows: np.ndarray) -> np.ndarray:
        return forward()[torch.from_numpy(rows).to(where)].float().cpu().numpy()

    return Job(seconds, peak_bytes, gradients=gradients, rows=rows)
