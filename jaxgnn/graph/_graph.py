"""The graph: compressed sparse rows by receiver, and the transpose, as one frozen pytree."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Literal, overload

import jax
from jaxtyping import Array, ArrayLike, Float, Int, Shaped

from jaxgnn._core.checks import boolean
from jaxgnn.graph._arrays import ARRAYS, STATIC, GraphArrays
from jaxgnn.graph._build import convert, edge_list
from jaxgnn.graph._build import csr as _csr
from jaxgnn.graph._build import edge_data as _edge_data
from jaxgnn.graph._build.edge_data import Reduce
from jaxgnn.graph._build.to_device import device_fields
from jaxgnn.graph._layouts import carried as _layouts
from jaxgnn.graph._layouts import tiles as _tiles
from jaxgnn.graph._reversed import reversed_fields
from jaxgnn.graph._validate import check_not_traced, problem

if TYPE_CHECKING:
    import networkx
    import scipy.sparse
    from jaxtyping import PyTree  # imports its pretty printer

SelfLoops = Literal["keep", "add", "add_remaining", "remove"]


@functools.partial(jax.tree_util.register_dataclass, data_fields=ARRAYS, meta_fields=STATIC)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Graph(GraphArrays):
    r"""A directed graph, stored for aggregation in both directions.

    An edge goes from a *sender* $j$ to a *receiver* $i$. Senders and receivers may be two
    different sets of nodes (a *rectangular* graph); where they are one set, both counts agree.

    **Edge order.** Edges are sorted by receiver, then by sender; duplicates keep the order in
    which the user gave them. Every array over edges (weights, features, labels, scores) is in
    *this* order, and not in that of the user's list: an operation cannot tell the two apart, and
    takes an array in the wrong order for weights of other edges. `Graph.from_edges(...,
    edge_data=data)` returns the graph and the data in its order, `graph.sort_edge_data(data)`
    brings further data into it, and `graph.unsort_edge_data(values)` brings results back.
    `graph.edge_permutation[e]` names the user's edge at place `e` (-1 for an edge that the
    constructor added, such as a self-loop; the first of edges that were merged).

    Build one with `Graph.from_edges` or one of the other `from_...` constructors, outside
    `jax.jit`, and pass it to jitted functions as an *argument*: closed over, XLA would fold it
    into the program as a constant. `==` and `hash` are those of the object.

    Attributes:
        row_offsets: edges of receiver $i$ are `row_offsets[i]:row_offsets[i + 1]`. int32;
            int64 from $2^{31}$ edges on (which needs `jax_enable_x64`).
        senders: the sender of each edge, int32.
        row_chunks: chunks of the long rows, so that one long row does not stall the others.
        transpose_row_offsets, transpose_receivers, transpose_row_chunks: those of the transpose.
        transpose_permutation: the transpose's edge `t` is the graph's edge
            `transpose_permutation[t]`.
        edge_permutation: place in the user's list of each edge, or -1; `None` once dropped.
        self_loops: number of self-loops at each node; `None` if the graph is rectangular.
        windows: groups of receivers that share senders, or `None`; see `with_windows`.
        row_schedule, transpose_row_schedule: the order in which GPU kernels process the rows, or
            `None` for the original order; see `with_row_schedule`.
        edge_positions: position in the graph of each of the user's edges (-1: it was removed) and,
            of `undirected` graphs, of its reverse. Kept with `edge_data` where edges were merged.
        tiles, transpose_tiles: shared columns and other edges of each direction, or `None`; see
            `with_tiles`.
        num_senders, num_receivers, num_edges: static counts.
        symmetric: static; the structure equals its transpose, and shares its buffers where it was
            built. `False` for padded batches.
        num_input_edges: static; the number of edges in the user's list, `None` for padded batches.
        merges_edges: static; repeated edges of the user's list were merged.
    """

    def __new__(cls, *arguments: Any, **fields: Any) -> Graph:
        if arguments or (fields and "row_offsets" not in fields):
            raise TypeError(
                "Graph: build one with Graph.from_edges(senders, receivers), "
                "Graph.from_edge_index(edge_index) or another of the from_... constructors"
            )
        return super().__new__(cls)

    # Constructors.

    @overload
    @classmethod
    def from_edges(
        cls,
        senders: Int[ArrayLike, " edges"],
        receivers: Int[ArrayLike, " edges"],
        *,
        num_nodes: int | None = None,
        num_senders: int | None = None,
        num_receivers: int | None = None,
        undirected: bool = False,
        deduplicate: bool = False,
        self_loops: SelfLoops = "keep",
        edge_data: None = None,
    ) -> Graph: ...
    @overload
    @classmethod
    def from_edges(
        cls,
        senders: Int[ArrayLike, " edges"],
        receivers: Int[ArrayLike, " edges"],
        *,
        num_nodes: int | None = None,
        num_senders: int | None = None,
        num_receivers: int | None = None,
        undirected: bool = False,
        deduplicate: bool = False,
        self_loops: SelfLoops = "keep",
        edge_data: PyTree[Shaped[ArrayLike, "edges ..."]],
        reduce: Reduce = "sum",
        fill_value: float = 1.0,
    ) -> tuple[Graph, Any]: ...
    @classmethod
    def from_edges(
        cls,
        senders: Any,
        receivers: Any,
        *,
        num_nodes: int | None = None,
        num_senders: int | None = None,
        num_receivers: int | None = None,
        undirected: bool = False,
        deduplicate: bool = False,
        self_loops: SelfLoops = "keep",
        edge_data: Any = None,
        reduce: Reduce = "sum",
        fill_value: float = 1.0,
    ) -> Any:
        """Graph of an edge list; with `edge_data` the pair of it and the data in its edge order.

        Operations take edge data in the graph's order, and cannot tell if they are given the
        user's: hand it over here (or to `sort_edge_data`).

        Args:
            senders, receivers: the two ends of each edge, integers from 0.
            num_nodes: number of nodes, where senders and receivers are one set (the default;
                the largest index + 1 if no count is given).
            num_senders, num_receivers: the two counts of a rectangular graph. Giving either
                makes it rectangular, even if the counts agree: it then has no self-loops.
            undirected: also add the reverse of each edge, then merge repeated edges, as PyG's
                `to_undirected` does.
            deduplicate: merge repeated edges.
            self_loops: keep them as they are, `"add"` one to each node, `"add_remaining"` to
                each node without one, or `"remove"` all. Where edges are merged, `"add"` adds
                to no node that has one.
            edge_data: arrays `[edges, ...]` over the edges as they are listed (weights, features,
                labels), or a pytree of them.
            reduce: how the data of merged edges combine: `"sum"` (PyG's default), `"mean"`,
                `"max"` or `"min"`. An edge and its reverse are two: with `undirected`, the data of
                an edge that is listed both ways are the sum of both, and a self-loop counts twice.
            fill_value: the data of added self-loops.

        Returns:
            The graph, or with `edge_data` the pair of the graph and the data, arrays
            `[num_edges, ...]` in the graph's edge order.

        Raises:
            TypeError: `senders` or `receivers` are not integers, or are being traced; an option
                that is `True` or `False` is something else.
            ValueError: shapes that differ, an index out of range, an option that needs a
                square graph on a rectangular one, data without a row for each listed edge,
                `self_loops="add"` with data where edges are merged, sums of merged integers beyond
                their 32 bits, or `reduce` or `fill_value` without data.
        """
        options = {
            "num_nodes": num_nodes,
            "num_senders": num_senders,
            "num_receivers": num_receivers,
            "undirected": boolean(undirected, "undirected"),
            "deduplicate": boolean(deduplicate, "deduplicate"),
            "self_loops": self_loops,
        }
        if edge_data is None:
            _edge_data.check_defaults(reduce, fill_value)
            options["deduplicate"] |= options["undirected"]
            return cls._from_host(_csr.build(senders, receivers, **options))
        graph = cls._from_host(_edge_data.build(senders, receivers, **options))
        return graph, _edge_data.map_arrays(
            lambda array: _edge_data.sort(graph, array, fill_value, reduce, "edge_data"), edge_data
        )

    @classmethod
    def from_csr(
        cls,
        row_offsets: Int[ArrayLike, " num_receivers+1"],
        senders: Int[ArrayLike, " num_edges"],
        *,
        num_senders: int | None = None,
    ) -> Graph:
        """Graph of compressed sparse rows by receiver.

        Rows whose senders are not sorted get sorted; `sort_edge_data` takes data in the order of
        the given rows.

        Args:
            row_offsets: edges of receiver $i$ are `row_offsets[i]:row_offsets[i + 1]`.
            senders: the sender of each edge.
            num_senders: makes it a rectangular graph.

        Raises:
            TypeError: either is not of integers.
            ValueError: offsets that do not rise from 0 to the number of edges, or a sender out
                of range.
        """
        return cls._from_host(_csr.build_from_csr(row_offsets, senders, num_senders=num_senders))

    @classmethod
    def _from_host(cls, csr: _csr.HostCSR) -> Graph:
        return cls(**device_fields(csr))

    @overload
    @classmethod
    def from_edge_index(
        cls, edge_index: Int[ArrayLike, "2 edges"], *, edge_data: None = None, **options: Any
    ) -> Graph: ...
    @overload
    @classmethod
    def from_edge_index(
        cls, edge_index: Int[ArrayLike, "2 edges"], *, edge_data: PyTree, **options: Any
    ) -> tuple[Graph, Any]: ...
    @classmethod
    def from_edge_index(cls, edge_index: Any, **options: Any) -> Any:
        """Graph of PyG's `edge_index` (row 0 the sources, row 1 the targets).

        Takes the options of `from_edges`; so `Graph.from_edge_index(edge_index,
        edge_data=edge_attr)` returns the graph and the attributes in its edge order. Without
        `edge_data`, or with None, it returns the graph alone.

        Raises:
            TypeError, ValueError: as `from_edges`, or the shape is not `(2, num_edges)`.
        """
        for name in options.keys() & {"edge_attr", "edge_weight"}:
            raise TypeError(
                f"from_edge_index: got an unknown argument {name!r}: edge data is its argument "
                "'edge_data'"
            )
        return cls.from_edges(*edge_list.rows_of_index(edge_index), **options)

    @classmethod
    def from_scipy(
        cls, adjacency: scipy.sparse.sparray | scipy.sparse.spmatrix
    ) -> tuple[Graph, Float[Array, " num_edges"]]:
        """Graph and edge weights of a SciPy sparse matrix of any format.

        Entry $(j, i)$ is the edge from $j$ to $i$ (NetworkX's and PyG's reading of an adjacency
        matrix). Explicit zeros are edges; repeated entries stay apart.

        Raises:
            TypeError: not a SciPy sparse matrix, or complex entries.
            ValueError: not two-dimensional.
        """
        edges, values = convert.edges_of_scipy(adjacency)
        graph = cls.from_edges(**edges)
        return graph, convert.in_graph_order(graph, values)

    @classmethod
    def from_networkx(
        cls, graph: networkx.Graph, *, weight: str | None = None
    ) -> tuple[Graph, Float[Array, " num_edges"] | None]:
        """Graph, and the edge attribute `weight` if named, of a NetworkX graph.

        Nodes are numbered in NetworkX's order; each edge of an undirected graph becomes two, and
        the parallel edges of a multigraph stay apart. Edges without the attribute weigh 1.

        Raises:
            TypeError: not a NetworkX graph, or an attribute that is no number.
            ValueError: an attribute that no edge has, or that float32 does not hold.
        """
        csr, values = convert.csr_of_networkx(graph, weight)
        result = cls._from_host(csr)
        return result, None if values is None else convert.in_graph_order(result, values)

    @classmethod
    def from_jraph(cls, graph: Any) -> Graph:
        """Graph of jraph's `GraphsTuple`, or anything with its `senders`, `receivers`, `n_node`.

        Several graphs in one stay one graph, padding included; features are not read.

        Raises:
            TypeError: an attribute is missing, or the indices are no integers.
            ValueError: `n_edge` does not sum to the number of edges, or an index is out of range.
        """
        return cls.from_edges(**convert.edges_of_jraph(graph))

    # Conversions.

    def to_scipy(
        self, weights: Float[ArrayLike, " num_edges"] | None = None
    ) -> scipy.sparse.csr_array:
        """SciPy CSR array of shape `(num_senders, num_receivers)`; inverse of `from_scipy`.

        `weights` are in the graph's edge order, not the user's (`sort_edge_data`); ones if not
        given. Repeated edges become repeated entries, which SciPy's arithmetic sums.

        Raises:
            TypeError: the graph or `weights` are traced, or `weights` are no real numbers.
            ValueError: `weights` is not one number an edge.
        """
        return convert.to_scipy(self, weights)

    def to_networkx(
        self, weights: Float[ArrayLike, " num_edges"] | None = None
    ) -> networkx.MultiDiGraph:
        """NetworkX `MultiDiGraph` (a square graph's), with the attribute `weight` if given.

        `weights` are in the graph's edge order, not the user's (`sort_edge_data`).

        Raises:
            ImportError: NetworkX is not installed.
            TypeError: the graph or `weights` are traced, or `weights` are no real numbers.
            ValueError: the graph is rectangular, or `weights` is not one number an edge.
        """
        return convert.to_networkx(self, weights)

    # Transforms.

    def transpose(self) -> Graph:
        """The graph with every edge reversed.

        Edge data follow as `data[graph.transpose_permutation]`. `edge_permutation` and
        `sort_edge_data` follow too.
        """
        return dataclasses.replace(self, **reversed_fields(self))

    def drop_edge_permutation(self) -> Graph:
        """The graph without `edge_permutation` and `edge_positions`, for those who need their 4
        bytes an edge."""
        return dataclasses.replace(self, edge_permutation=None, edge_positions=None)

    def with_windows(self, *, weighted: bool = False, width: int = 256) -> Graph:
        """The graph with `windows`: `maxk_spmm`, `gat_attention` of sparse rows and their gradients
        are then faster on a GPU.

        Receivers that share senders are grouped, and each group's senders listed once: the
        kernels then read (and, in the backward pass, write) a sender's row once a group instead
        of once an edge. Worth it for graphs with communities or hubs and a mean degree of about 30
        and more; results stay the same but for rounding. Takes about as long as building the
        graph, and 12 bytes an entry, of which there are at most `num_edges`. Functions that make a
        new graph drop the windows.

        A group's rows lie in a GPU's shared memory: it has 64 receivers where rows have up to 256
        columns, else as many as fit, 32 of 512 and 16 of 1,024. Smaller groups share less, so that
        `width` is best the width of the rows that `maxk` selects from. Narrower rows are served
        too; wider ones are aggregated as without windows, with a warning on a GPU.

        Args:
            weighted: the windows also serve aggregations with edge weights, for 4 bytes an edge.
            width: columns of the widest rows, up to 1,024.

        Raises:
            MemoryError: the host has not enough memory.
            RuntimeError: the compiled CPU module is missing.
            TypeError: the graph is being traced, `width` is no integer, or `weighted` no boolean.
            ValueError: its offsets or senders are not those of a graph, `width` is out of range, or
                with `weighted` it has 2^31 edges or more.
        """
        return dataclasses.replace(self, windows=_layouts.windows(self, weighted, width))

    def with_row_schedule(self) -> Graph:
        """The graph with a `row_schedule` and that of the transpose: `spmm` and attention are then
        faster on a GPU.

        Receivers that share senders are processed together, which then hit the cache. Nodes and
        edges keep their indices. Results keep their bits, except for rounding in attention
        whose scores depend on both ends: its sums may be added up in another order. Below a mean
        degree of 256, receivers of about the same degree come together first, for several of them
        share a warp and wait for the longest, most of all in attention and `gaussian_spmm`; below
        16 the degree alone decides, and `spmm` keeps the original order. Takes about as long as
        building the graph, and 4 bytes a node and direction. Functions that make a new graph drop
        the schedules, except for `transpose`.

        Raises:
            MemoryError: the host has not enough memory.
            RuntimeError: the compiled CPU module is missing.
            TypeError: the graph is being traced.
            ValueError: its offsets, senders or receivers are not those of a graph.
        """
        schedule, transpose = _layouts.row_schedules(self)
        return dataclasses.replace(self, row_schedule=schedule, transpose_row_schedule=transpose)

    def with_tiles(
        self,
        *,
        order: _tiles.Order = "auto",
        min_edges: int | None = None,
        on_device: bool = False,
    ) -> Graph:
        """The graph with `tiles` and `transpose_tiles`, over which `spmm(..., impl="tiles")` runs.

        Each direction is split. Its rows, in some order, form windows of 64. A column that at least
        `min_edges` rows of a window read is loaded once (the tiles): multiplied by a mask on tensor
        cores, or staged for its edges; the other edges stay compressed rows. Nodes and edges keep
        their indices. This pays where rows of one window share columns:
        `graph.tiles.edges_per_column` and `graph.tiles.tile_share` say how far they do. Takes about
        as long as building the graph, and 8 bytes a node and at most 16 an edge for each direction
        (25 with `min_edges=1`); a symmetric graph has the same tiles for both. Functions that make
        a new graph drop the tiles, except for `transpose`.

        Args:
            order: of the rows. `"numbered"`: as they are; `"groups"`: by communities of
                communities, as Louvain's method finds them, then by falling degree (of a
                rectangular graph as `"labels"`); `"rcm"`: reverse Cuthill-McKee, of square graphs;
                `"labels"`: by labels spread over the graph, then by falling degree, as
                `with_windows` groups; `"auto"`: of these the one with the most edges a column, for
                each direction.
            min_edges: rows that must read a column, 1 to 64; by default 4.
            on_device: a graph on a GPU gets the same tiles there, in a tenth of the host's time or
                less, by programs that XLA first compiles for the graph's size. That takes some ten
                seconds, so that it is for many graphs of one size, or with JAX's persistent
                compilation cache. Orders but `"numbered"` are found on the host all the same.

        Raises:
            MemoryError: the host has not enough memory.
            RuntimeError: the compiled CPU module is missing, and the host has work to do.
            TypeError: the graph is being traced, `min_edges` is no integer, or `on_device` no
                boolean.
            ValueError: `order` or `min_edges` is none of these, there are 2^31 edges or more, or
                the offsets, senders or receivers are not those of a graph.

        Source: windows with condensed columns are TC-GNN's (Wang et al., USENIX ATC 2023); leaving
        unshared columns to a kernel by rows is HC-SpMM's and Libra's idea.
        """
        tiles, transpose = _layouts.tiles(self, order, min_edges, on_device)
        return dataclasses.replace(self, tiles=tiles, transpose_tiles=transpose)

    def validate(self) -> Graph:
        """The graph, if no kernel would read outside of its arrays or leave out a row.

        Constructors make such graphs; `jax.tree.map` or `dataclasses.replace` may not.
        With `jaxgnn.config.check_graphs` every operation checks its graph, under `jax.jit` too.

        Raises:
            TypeError: the graph is being traced.
            ValueError: an array is not what the others ask for; it is named.
        """
        check_not_traced(self, "validate")
        if (found := problem(self)) is not None:
            raise ValueError(f"graph: {found}")
        return self

    # Edge data.

    def sort_edge_data(
        self,
        data: PyTree[Shaped[ArrayLike, "edges ..."]],
        *,
        fill_value: float = 1.0,
        reduce: Reduce = "sum",
    ) -> Any:
        """Brings arrays over the user's edges into the graph's edge order.

        Data that is sorted already must not be sorted again: nothing tells it from other data.
        Of a padded batch, whose number of real edges is not static, rows behind those are ignored.

        Args:
            data: an array with a row for each of the user's edges, or a pytree of them.
            fill_value: the data of edges that the constructor added.
            reduce: how the data of merged edges combine, as in `from_edges`.

        Raises:
            TypeError: `data` is no array of numbers.
            ValueError: `edge_permutation` was dropped, `data` does not have as many rows as the
                edge list had, its dtype does not have `fill_value`, or edges were merged in a graph
                that was not built with `edge_data`.
        """
        return _edge_data.map_arrays(
            lambda array: _edge_data.sort(self, array, fill_value, reduce), data
        )

    def unsort_edge_data(
        self, values: PyTree[Shaped[ArrayLike, "num_edges ..."]], *, fill_value: float = 0.0
    ) -> Any:
        """Brings arrays over the graph's edges back into the order of the user's list.

        Each of the user's edges gets the values of the edge that it became: of the one that it was
        merged into, of `undirected` graphs of that in its own direction.

        Args:
            values: an array with a row for each edge of the graph (scores of `sddmm`, say), or a
                pytree of them.
            fill_value: the values of edges that the constructor removed.

        Raises:
            TypeError: `values` is no array of numbers.
            ValueError: `edge_permutation` was dropped, `values` does not have `num_edges` rows, its
                dtype does not have `fill_value`, edges were merged in a graph that was not built
                with `edge_data`, or the graph is that of a padded batch.
        """
        return _edge_data.map_arrays(
            lambda array: _edge_data.unsort(self, array, fill_value), values
        )
