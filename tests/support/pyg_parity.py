"""One module in PyG and here, with the same weights: values and every gradient side by side."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import torch
from flax import nnx

from jaxgnn import Graph

# Sums of another order, those of a GPU, may round twice as far from PyTorch's on the CPU.
TOLERANCE = 2e-5 if jax.default_backend() == "gpu" else 1e-5

# Those of an attention's two ends.
_OF_ENDS = {"lin_l": "linear_senders", "lin_r": "linear_receivers"}

# PyTorch's names, where they differ; `lin` depends on the module.
_NAMES = {
    "lins": "linears",
    "lin_l": "linear_neighbors",
    "lin_r": "linear_root",
    "lin_src": "linear_senders",
    "lin_dst": "linear_receivers",
    "lin_edge": "linear_edges",
    "res": "linear_residual",
    "att_src": "attention_senders",
    "att_dst": "attention_receivers",
    "att_edge": "attention_edges",
    "root": "linear_root",
    "edge_encoder": "linear_edges",
    "lin_key": "linear_key",
    "lin_query": "linear_query",
    "lin_value": "linear_value",
    "lin_skip": "linear_skip",
    "lin_beta": "linear_beta",
    "att": "attention",
    "running_mean": "mean",
    "running_var": "var",
}


class Edges(NamedTuple):
    """A graph in the user's edge order, which PyG sees as it is."""

    senders: np.ndarray
    receivers: np.ndarray
    num_senders: int
    num_receivers: int
    graph: Graph

    @classmethod
    def of(cls, senders, receivers, num_nodes) -> "Edges":
        graph = Graph.from_edges(senders, receivers, num_nodes=num_nodes)
        return cls(np.asarray(senders), np.asarray(receivers), num_nodes, num_nodes, graph)

    @classmethod
    def of_graph(cls, graph: Graph) -> "Edges":
        """The edges of a graph in a random order, so that the two orders differ."""
        shuffled = np.random.default_rng(0).permutation(graph.num_edges)
        senders = np.asarray(graph.senders)[shuffled]
        return cls.of(senders, np.asarray(graph.receivers)[shuffled], graph.num_receivers)

    @property
    def index(self) -> torch.Tensor:
        return torch.from_numpy(np.stack([self.senders, self.receivers]).astype(np.int64))


def path_here(name: str, lin: str = "linear", own_bias: bool = False) -> tuple[Any, ...]:
    """Where the PyTorch parameter `name` lives in our module.

    A convolution's bias is that of its product, unless it has its `own_bias`, as an attention and
    Gaussians have.
    """
    parts = [part for part in name.split(".") if part != "module"]
    if parts[0] in ("pre_nns", "post_nns"):  # PNAConv's: every second one is an activation
        kind = "kernel" if parts[-1] == "weight" else "bias"
        return parts[0][:-4], int(parts[1]), "linears", int(parts[2]) // 2, kind
    if parts[-1] == "g":  # GMMConv's one product
        return "linear", "kernel"
    if parts[0] == "nn" and (len(parts) == 2 or lin != "linear"):
        parts[0] = lin  # EdgeConv's one product, or its `mlp`
    normalization = "norms" in parts
    if parts[-1] == "weight":
        parts[-1] = "scale" if normalization else "kernel"
    of_product = len(parts) == 1 or parts[-3:-2] == ["convs"]
    if parts[-1] == "bias" and of_product and not own_bias:
        parts.insert(-1, "linear")
    renamed = [lin if part == "lin" and parts[0] != "lin" else part for part in parts]
    renamed = ["linear" if part == "lin" else _NAMES.get(part, part) for part in renamed]
    if len(parts) == 2 and parts[0] == "lin":
        renamed[0] = lin
    if own_bias:
        renamed = [_OF_ENDS.get(part, ours) for part, ours in zip(parts, renamed, strict=True)]
    return tuple(int(part) if part.isdigit() else part for part in renamed)


def _here(name: str, value: torch.Tensor) -> np.ndarray:
    """The PyTorch value in our layout: kernels are transposed, epsilon is a scalar."""
    array = value.detach().numpy()
    if name.split(".")[-1] == "eps":
        return array.reshape(())
    if name in ("g", "mu", "sigma"):  # of Gaussians
        return array
    if array.ndim == 3:  # of an attention: [1, heads, features]
        return array[0]
    return array.T if array.ndim == 2 else array


def _has_own_bias(reference: torch.nn.Module) -> bool:
    own = ("att_src", "att", "sigma")
    parts = list(reference.modules())
    return any(getattr(part, name, None) is not None for part in parts for name in own)


def empty(create: Callable[[nnx.Rngs], nnx.Module]) -> nnx.Module:
    """A module that `copy_weights` fills in: drawn, each shape of its values would be compiled."""
    return nnx.eval_shape(lambda: create(nnx.Rngs(0)))


