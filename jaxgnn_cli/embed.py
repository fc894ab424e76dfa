"""`jaxgnn embed`."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from io import FileIO
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxgnn._core.text import printable
from jaxgnn_cli.embed_options import MATRICES, EmbedOptions, Shapes, parse_embed, read_matrix
from jaxgnn_cli.output import print_error
from jaxgnn_cli.status import UsageError

if TYPE_CHECKING:
    from jaxgnn.train.settings.options import FeaturesOn

_CHECKED_ROWS = 1000


def embed(arguments: list[str]) -> None:
    """Embeds the nodes of a graph, times it, checks it and writes it, or prints the help."""
    options = parse_embed(arguments)
    if options is None:
        return
    with _output(options.output) as file:
        _embed(options, file)


def _embed(options: EmbedOptions, file: FileIO | None) -> None:
    import jax
    from rich.console import Console

    from jaxgnn.data.loading.registry import load_bare_graph

    console = Console()
    start = time.perf_counter()
    trained = None if options.checkpoint is None else _trained(options.checkpoint)
    csr = load_bare_graph(options.graph)
    if csr is None:
        if not os.path.exists(options.graph):
            raise UsageError(f"{options.graph}: no such file or directory")
        raise UsageError(
            f"{options.graph}: expected a Matrix Market file or an edge list (.mtx, .txt, .gz too)"
        )
    graph = csr.to_graph(undirected=options.undirected)
    if graph.num_nodes == 0:
        raise UsageError(f"{options.graph}: expected a graph with nodes")
    every = options.shapes()
    # Before anything is printed: a file may be bad.
    matrices = _matrices(options, every[0], graph.num_nodes, trained)
    graph, x, params = jax.block_until_ready(_placed(options.features_on, graph, matrices))
    widths = list(dict.fromkeys(str(shapes.feature_column) for shapes in every))
    widths = widths if len(widths) > 1 else [str(x.shape[1])]
    where = " in host memory" if options.features_on == "host" else ""
    console.print(
        f"{printable(options.graph)}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, "
        f"{', '.join(widths)} features{where}; loaded in {time.perf_counter() - start:.3g} s",
        markup=False,
        soft_wrap=True,
    )
    _print_degrees(console, np.asarray(graph.in_degrees))
    out = None
    for number, shapes in enumerate(every):
        if number > 0:
            out = x = params = matrices = None  # before the next ones are made
            matrices = _matrices(options, shapes, graph.num_nodes, trained)
            graph, x, params = _placed(options.features_on, graph, matrices)
        if len(every) > 1:
            console.print(
                f"features {x.shape[1]}, "
                + ", ".join(f"{name} {params[name].shape[1]}" for name in MATRICES),
                markup=False,
            )
        for children, leaves, batch_size in options.combinations():
            out = _run(console, options, graph, x, params, children, leaves, batch_size)
    if file is not None:
        assert out is not None and options.output is not None
        try:
            np.save(file, np.asarray(out))
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(error.errno, reason, options.output) from error
        console.print(f"wrote {printable(options.output)}", markup=False, soft_wrap=True)


@contextlib.contextmanager
def _output(path: str | None) -> Iterator[FileIO | None]:
    """The file to write at the end, opened at once: a path that cannot be written ends the command
    before the runs. What a file held stays until then, and a new file goes if the command fails.
    """
    if path is None:
        yield None
        return
    is_new = not os.path.lexists(path)
    # Devices and pipes have names of their own.
    if (is_new or os.path.isfile(path)) and not path.endswith(".npy"):
        raise UsageError(f"--output: expected a file name with .npy, got {printable(path)}")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--output: {printable(path)}: {reason}") from None
    try:
        # Not buffered: what a full disk refuses would be written again when the file is closed.
        with open(descriptor, "wb", buffering=0) as file:
            yield file
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                file.truncate()
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):
                os.unlink(path)
        raise


def _trained(run: str) -> dict[str, np.ndarray]:
    """The matrices of a run of `jaxgnn train`, of the parameters that it selected."""
    import jax
    from flax import nnx

    from jaxgnn.nn import SAGEEmbedding
    from jaxgnn.train import restore_run, saved_config

    config = saved_config(run, "--checkpoint")
    name = printable(run)
    if config.model != "sage_embedding":
        raise UsageError(
            f"--checkpoint: {name}: expected a run of --model sage_embedding, got {config.model}"
        )
    if config.activation != "relu":
        raise UsageError(
            f"--checkpoint: {name}: expected a run with ReLU, got --activation {config.activation}"
        )
    if config.features == "embedding":
        raise UsageError(
            f"--checkpoint: {name}: expected a run on the data's features, got --features embedding"
        )
    if config.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    restored = restore_run(run, "--checkpoint", warn=print_error)
    model = nnx.merge(restored.program.inference, restored.best.params, restored.best.rest)
    assert isinstance(model, SAGEEmbedding)
    try:
        found = model.matrices()
    except ValueError as error:
        raise UsageError(f"--checkpoint: {name}: {error}") from None
    return {name: np.asarray(matrix, np.float32) for name, matrix in found.items()}


def _matrices(
    options: EmbedOptions, shapes: Shapes, num_nodes: int, trained: dict[str, np.ndarray] | None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The features and the four weights: a run's, or from files, else random from the seed."""
    rng = np.random.default_rng(options.rand_seed)

    def matrix(name: str, rows: int, columns: int) -> np.ndarray:
        # Drawn in any case: a file in the place of one matrix leaves the others as they are.
        random = rng.uniform(-1, 1, (rows, columns)).astype(np.float32)
        path = getattr(options, name)
        return random if path is None else read_matrix(path, f"--{name}", rows)

    features = matrix("features", num_nodes, shapes.feature_column)
    width = features.shape[1]
    if trained is not None:
        expected = trained["Wf1"].shape[0]
        if width != expected:
            raise UsageError(
                f"--features: expected {expected} columns, as the run of --checkpoint has "
                f"features, got {width}"
            )
        return features, trained
    wf1 = matrix("Wf1", width, shapes.Wf1_dim1)
    wa1 = matrix("Wa1", width, shapes.Wa1_dim1)
    hidden = wf1.shape[1] + wa1.shape[1]
    wf2 = matrix("Wf2", hidden, shapes.Wf2_dim1)
    wa2 = matrix("Wa2", hidden, shapes.Wa2_dim1)
    return features, dict(zip(MATRICES, (wf1, wa1, wf2, wa2), strict=True))


