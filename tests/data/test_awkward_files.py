"""Each format of text as editors and exporters leave it: marks, line ends, blank lines, nothing."""

import gzip
import io

import numpy as np
import pytest
import scipy.sparse as sp

from jaxgnn import data
from jaxgnn.data import DataError, GraphSet
from tests.support.large_sets import write_ogb_graphs

MARK = b"\xef\xbb\xbf"
MATRIX = "%%MatrixMarket matrix coordinate pattern general\n"
OFF = "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"
OBJ = "v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n"
GRAPHML = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
    '<graph edgedefault="directed"><node id="a"/><node id="b"/>\n'
    '<edge source="a" target="b"/></graph></graphml>\n'
)
SETS = {"t_A.txt": "1, 2\n", "t_graph_indicator.txt": "1\n1\n2\n", "t_graph_labels.txt": "0\n1\n"}
TABLES = {"nodes.csv": "id,label\na,x\nb,y\n", "edges.csv": "source,target\na,b\n"}
LABELS = {"g.txt": "0 1\n1 2\n", "g.cmty": "0 1\n2\n"}

# A file or a folder, its nodes and its edges.
WHOLE = [
    ("a.txt", {"a.txt": "0 1\n1 2\n"}, (3, 2)),
    ("a.mtx", {"a.mtx": MATRIX + "2 2 1\n1 2\n"}, (2, 1)),
    ("a.off", {"a.off": OFF}, (3, 6)),
    ("a.obj", {"a.obj": OBJ}, (3, 6)),
    ("t", SETS, (3, 1)),
    ("tables", TABLES, (2, 1)),
    ("labels", LABELS, (3, 4)),
    ("a.graphml", {"a.graphml": GRAPHML}, (2, 1)),
]
CHANGES = {
    "mark": lambda text: MARK + text,
    "crlf": lambda text: text.replace(b"\n", b"\r\n"),
    "no end": lambda text: text.removesuffix(b"\n"),
    "blank": lambda text: text + b"\n\n",
}
LONG = 3_000_000_000
OTHERS = [
    # Nothing, one node, one edge.
    ("a.txt", "", (0, 0)),
    ("a.txt", "# a comment\n", (0, 0)),
    ("a.txt", "0 1\n", (2, 1)),
    ("a.mtx", MATRIX + "0 0 0\n", (0, 0)),
    ("a.mtx", MATRIX + "1 1 0\n", (1, 0)),
    ("a.off", "OFF\n0 0 0\n", (0, 0)),
    ("a.off", "OFF\n1 0 0\n0 0 0\n", (1, 0)),
    ("a.obj", "", (0, 0)),
    ("a.obj", "v 0 0 0\n", (1, 0)),
    ("t", SETS | {"t_A.txt": ""}, (3, 0)),
    ("t", dict.fromkeys(SETS, ""), (0, 0)),
    ("tables", TABLES | {"edges.csv": "source,target\n"}, (2, 0)),
    ("tables", TABLES | {"nodes.csv": "", "edges.csv": ""}, "expected the names of the columns"),
    ("labels", dict.fromkeys(LABELS, ""), "expected a label set a line, got none"),
    # Ids from 1 and beyond 2**31; edges that are doubled, or loops.
    ("a.txt", "1 2\n2 3\n", (4, 2)),
    ("a.txt", f"{LONG} 1\n", (2, 1)),
    ("a.txt", "0 1\n0 1\n1 0\n0 0\n", (2, 3)),
    ("a.mtx", MATRIX + "2 2 1\n0 1\n", "expected a row from 1 to 2"),
    ("a.mtx", MATRIX + "2 2 1\n1 3\n", "expected a row from 1 to 2"),
    ("a.mtx", MATRIX + f"{LONG} 1 0\n", "expected two sizes below 2\\*\\*31"),
    ("a.off", OFF.replace("3 0 1 2", f"3 0 1 {LONG}"), "line 6: expected a face"),
    ("a.obj", OBJ.replace("1 2 3", "0 1 2"), "line 4: expected vertices of a face, got '0'"),
    ("t", SETS | {"t_A.txt": "0, 1\n"}, "expected ids from 1 to 3, got 0 to 1"),
    ("t", SETS | {"t_A.txt": f"{LONG}, 1\n"}, f"expected ids from 1 to 3, got 1 to {LONG}"),
    (
        "tables",
        {"nodes.csv": f"id\n{LONG}\n1\n", "edges.csv": f"source,target\n{LONG},1\n"},
        (2, 1),
    ),
    ("labels", {"g.txt": f"{LONG} 1\n", "g.cmty": f"{LONG}\n"}, (2, 2)),
]


def sizes_of(path):
    loaded = data.load(path)
    graph = loaded if isinstance(loaded, GraphSet) else loaded.graph
    return graph.num_nodes, graph.num_edges


def write(folder, name, files, change=lambda text: text):
    """The path to load: a file, or a folder of those files."""
    target = folder / name
    single = list(files) == [name]
    (folder if single else target).mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        ((folder if single else target) / file).write_bytes(change(text.encode()))
    return target


def test_marks_line_ends_and_blank_lines_change_nothing(tmp_path):
    pytest.importorskip("networkx")
    wrong = []
    for kind, change in CHANGES.items():
        for name, files, expected in WHOLE:
            if kind == "blank" and name == "labels":
                continue  # a line there is a set, which may be empty
            found = sizes_of(write(tmp_path / kind, name, files, change))
            if found != expected:
                wrong.append((kind, name, found))
    assert not wrong


def test_ogb_s_tables_with_marks(tmp_path):
    folder = write_ogb_graphs(tmp_path / "ogbg_molhiv")
    expected = data.load(folder)
    for path in folder.rglob("*.csv.gz"):
        text = gzip.decompress(path.read_bytes())
        path.write_bytes(gzip.compress(MARK + text.replace(b"\n", b"\r\n")))
    found = data.load(folder)
    for name in ("senders", "receivers", "features", "edge_features", "labels"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_nothing_one_node_and_odd_ids(tmp_path):
    for number, (name, files, expected) in enumerate(OTHERS):
        files = {name: files} if isinstance(files, str) else files
        path = write(tmp_path / str(number), name, files)
        if isinstance(expected, str):
            with pytest.raises(DataError, match=expected):
                data.load(path)
        else:
            assert sizes_of(path) == expected, (name, files)


def test_arrays_of_nothing_and_of_one(tmp_path):
    matrices = {
        "a": (sp.coo_array((0, 0)), (0, 0)),
        "b": (sp.coo_array((1, 1)), (1, 0)),
        "c": (sp.coo_array(([1.0], ([0], [1])), shape=(2, 2)), (2, 1)),
        "d": (sp.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(2, 2)), (2, 1)),
    }
    for name, (matrix, expected) in matrices.items():
        sp.save_npz(tmp_path / f"{name}.npz", matrix)
        assert sizes_of(tmp_path / f"{name}.npz") == expected
    for count in (0, 1):
        buffer = io.BytesIO()
        np.save(buffer, np.zeros((count, 3)))
        (tmp_path / "p.npy").write_bytes(buffer.getvalue())
        assert sizes_of(tmp_path / "p.npy") == (count, 0)
