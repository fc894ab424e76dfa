"""Which part owns each node: restreaming greedy in C++, METIS, blocks of nodes, or windows."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.core import Tracer
from jaxtyping import Int

from jaxgnn._core import checks, platform
from jaxgnn._core.ffi import cpu_module
from jaxgnn._core.limits import DataError, quote, reading
from jaxgnn.distributed import _partition_files
from jaxgnn.distributed._arguments import check_owners
from jaxgnn.distributed._deal_windows import deal_windows
from jaxgnn.distributed._partition_files import PartData
from jaxgnn.graph import Graph
from jaxgnn.graph._build.csr import check_row_offsets
from jaxgnn.graph._layouts.windows import Windows

if TYPE_CHECKING:
    from jaxgnn.data import CSR

METHODS = ("stream", "metis", "block", "windows")

_EDGE_BALANCE, _NODE_BALANCE = 1.05, 1.15
"""Of the largest part by the mean, where none is given."""


@dataclasses.dataclass(frozen=True)
class PartitionStatistics:
    """What a partition costs: see `partition`.

    Attributes:
        cut_edges: edges whose sender and receiver have different owners.
        halo_per_node: rows that parts read of others, each once a part, for each node.
        node_balance: nodes of the largest part by their mean.
        edge_balance: edges that end in the part that has most, by their mean.
        exchange_padding: entries of a padded `all_to_all`, in which every pair of parts has the
            size of the largest, by the halo rows that they hold; 1 without any.
    """

    cut_edges: int
    halo_per_node: float
    node_balance: float
    edge_balance: float
    exchange_padding: float


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """The owner of each node.

    Attributes:
        parts: their number. A part may be empty.
        owner: int32 `[num_nodes]`, the part of each node.
        statistics: cut, halo, balances and padding.
    """

    parts: int
    owner: Int[np.ndarray, " num_nodes"]
    statistics: PartitionStatistics

    @classmethod
    def of_owners(
        cls, graph: Graph | CSR, owner: Int[np.ndarray, " num_nodes"], parts: int
    ) -> Partition:
        """The partition by owners of your own, with its statistics.

        Args:
            graph: as of `partition`.
            owner: of each node, from 0 to `parts - 1`.
            parts: their number. A part may be empty.

        Raises:
            TypeError: `graph` is no `Graph`, nor a `CSR`.
            ValueError: no owner for each node, or one that is no part.
            RuntimeError: the compiled CPU module is missing.
        """
        offsets, senders = _host_csr(graph)
        _check_nodes(offsets)
        parts = checks.integer(parts, "parts", 1, offsets.size - 1)
        owner = checks.host_array(owner, "owner")
        check_owners(owner, offsets.size - 1, parts, "owner", "integers", "parts")
        owner = np.ascontiguousarray(owner, np.int32)
        return cls(parts, owner, _statistics(offsets, senders, owner, parts))

    def save(
        self,
        directory: str | os.PathLike[str],
        graph: Graph | CSR,
        arrays: Mapping[str, np.ndarray] | None = None,
        *,
        edge_arrays: Mapping[str, np.ndarray] | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes a folder for each part, and last a manifest with the checksum of every file.

        Args:
            directory: empty or not there.
            graph: the one that was split.
            arrays: nodes' data `[num_nodes, ...]` by name, such as features and labels: each part
                gets its nodes' rows.
            edge_arrays: edges' data `[num_edges, ...]` by name, such as weights, in the graph's
                edge order (`Graph.sort_edge_data`), of a `CSR` in that of its senders: each part
                gets the rows of the edges that end at its nodes.
            data: what the manifest is to say of them, as JSON.

        Raises:
            TypeError: `directory` is no path, `graph` none, `arrays` or `edge_arrays` no mapping of
                names, or `data` no mapping that JSON has.
            ValueError: another graph, arrays of another size, names that cannot be files' or are
                of both kinds of arrays, numbers in `data` that are not finite, or a directory with
                files or that is a file.
        """
        checks.path(directory, "directory")
        offsets, senders = _host_csr(graph)
        if cpu_module is not None and offsets.size == self.owner.size + 1:
            _check_statistics(
                self.statistics, _statistics(offsets, senders, self.owner, self.parts)
            )
        _partition_files.save(
            self, directory, offsets, senders, arrays or {}, edge_arrays or {}, data
        )

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Partition:
        """Reads the owners and the statistics, from the manifest and the parts' lists of nodes.

        Raises:
            DataError: an interrupted, damaged or mismatched folder; it names the file.
            TypeError: `directory` is no path.
        """
        manifest = _partition_files.read_manifest(directory)
        owner = _partition_files.read_owner(directory, manifest)
        with reading(os.path.join(directory, "manifest.json")):
            statistics = _read_statistics(manifest.get("statistics"))
        return cls(manifest["parts"], owner, statistics)

    @staticmethod
    def load_part(directory: str | os.PathLike[str], part: int) -> PartData:
        """Reads one part: the manifest and that part's files alone.

        Raises:
            TypeError: `directory` is no path, or `part` no integer.
            ValueError: no such part.
            DataError: an interrupted, damaged or mismatched folder; it names the file.
        """
        return _partition_files.read_part(directory, part)


