"""The reader of TC-GNN's `.npz` files."""

from __future__ import annotations

import os
from collections.abc import Collection

from jaxgnn.data.files.archive import open_npz
from jaxgnn.data.files.checks import check_ids, check_kind
from jaxgnn.data.files.limits import Budget, DataError, quote
from jaxgnn.data.formats.edges import plain_graph
from jaxgnn.data.sets.plain_graph import PlainGraph

_ENDS = ("src_li", "dst_li")
_KEYS = (*_ENDS, "num_nodes")
_MOST_NODES = 2**31 - 1


def is_tcgnn(keys: Collection[str]) -> bool:
    """Whether an archive with these arrays is one that `read_tcgnn` reads."""
    return set(keys) >= set(_KEYS)


def read_tcgnn(
    path: str | os.PathLike[str], *, undirected: bool = False, max_bytes: int | None = None
) -> PlainGraph:
    """The graph of a file of TC-GNN's: `src_li`, `dst_li` and `num_nodes` in an `.npz` archive.

    An edge goes from `src_li` to `dst_li`. TC-GNN multiplies by the matrix whose rows are
    `src_li`: of directed graphs the transpose of what `spmm` multiplies by, so that its products
    are `spmm(..., transpose=True)` and its blocks `tiles.translate(..., transpose=True)`. Repeated
    edges are merged, as there.

    Args:
        path: the file.
        undirected: add the reverse of each edge.
        max_bytes: as of `read_matrix_market`.

    Raises:
        DataError: not such a file, damaged, or an id out of range.

    Source: Wang et al., TC-GNN, USENIX ATC 2023; the layout of its published sets.
    """
    budget = Budget(max_bytes)
    with open_npz(path, budget) as archive:
        nodes, *ends = (archive.header(key) for key in ("num_nodes", *_ENDS))
        if nodes.dtype.kind not in "iu" or nodes.size != 1:
            raise DataError(
                f"num_nodes: expected an integer, got {nodes.dtype}{quote(nodes.shape)}"
            )
        n = int(archive.read("num_nodes").item())
        if not 0 <= n <= _MOST_NODES:
            raise DataError(f"num_nodes: expected an integer from 0 to 2**31 - 1, got {quote(n)}")
        for key, claim in zip(_ENDS, ends, strict=True):
            check_kind(claim, key)
        sizes = [claim.size for claim in ends]
        if sizes[0] != sizes[1]:
            raise DataError(f"src_li, dst_li: expected one length, got {sizes[0]} and {sizes[1]}")
        senders, receivers = (check_ids(archive.read(key), n, key, budget) for key in _ENDS)
        return plain_graph(path, senders, receivers, n, budget, undirected=undirected)
