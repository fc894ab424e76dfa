"""Reader of GraphML files, by NetworkX."""

from __future__ import annotations

import io
import os
import re

import numpy as np

from jaxgnn.data.files.checks import charge_graph
from jaxgnn.data.files.limits import Budget, DataError, quote, reading, stem_of
from jaxgnn.data.sets.dataset import Metadata
from jaxgnn.data.sets.plain_graph import PlainGraph
from jaxgnn.graph import Graph

# Of what ElementTree and NetworkX build, for each byte of the text.
_BYTES_PER_BYTE = 120
_ENCODING = re.compile(rb"<\?xml[^>]*encoding\s*=\s*[\"']([^\"']*)")


def read_graphml(
    path: str | os.PathLike[str], *, weight: str | None = None, max_bytes: int | None = None
) -> PlainGraph:
    """A GraphML file, as `networkx.read_graphml` reads it; needs NetworkX.

    Each edge of an undirected graph becomes two. The ids of the nodes are `node_names`. The text
    has to be UTF-8, and may not declare a document type, and so no entities.

    Args:
        path: the file, gzipped or not.
        weight: name of the edge attribute that becomes `weights`; edges without it weigh 1.
        max_bytes: as of `read_matrix_market`; 120 bytes are counted for each of the text.

    Raises:
        DataError: not such a file, damaged, or NetworkX is not installed.
    """
    budget = Budget(max_bytes)
    with reading(path):
        try:
            import networkx
        except ImportError:
            raise DataError("needs NetworkX: pip install 'jaxgnn[networkx]'") from None
        text = bytearray()
        for block in budget.blocks(path):
            budget.charge(_BYTES_PER_BYTE * len(block), "the graph")
            text += block
        check_xml(text)
        found = networkx.read_graphml(io.BytesIO(text))
        charge_graph(budget, found.number_of_nodes(), found.number_of_edges(), undirected=True)
        names = tuple(str(node) for node in found.nodes)
        graph, values = Graph.from_networkx(found, weight=weight)
        numbered = names == tuple(map(str, range(len(names))))
        return PlainGraph(
            name=stem_of(path),
            graph=graph,
            weights=None if values is None else np.asarray(values, np.float32),
            node_names=None if numbered else names,
            metadata=Metadata(source=os.fspath(path)),
        )


def check_xml(text: bytes | bytearray) -> None:
    """Refuses a document type, which entities come with, and what could hide one."""
    if b"<!DOCTYPE" in text.upper() or b"<!ENTITY" in text.upper():
        raise DataError("expected XML without a document type, got <!DOCTYPE or <!ENTITY")
    declared = _ENCODING.match(text.removeprefix(b"\xef\xbb\xbf").lstrip())
    if declared and declared[1].lower() not in (b"utf-8", b"us-ascii", b"ascii"):
        raise DataError(f"expected UTF-8, got the encoding {quote(declared[1])}")
    if b"\0" in text:
        raise DataError("expected UTF-8, got a NUL")
    bytes(text).decode("utf-8")
