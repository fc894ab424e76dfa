"""The models of the training steps in PyTorch, TF32 products allowed.

PyG by its best path for a model: GraphSAGE over a `torch.sparse` adjacency, models whose messages
belong to edges over an `edge_index`. And without PyG, the aggregation by hand: the CSR of A and of
its transpose in an autograd function, by the fastest algorithm of cuSPARSE (torch's CSR product on
the CPU), around the narrower side of a layer, as jaxgnn has it.
"""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.harness import plan, timing
from benchmarks.harness.graphs import StoredGraph
from benchmarks.harness.job import Unsupported
from benchmarks.harness.steps import (
    EDGE_MODELS,
    LOOPED_MODELS,
    NORM_EPSILON,
    Arrays,
    Setting,
    Step,
    layer_parameters,
)

warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")
Inputs = dict[str, np.ndarray]


class Model(torch.nn.Module):
    """Convolutions, with what `benchmarks.harness.steps.Setting` puts around them."""

    def __init__(self, setting: Setting, inputs: Inputs, structure: Any) -> None:
        super().__init__()
        by_hand = setting.impl == plan.CUSPARSE_STEP
        layers = layer_parameters(inputs)
        make, self._places = (_by_hand if by_hand else _pyg_layer)(setting, structure, layers[0])
        self.convs = torch.nn.ModuleList(map(make, layers))
        norms = [name.split(".")[1] for name in inputs if name.startswith("norms.")]
        self.norms = torch.nn.ModuleDict(
            {
                layer: torch.nn.LayerNorm(inputs[f"norms.{layer}.scale"].shape, eps=NORM_EPSILON)
                for layer in dict.fromkeys(norms)
            }
        )
        self.ends = torch.nn.ModuleDict(
            {
                end: torch.nn.Linear(*inputs[name].shape)
                for end in ("linear_in", "linear")
                if (name := f"{end}.kernel") in inputs
            }
        )
        self._after_convolution = setting.model != "agnn"
        self._after_last = setting.input_layer
        self._rate = plan.DROPOUT_RATE if setting.regularized else 0.0
        self._structure = None if by_hand else structure

    def named(self) -> dict[str, torch.nn.Parameter]:
        """The parameters under the names of the inputs."""
        names = {
            f"convs.{layer}.{kind}": conv.get_parameter(place)
            for layer, conv in enumerate(self.convs)
            for kind, place in self._places.items()
        }
        for layer, norm in self.norms.items():
            names[f"norms.{layer}.scale"] = norm.get_parameter("weight")
            names[f"norms.{layer}.bias"] = norm.get_parameter("bias")
        for end, linear in self.ends.items():
            names[f"{end}.kernel"] = linear.get_parameter("weight")
            names[f"{end}.bias"] = linear.get_parameter("bias")
        return names

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        structure = () if self._structure is None else (self._structure,)
        if self.ends:
            x = self._after(self.ends["linear_in"](x), "in")
        for layer, conv in enumerate(self.convs):
            x = conv(x, *structure)
            last = layer == len(self.convs) - 1
            if self._after_convolution and (self._after_last or not last):
                x = self._after(x, str(layer))
        return self.ends["linear"](x) if self.ends else x

    def _after(self, x: torch.Tensor, layer: str) -> torch.Tensor:
        """Normalization, activation and dropout of hidden rows."""
        if layer in self.norms:
            x = self.norms[layer](x).to(x.dtype)  # autocast leaves it in float32
        return functional.dropout(x.relu(), self._rate, self.training)


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
            looped = model in ("gcn", "gin")
            offsets, columns = (
                graph.with_self_loops(backward=backward)
                if looped
                else graph.rows(backward=backward)
            )
            rows = np.repeat(np.arange(graph.num_nodes), np.diff(offsets))
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

        if self._cusparse is None:
            self._cusparse = cusparse.CuSparse()
        x, products = x.contiguous(), {}
        for algorithm in cusparse.ALGORITHMS:
            out = torch.empty_like(x)
            product = self._cusparse.product(offsets, columns, values, x, out, algorithm)
            product()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(3):
                product()
            end.record()
            end.synchronize()
            products[product] = start.elapsed_time(end)
        best = min(products, key=products.__getitem__)
        for product in products:
            if product is not best:
                product.close()
        return best.of


