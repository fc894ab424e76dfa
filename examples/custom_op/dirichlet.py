"""The Dirichlet energy of each node, by kernels built outside of jaxgnn.

docs/adding-an-operation.md explains it. Build it with CMakeLists.txt, then

    python examples/custom_op/dirichlet.py
"""

from __future__ import annotations

import importlib
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32

from jaxgnn import Graph

# The modules that were built, by the platform's names in JAX's lowering and in its registry.
PLATFORMS = []
for platform, registry in (("cpu", "cpu"), ("cuda", "CUDA")):
    try:
        module = importlib.import_module(f"_dirichlet_{platform}")
    except ImportError:
        continue
    for target, handler in module.registrations().items():
        jax.ffi.register_ffi_target(target, handler, platform=registry)
    PLATFORMS.append(platform)


def dirichlet_energy(graph: Graph, x: Float32[Array, "nodes features"]) -> Float32[Array, "nodes"]:
    r"""How much a node's features differ from its neighbours'.

    $$y_i = \sum_{j \to i} \lVert x_j - x_i \rVert^2$$

    Differentiable once, in reverse mode. Platforms without the module run the reference.

    Raises:
        TypeError: `graph` is no `Graph`.
        ValueError: the graph is not square, or `x` is not float32 [nodes, features].
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"graph: expected a jaxgnn.Graph, got {type(graph).__name__}")
    if graph.num_senders != graph.num_receivers:
        raise ValueError(
            f"graph: expected as many senders as receivers, "
            f"got {graph.num_senders} and {graph.num_receivers}"
        )
    if x.ndim != 2 or x.shape[0] != graph.num_receivers or x.dtype != jnp.float32:
        raise ValueError(
            f"x: expected float32 [{graph.num_receivers}, features], got {x.dtype} {list(x.shape)}"
        )
    return _energy(graph, x)


def reference(graph: Graph, x: Float32[Array, "nodes features"]) -> Float32[Array, "nodes"]:
    """The same in JAX, with O(E) intermediates."""
    squares = jnp.sum((x[graph.senders] - x[graph.receivers]) ** 2, axis=1)
    return jax.ops.segment_sum(squares, graph.receivers, graph.num_receivers)


@jax.custom_vjp
def _energy(graph: Graph, x: Array) -> Array:
    def kernel(graph: Graph, x: Array) -> Array:
        result = jax.ShapeDtypeStruct(x.shape[:1], x.dtype)
        call = jax.ffi.ffi_call("dirichlet_energy", result, vmap_method="sequential")
        return call(graph.row_offsets, graph.senders, x)

    kernels = dict.fromkeys(PLATFORMS, kernel)
    return jax.lax.platform_dependent(graph, x, default=reference, **kernels)


def _forward(graph: Graph, x: Array) -> tuple[Array, tuple[Graph, Array]]:
    return _energy(graph, x), (graph, x)


def _backward(saved: tuple[Graph, Array], d: Array) -> tuple[None, Array]:
    graph, x = saved

    def kernel(graph: Graph, x: Array, d: Array) -> Array:
        result = jax.ShapeDtypeStruct(x.shape, x.dtype)
        call = jax.ffi.ffi_call("dirichlet_gradient", result, vmap_method="sequential")
        back = graph.transpose()
        return call(graph.row_offsets, graph.senders, back.row_offsets, back.senders, x, d)

    def by_reference(graph: Graph, x: Array, d: Array) -> Array:
        return jax.vjp(partial(reference, graph), x)[1](d)[0]

    kernels = dict.fromkeys(PLATFORMS, kernel)
    # A graph has no gradient.
    return None, jax.lax.platform_dependent(graph, x, d, default=by_reference, **kernels)


_energy.defvjp(_forward, _backward)


if __name__ == "__main__":
    path = Graph.from_edges([0, 1, 2], [1, 2, 3], num_nodes=4, undirected=True)
    x = jnp.arange(8, dtype=jnp.float32).reshape(4, 2) ** 2
    print("kernels for", ", ".join(PLATFORMS) or "no platform: build the modules first")
    print("energy", dirichlet_energy(path, x), "reference", reference(path, x))