def copy_weights(reference: torch.nn.Module, module: nnx.Module, lin: str = "linear") -> None:
    """Overwrites all variables of `module` by those of `reference`; every one must be found."""
    state = nnx.state(module, (nnx.Param, nnx.BatchStat))
    missing = {path for path, _ in nnx.to_flat_state(state)}
    values, known = {}, set()
    for name, value in reference.state_dict().items():
        if value.data_ptr() in known and value.numel() > 0:
            continue  # another name of a shared parameter
        known.add(value.data_ptr())
        path = path_here(name, lin, _has_own_bias(reference))
        if path in missing:
            missing.remove(path)
            values[path] = jax.device_put(_here(name, value).copy())  # PyTorch changes its own
        else:
            ignored = ("num_batches_tracked", "eps", "avg_deg_lin", "avg_deg_log")
            assert name.endswith(ignored), f"{name}: no {path} here"
    assert not missing, f"not set: {missing}"
    flat = nnx.to_flat_state(state)
    for path, variable in flat:
        assert (variable.shape, variable.dtype) == (values[path].shape, values[path].dtype), path
        variable.set_value(values[path])
    nnx.update(module, state)


def error(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest entry of `theirs`."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    if theirs.size == 0:
        return 0.0
    scale = np.abs(theirs).max()
    return float(np.abs(ours - theirs).max() / (scale if scale > 0 else 1.0))


def assert_parity(
    reference: torch.nn.Module,
    module: nnx.Module,
    edges: Edges,
    x: np.ndarray | tuple[np.ndarray, np.ndarray | None],
    weights: np.ndarray | None = None,
    *,
    forward: Callable[..., torch.Tensor] | None = None,
    lin: str = "linear",
    tolerance: float = TOLERANCE,
    skip_weights: np.ndarray | None = None,
    vanishing: str | None = None,
) -> dict[str, float]:
    """Compares the values and the gradients of a random linear functional of them.

    The gradients are those for all parameters, the features and the edge weights. `weights` is
    in the user's order. `forward(reference, x, edge_index, weights)` replaces PyG's call where
    its layer takes no weights. Edges marked by `skip_weights` do not count in the gradient of
    the weights. Parameters whose path matches `vanishing` have the derivative 0 (a bias before
    batch normalization): both sides' rounding is held against the largest gradient instead.
    """
    copy_weights(reference, module, lin)
    pair = isinstance(x, tuple)
    features = tuple(
        None if rows is None else torch.from_numpy(rows).clone().requires_grad_()
        for rows in (x if pair else (x,))
    )
    edge_weights = None if weights is None else torch.from_numpy(weights).requires_grad_()
    given = features if pair else features[0]
    if forward is not None:
        out = forward(reference, given, edges.index, edge_weights)
    elif edge_weights is None:
        out = reference(given, edges.index)
    else:
        out = reference(given, edges.index, edge_weights)
    cotangent = np.random.default_rng(1).normal(size=out.shape)
    cotangent = cotangent.astype(out.detach().numpy().dtype)
    out.backward(torch.from_numpy(cotangent))

    graphdef, params, rest = nnx.split(module, nnx.Param, ...)

    @jax.jit
    def run(params, rest, graph, x, weights, cotangent):
        def call(params, x, weights):
            if weights is not None:
                weights = graph.sort_edge_data(weights)
            return nnx.merge(graphdef, params, rest, copy=True)(graph, x, weights)

        out, pullback = jax.vjp(call, params, x, weights)
        return out, *pullback(cotangent)

    values, d_params, d_x, d_weights = run(params, rest, edges.graph, x, weights, cotangent)
    errors = {"values": error(values, out.detach())}
    gradients = {
        path: (np.asarray(ours[...]), _gradient(reference, path, lin))
        for path, ours in nnx.to_flat_state(d_params)
    }
    largest = max((np.abs(theirs).max() for _, theirs in gradients.values()), default=0)
    for path, (ours, theirs) in gradients.items():
        name = ".".join(map(str, path))
        if vanishing is not None and re.search(vanishing, name):
            errors[name] = max(np.abs(ours).max(), np.abs(theirs).max()) / largest
        else:
            errors[name] = error(ours, theirs)
    for i, rows in enumerate(features):
        if rows is not None:
            errors[f"x[{i}]"] = error(d_x[i] if pair else d_x, rows.grad)
    if weights is not None:
        kept = slice(None) if skip_weights is None else ~skip_weights
        errors["weights"] = error(d_weights[kept], edge_weights.grad.numpy()[kept])
    assert max(errors.values()) <= tolerance, errors
    return errors


def _gradient(reference: torch.nn.Module, path: tuple[Any, ...], lin: str) -> np.ndarray:
    for name, value in reference.named_parameters():
        if path_here(name, lin, _has_own_bias(reference)) == path:
            # Of a term that is skipped there is none: 0.
            return _here(name, torch.zeros_like(value) if value.grad is None else value.grad)
    raise AssertionError(f"{path}: no such parameter in PyG's module")
