"""`jaxgnn embed`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from jaxgnn._core.text import printable
from jaxgnn_cli.embed_options import EmbedOptions, parse_embed, read_matrix
from jaxgnn_cli.status import UsageError

_CHECKED_ROWS = 1000


def embed(arguments: list[str]) -> None:
    """Embeds the nodes of a graph, times it, checks it and writes it, or prints the help."""
    options = parse_embed(arguments)
    if options is None:
        return
    import jax
    from rich.console import Console

    from jaxgnn.data.registry import load_bare_graph

    console = Console()
    start = time.perf_counter()
    csr = load_bare_graph(options.graph)
    if csr is None:
        raise UsageError(
            f"{options.graph}: expected a Matrix Market file or an edge list (.mtx, .txt, .gz too)"
        )
    graph = csr.to_graph(undirected=options.undirected)
    if graph.num_nodes == 0:
        raise UsageError(f"{options.graph}: expected a graph with nodes")
    features, params = _matrices(options, graph.num_nodes)
    graph, x, params = jax.block_until_ready(jax.device_put((graph, features, params)))
    console.print(
        f"{printable(options.graph)}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, "
        f"{x.shape[1]} features; loaded in {time.perf_counter() - start:.3g} s",
        markup=False,
        soft_wrap=True,
    )
    _print_degrees(console, np.asarray(graph.in_degrees))
    out = None
    for children, leaves, batch_size in options.combinations():
        out = _run(console, options, graph, x, params, children, leaves, batch_size)
    if options.output is not None:
        assert out is not None
        with open(options.output, "wb") as file:
            np.save(file, np.asarray(out))
        console.print(f"wrote {printable(options.output)}", markup=False, soft_wrap=True)


def _matrices(options: EmbedOptions, num_nodes: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The features and the four weights: from files, else random from the seed."""
    rng = np.random.default_rng(options.rand_seed)

    def matrix(name: str, rows: int, columns: int) -> np.ndarray:
        # Drawn in any case: a file in the place of one matrix leaves the others as they are.
        random = rng.uniform(-1, 1, (rows, columns)).astype(np.float32)
        path = getattr(options, name)
        return random if path is None else read_matrix(path, f"--{name}", rows)

    features = matrix("features", num_nodes, options.feature_column)
    width = features.shape[1]
    wf1 = matrix("Wf1", width, options.Wf1_dim1)
    wa1 = matrix("Wa1", width, options.Wa1_dim1)
    hidden = wf1.shape[1] + wa1.shape[1]
    wf2 = matrix("Wf2", hidden, options.Wf2_dim1)
    wa2 = matrix("Wa2", hidden, options.Wa2_dim1)
    return features, {"Wf1": wf1, "Wa1": wa1, "Wf2": wf2, "Wa2": wa2}


def _print_degrees(console: Any, degrees: np.ndarray) -> None:
    from rich.table import Table

    table = Table(title="in-degrees", title_justify="left")
    for name in ("degree", "nodes", "share, %"):
        table.add_column(name, justify="right")
    bins = np.zeros(degrees.size, int)
    bins[degrees > 0] = np.floor(np.log2(degrees[degrees > 0])).astype(int) + 1
    for power, count in enumerate(np.bincount(bins)):
        low, high = (0, 0) if power == 0 else (2 ** (power - 1), 2**power - 1)
        name = str(low) if low == high else f"{low:,}-{high:,}"
        table.add_row(name, f"{count:,}", f"{100 * count / degrees.size:.2f}")
    console.print(table)


def _run(
    console: Any,
    options: EmbedOptions,
    graph: Any,
    x: Any,
    params: Any,
    children: int,
    leaves: int,
    batch_size: int,
) -> Any:
    """One combination: compiled, timed and checked. Returns the embedding."""
    import functools

    import jax

    from jaxgnn import sage_embedding
    from jaxgnn.train.machine import peak_memory
    from jaxgnn_cli.embed_check import check_embedding

    key = jax.random.key(options.rand_seed)
    call = functools.partial(
        sage_embedding, num_children=children, num_leaves=leaves, batch_size=batch_size
    )
    try:
        compiled = jax.jit(call).lower(graph, x, params, key).compile()
    except ValueError as error:
        raise UsageError(str(error)) from None
    out = jax.block_until_ready(compiled(graph, x, params, key))  # not timed: the first run
    times = []
    for _ in range(options.num_runs):
        start = time.perf_counter()
        out = jax.block_until_ready(compiled(graph, x, params, key))
        times.append(1000 * (time.perf_counter() - start))
    batches = -(-graph.num_nodes // batch_size)
    memory = peak_memory()
    mean = sum(times) / len(times)
    console.print(
        f"children {children}, leaves {leaves}, batch {batch_size}: {mean:.4g} ms a run "
        f"(least {min(times):.4g}, most {max(times):.4g}), {mean / batches:.4g} ms a batch "
        f"of {batches}; peak memory of the {memory['memory_of']} "
        f"{memory['peak_bytes'] / 1e6:,.0f} MB",
        markup=False,
        soft_wrap=True,
    )
    rows = min(_CHECKED_ROWS, graph.num_nodes)
    worst, error, zeros = check_embedding(graph, x, params, key, out, children, leaves, rows)
    console.print(
        f"  lengths within {worst:.1e} of 1, {zeros:,} rows all zero; "
        f"{rows:,} rows within {error:.1e} of float64",
        markup=False,
        soft_wrap=True,
    )
    return out