def _placed(
    features_on: FeaturesOn, graph: Any, matrices: tuple[np.ndarray, dict[str, np.ndarray]]
) -> tuple[Any, Any, Any]:
    """Graph, features and weights where they are to be: with the features on the host a GPU has the
    weights alone."""
    import jax

    from jaxgnn.train import HostFeatures

    features, weights = matrices
    params = jax.device_put(weights)
    if features_on == "device":
        return jax.device_put(graph), jax.device_put(features), params
    x = HostFeatures(features)
    try:
        (cpu,) = x.on_cpu().devices()
    except RuntimeError as error:
        reason = str(error).removeprefix("features: ")
        raise UsageError(f"--features-on: {reason}") from None
    return jax.device_put(graph, cpu), x, params


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
    from jaxgnn.train.process.machine import peak_memory
    from jaxgnn_cli.embed_check import check_embedding

    key = jax.random.key(options.rand_seed)
    call = functools.partial(
        sage_embedding, num_children=children, num_leaves=leaves, batch_size=batch_size
    )
    on_host = options.features_on == "host"
    try:
        # Of features on the host it is a loop of two programs, not one program.
        run = call if on_host else jax.jit(call).lower(graph, x, params, key).compile()
        out = jax.block_until_ready(run(graph, x, params, key))  # not timed: the first run
    except ValueError as error:
        raise UsageError(str(error)) from None
    times = []
    for _ in range(options.num_runs):
        start = time.perf_counter()
        out = jax.block_until_ready(run(graph, x, params, key))
        times.append(1000 * (time.perf_counter() - start))
    batches = -(-graph.num_nodes // batch_size)
    memory = peak_memory()
    mean = sum(times) / len(times)
    console.print(
        f"children {children}, leaves {leaves}, batch {batch_size}: {mean:.4g} ms a run "
        f"(least {min(times):.4g}, most {max(times):.4g}), {mean / batches:.4g} ms a batch of "
        f"{batches} (least {min(times) / batches:.4g}, most {max(times) / batches:.4g}); "
        f"peak memory of the {memory['memory_of']} {memory['peak_bytes'] / 1e6:,.0f} MB",
        markup=False,
        soft_wrap=True,
    )
    rows = min(_CHECKED_ROWS, graph.num_nodes)
    features = x.on_cpu() if on_host else x
    worst, error, zeros = check_embedding(graph, features, params, key, out, children, leaves, rows)
    console.print(
        f"  lengths within {worst:.1e} of 1, {zeros:,} rows all zero; "
        f"{rows:,} rows within {error:.1e} of float64",
        markup=False,
        soft_wrap=True,
    )
    return out