class _ByHand(torch.nn.Module):
    """A convolution whose aggregation is one sparse product, of the narrower of its two sides."""

    def __init__(self, inputs: Inputs, model: str, matrices: Matrices) -> None:
        super().__init__()
        self._model, self._matrices = model, matrices
        for kind, array in inputs.items():
            self.register_parameter(_attribute(kind), torch.nn.Parameter(torch.tensor(array)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = {name: value.to(x.dtype) for name, value in self.named_parameters()}
        if self._model == "sage":
            out = self._around(own["linear_neighbors_kernel"], x) + own["linear_neighbors_bias"]
            return torch.addmm(out, x, own["linear_root_kernel"])
        if self._model == "gcn":
            return self._around(own["linear_kernel"], x) + own["linear_bias"]
        hidden = self._around(own["nn_linears_0_kernel"], x) + own["nn_linears_0_bias"]
        scale, shift = own["nn_norms_0_scale"], own["nn_norms_0_bias"]
        hidden = functional.layer_norm(hidden, scale.shape, scale, shift, NORM_EPSILON)
        return torch.addmm(own["nn_linears_1_bias"], hidden.relu(), own["nn_linears_1_kernel"])

    def _around(self, kernel: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The aggregation and the projection, in the cheaper order."""
        if kernel.shape[1] < kernel.shape[0]:
            return self._aggregate(x @ kernel)
        return self._aggregate(x) @ kernel

    def _aggregate(self, x: torch.Tensor) -> torch.Tensor:
        result: Any = _Product.apply(x, self._matrices)
        return result


def _by_hand(setting: Setting, structure: Any, layer: Inputs) -> tuple[Any, dict[str, str]]:
    make = functools.partial(_ByHand, model=setting.model, matrices=structure)
    return make, {kind: _attribute(kind) for kind in layer}


def _attribute(kind: str) -> str:
    return kind.replace(".", "_")


# PyG's layers.


def _pyg_layer(setting: Setting, structure: Any, layer: Inputs) -> tuple[Any, dict[str, str]]:
    """How a layer is made, and where it keeps the parameters that the inputs name."""
    del structure, layer
    from torch_geometric import nn

    def sage(inputs: Inputs) -> torch.nn.Module:
        return nn.SAGEConv(*inputs["linear_neighbors.kernel"].shape, aggr="mean")

    def gat(inputs: Inputs) -> torch.nn.Module:
        heads, features = inputs["attention_senders"].shape
        width = inputs["linear.kernel"].shape[0]
        return nn.GATConv(width, features, heads=heads, add_self_loops=False)

    def gatv2(inputs: Inputs) -> torch.nn.Module:
        heads, features = inputs["attention"].shape
        width = inputs["linear_senders.kernel"].shape[0]
        return nn.GATv2Conv(width, features, heads=heads, add_self_loops=False)

    def edge_conv(inputs: Inputs) -> torch.nn.Module:
        return nn.EdgeConv(torch.nn.Linear(*inputs["linear.kernel"].shape), aggr="max")

    layers: dict[str, tuple[Any, dict[str, str]]] = {
        "sage": (
            sage,
            {
                "linear_neighbors.kernel": "lin_l.weight",
                "linear_neighbors.bias": "lin_l.bias",
                "linear_root.kernel": "lin_r.weight",
            },
        ),
        "gat": (
            gat,
            {
                "linear.kernel": "lin.weight",
                "attention_senders": "att_src",
                "attention_receivers": "att_dst",
                "bias": "bias",
            },
        ),
        "gatv2": (
            gatv2,
            {
                "linear_senders.kernel": "lin_l.weight",
                "linear_senders.bias": "lin_l.bias",
                "linear_receivers.kernel": "lin_r.weight",
                "linear_receivers.bias": "lin_r.bias",
                "attention": "att",
                "bias": "bias",
            },
        ),
        "agnn": (lambda inputs: nn.AGNNConv(add_self_loops=False), {"beta": "beta"}),
        "edgeconv": (edge_conv, {"linear.kernel": "nn.weight", "linear.bias": "nn.bias"}),
        "monet": (
            _DegreeGMMConv,
            {
                "conv.linear.kernel": "conv.g",
                "conv.linear_root.kernel": "conv.root.weight",
                "conv.mu": "conv.mu",
                "conv.sigma": "conv.sigma",
                "linear.kernel": "linear.weight",
                "linear.bias": "linear.bias",
                "conv.bias": "conv.bias",
            },
        ),
    }
    return layers[setting.model]


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
    if setting.model not in EDGE_MODELS:
        pointers, columns = (
            torch.from_numpy(array.astype(np.int64)).to(where)
            for array in graph.rows(backward=False)
        )
        values = torch.ones(graph.num_edges, dtype=dtype, device=where)
        return torch.sparse_csr_tensor(pointers, columns, values, (graph.num_nodes,) * 2)
    # A layer that adds the attention's self-loops does so in each call: they are among the edges.
    looped = setting.model in LOOPED_MODELS
    offsets, senders = graph.with_self_loops() if looped else graph.rows(backward=False)
    receivers = np.repeat(np.arange(graph.num_nodes), np.diff(offsets))
    return torch.from_numpy(np.stack([senders, receivers]).astype(np.int64)).to(where)


def step(
    setting: Setting,
    graph: StoredGraph,
    features: Arrays,
    parameters: Arrays,
    device: str,
    threads: int,
) -> Step:
    """The training step on the CPU or the GPU; bfloat16 by autocast, as PyTorch's users have it."""
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    where = torch.device("cuda" if device == "gpu" else "cpu")
    dtype = getattr(torch, setting.dtype)
    x = torch.from_numpy(features["x"]).to(where).to(dtype)
    labels = torch.from_numpy(features["labels"]).long().to(where)
    structure = _structure(setting, graph, where)

    def make() -> Any:
        model = Model(setting, parameters, structure)
        with torch.no_grad():
            for name, parameter in model.named().items():
                parameter.copy_(_there(setting, name, parameters[name], parameter.ndim))
        return model.to(where)

    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(model: Any) -> torch.Tensor:
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

    def seconds(count: int) -> float:
        wait = torch.cuda.synchronize if device == "gpu" else lambda: None
        wait()
        start = time.perf_counter()
        for _ in range(count):
            one_step()
        wait()
        return time.perf_counter() - start

    def peak_bytes() -> int | None:
        if device == "gpu":
            return torch.cuda.max_memory_allocated()
        return timing.peak_process_bytes()

    def gradients() -> tuple[float, float, Arrays]:
        # Of a model that is not continuous, the gradients of float32 products.
        torch.backends.cuda.matmul.allow_tf32 = setting.continuous
        fresh = make()
        fresh.eval()
        value = loss(fresh)
        value.backward()
        found = {}
        for name, parameter in fresh.named().items():
            assert parameter.grad is not None
            found[name] = _here(setting, name, parameter.grad.cpu()).numpy()
        return first[0].item() if first else value.item(), value.item(), found

    return Step(seconds, peak_bytes, gradients)


def _is_transposed(setting: Setting, name: str) -> bool:
    """Whether the layer keeps this kernel in PyTorch's layout; PyG's Gaussians keep none."""
    if name.endswith(("conv.linear.kernel", "conv.mu", "conv.sigma")):
        return False
    return setting.impl != plan.CUSPARSE_STEP or not name.startswith("convs.")


def _there(setting: Setting, name: str, array: np.ndarray, ndim: int) -> torch.Tensor:
    """An input in PyTorch's layout: kernels transposed, one axis more for attention's vectors."""
    value = torch.from_numpy(array)
    if value.ndim == 2 and _is_transposed(setting, name):
        return value[None] if ndim == 3 else value.T
    return value


def _here(setting: Setting, name: str, value: torch.Tensor) -> torch.Tensor:
    """The inverse of `_there`."""
    if value.ndim == 3:
        return value[0]
    return value.T if value.ndim == 2 and _is_transposed(setting, name) else value