def partition(
    graph: Graph | CSR,
    parts: int,
    *,
    method: str = "stream",
    passes: int = 5,
    seed: int = 0,
    edge_balance: float | None = None,
    node_balance: float | None = None,
) -> Partition:
    r"""Splits the nodes into parts, so that few edges join two of them.

    Each part owns its nodes and the edges that end there. `"stream"` is linear deterministic greedy
    with restreaming: it passes over the nodes several times, nodes with many edges first, and gives
    each to the part

    $$\arg\max_p |N(v) \cap p| \left(1 - \max\left(\frac{n_p}{n_{max}}, \frac{e_p}{e_{max}}\right)
    \right)$$

    of the senders' latest owners, where $n_p$ and $e_p$ are the nodes and edges that p has in this
    pass and $n_{max}$, $e_{max}$ the bounds that the balances set. It needs memory for the nodes
    alone, and the result does not depend on the number of threads. `"metis"` minimises the cut by
    multilevel recursion (option `metis` of the package), in memory. It balances nodes weighted by
    their edges, about within `edge_balance`. `"block"` gives each part consecutive nodes, with
    about as many edges as the others'. `"windows"` deals whole windows of nodes that share senders
    (`Graph.with_windows`), the longest first, each to the part with least work so far: of MaxK's
    aggregation each part then has as much, and shares as much, as the whole graph; nothing keeps
    neighbors together.

    Args:
        graph: square; for `"windows"` a `Graph` that has some. A `jaxgnn.data.CSR` may be larger
            than memory: `np.memmap`s of int64 `row_offsets` and int32 or int64 `senders` are read
            where they lie.
        parts: from 1 to the number of nodes.
        method: `"stream"`, `"metis"`, `"block"` or `"windows"`.
        passes: of `"stream"`.
        seed: of `"stream"`, where parts are equally good; of `"metis"`.
        edge_balance: the most edges of a part, by the mean over the parts.
        node_balance: the most nodes of a part, by the mean rounded up to whole nodes. What is given
            holds, by any method, or is refused. `None`: `"stream"` observes 1.05 and 1.15,
            `"metis"` aims at 1.05 for the edges, and the others take what comes.

    Raises:
        TypeError: `graph` is neither, or is traced, or a number is no integer or, of the balances,
            no number.
        ValueError: arguments out of range, a rectangular graph, `"windows"` of a graph without,
            offsets or senders that are none,
            balances below 1, or ones that the method did not meet: a node has more edges than a
            part may have, or no part had room.
        ImportError: `"metis"` without pymetis.
        RuntimeError: the compiled CPU module is missing.

    Source: Nishimura and Ugander, Restreaming Graph Partitioning, KDD 2013.
    """
    offsets, senders = _host_csr(graph)
    num_nodes, num_edges = offsets.size - 1, senders.size
    _check_nodes(offsets)
    parts = checks.integer(parts, "parts", 1, num_nodes)
    checks.choice(method, "method", METHODS)
    passes = checks.integer(passes, "passes", 1, 2**31 - 1)
    seed = checks.integer(seed, "seed", 0, 2**31 - 1)
    for name, value in (("edge_balance", edge_balance), ("node_balance", node_balance)):
        if value is not None:
            checks.number(value, name, 1, np.inf)
    edges_by_mean = _EDGE_BALANCE if edge_balance is None else edge_balance
    nodes_by_mean = _NODE_BALANCE if node_balance is None else node_balance
    max_edges = min(int(edges_by_mean * num_edges / parts), num_edges)
    max_edges = max(max_edges, -(-num_edges // parts))
    max_nodes = min(int(nodes_by_mean * -(-num_nodes // parts)), num_nodes)
    if method == "block":
        owner = equal_edges(offsets, parts)
    elif method == "windows":
        owner = deal_windows(_windows_of(graph), offsets, parts)
    elif method == "metis":
        owner = _metis(offsets, senders, parts, seed, edges_by_mean)
    else:
        owner = _native().stream_partition(
            offsets, senders, parts, max_nodes, max_edges, passes, seed, 0
        )
    if method == "stream" or edge_balance is not None:
        _check_balance("edge_balance", _edges(offsets, owner, parts), max_edges, edges_by_mean)
    if method == "stream" or node_balance is not None:
        nodes = np.bincount(owner, minlength=parts)
        _check_balance("node_balance", nodes, max_nodes, nodes_by_mean)
    return Partition(parts, owner, _statistics(offsets, senders, owner, parts))


def _windows_of(graph: Graph | CSR) -> Windows:
    windows = graph.windows if isinstance(graph, Graph) else None
    if windows is None:
        raise ValueError(
            'method: "windows" expected a Graph with windows, got one without: graph.with_windows()'
        )
    return windows


def _read_statistics(found: Any) -> PartitionStatistics:
    """Those of a manifest."""
    names = {field.name for field in dataclasses.fields(PartitionStatistics)}
    if not isinstance(found, dict) or found.keys() != names:
        raise DataError("expected the statistics of a partition")
    for name, value in found.items():
        whole = name == "cut_edges"
        if type(value) not in ((int,) if whole else (int, float)) or not 0 <= value < np.inf:
            kind = "an integer" if whole else "a number"
            raise DataError(f"statistics: {name}: expected {kind} from 0, got {quote(value)}")
    return PartitionStatistics(**found)


def _check_statistics(own: PartitionStatistics, found: PartitionStatistics) -> None:
    """That a graph is the one that was split, as far as its partition tells."""
    for name, value in dataclasses.asdict(found).items():
        expected = getattr(own, name)
        if not np.isclose(value, expected, rtol=1e-9):
            raise ValueError(
                f"graph: expected the one that was split, whose {name} is {expected}, got {value}"
            )


def _host_csr(graph: Graph | CSR) -> tuple[np.ndarray, np.ndarray]:
    """The arrays in the compiled code's types; mapped senders are not copied."""
    if not hasattr(graph, "row_offsets") or not hasattr(graph, "senders"):
        raise TypeError(
            f"graph: expected a jaxgnn.Graph or a jaxgnn.data.CSR, got {type(graph).__name__}"
        )
    if isinstance(graph, Graph):
        if isinstance(graph.row_offsets, Tracer):
            raise TypeError("graph: expected one that is not traced: it is split outside jax.jit")
        if not graph.is_square:
            raise ValueError(f"graph: expected a square graph, got {graph}")
        return np.asarray(graph.row_offsets).astype(np.int64), np.asarray(graph.senders)
    offsets, senders = np.asarray(graph.row_offsets), np.asarray(graph.senders)
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or offsets.size == 0:
        raise ValueError(
            f"row_offsets: expected num_nodes + 1 integers, got {offsets.dtype}{offsets.shape}"
        )
    if senders.ndim != 1 or senders.dtype not in (np.int32, np.int64):
        raise ValueError(
            f"senders: expected int32 or int64 [num_edges], got {senders.dtype}{senders.shape}"
        )
    if not senders.flags.c_contiguous:
        raise ValueError("senders: expected contiguous memory, got strides")
    offsets = np.ascontiguousarray(offsets, np.int64)
    check_row_offsets(offsets, senders.size)
    return offsets, senders


def _check_nodes(offsets: np.ndarray) -> None:
    if offsets.size < 2:
        raise ValueError("graph: expected at least one node, got none")


def _native() -> Any:
    if cpu_module is None:
        raise RuntimeError(
            f"partition needs jaxgnn._cpu, which is not built: {platform.build_info()}"
        )
    return cpu_module


def _edges(offsets: np.ndarray, owner: np.ndarray, parts: int) -> np.ndarray:
    """Edges of each part; exact, since no part has 2^53 of them."""
    return np.bincount(owner, weights=np.diff(offsets), minlength=parts)


def _check_balance(name: str, loads: np.ndarray, most: int, given: float) -> None:
    if loads.max() > most:
        reached = np.ceil(1000 * loads.max() / loads.mean()) / 1000
        raise ValueError(f"{name}: can't be met, the closest found was {reached}, got {given}")


def equal_edges(
    offsets: Int[np.ndarray, " num_nodes + 1"], parts: int
) -> Int[np.ndarray, " num_nodes"]:
    """The owner of each node: blocks of consecutive nodes that end at about equal numbers of
    edges."""
    # A node counts as an edge does, so that nodes without edges are spread, too.
    before = offsets[:-1].astype(np.int64) + np.arange(offsets.size - 1)
    total = int(offsets[-1]) + offsets.size - 1
    return (before * parts // max(total, 1)).astype(np.int32)


def _metis(
    offsets: np.ndarray, senders: np.ndarray, parts: int, seed: int, edge_balance: float
) -> np.ndarray:
    try:
        import pymetis  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError('method "metis" needs pymetis: pip install "jaxgnn[metis]"') from error
    import scipy.sparse

    nodes = offsets.size - 1
    ones = np.ones(senders.size, np.int8)
    matrix = scipy.sparse.csr_array((ones, senders, offsets), shape=(nodes, nodes))
    both = (matrix + matrix.T).tocsr()  # METIS takes undirected graphs without loops
    both.setdiag(0)
    both.eliminate_zeros()
    options = pymetis.Options(seed=seed, ufactor=max(1, round(1000 * (edge_balance - 1))))
    _, owner = pymetis.part_graph(
        parts,
        adjacency=pymetis.CSRAdjacency(both.indptr, both.indices),
        vweights=1 + np.diff(offsets),
        options=options,
        recursive=False,
    )
    return np.asarray(owner, np.int32)


def _statistics(
    offsets: np.ndarray, senders: np.ndarray, owner: np.ndarray, parts: int
) -> PartitionStatistics:
    cut, halo = _native().count_halo(offsets, senders, owner, parts, 0)
    rows = int(halo.sum())
    edges = _edges(offsets, owner, parts)
    nodes = np.bincount(owner, minlength=parts)
    return PartitionStatistics(
        cut_edges=int(cut),
        halo_per_node=rows / owner.size,
        node_balance=float(nodes.max() / nodes.mean()),
        edge_balance=float(edges.max() / edges.mean()) if senders.size else 1.0,
        exchange_padding=float(halo.max()) * parts * (parts - 1) / rows if rows else 1.0,
    )
