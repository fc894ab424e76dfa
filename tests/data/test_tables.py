"""Own data as two tables, CSV and Parquet."""

import gzip

import numpy as np
import pytest

from jaxgnn import data
from jaxgnn.data import DataError, PlainGraph
from jaxgnn.data.loading.directions import load_undirected, with_reverse_edges

NODES = "id,x,label,split,y\na,1,red,train,0.5\nb,2,blue,val,1\n3000000000,3,red,TEST,-2\nd,4,,,0\n"
EDGES = "source,target,weight,f\na,b,2,1\nb,3000000000,0.5,2\na,b,1,3\nd,a,1,4\n"


def write(folder, nodes=NODES, edges=EDGES):
    (folder / "nodes.csv").write_text(nodes, newline="")
    (folder / "edges.csv").write_text(edges, newline="")
    return folder


def weighted_edges(loaded):
    graph = loaded.graph
    receivers = np.repeat(np.arange(loaded.num_nodes), np.diff(np.asarray(graph.row_offsets)))
    ends = np.stack([np.asarray(graph.senders), receivers, loaded.weights], axis=1)
    return sorted(map(tuple, ends.tolist()))


def check(loaded):
    assert loaded.node_names == ("a", "b", "3000000000", "d")
    assert loaded.class_names == ("blue", "red") and loaded.labels.tolist()[:3] == [1, 0, 1]
    assert loaded.features.tolist() == [[1, 0.5], [2, 1], [3, -2], [4, 0]]
    assert weighted_edges(loaded) == [(0, 1, 1), (0, 1, 2), (1, 2, 0.5), (3, 0, 1)]
    np.testing.assert_array_equal(loaded.edge_features.shape, (4, 1))
    split = loaded.split("file")
    masks = [split.train.tolist(), split.val.tolist(), split.test.tolist()]
    assert masks == [[True] + [False] * 3, [False, True, False, False], [False, False, True, False]]


def test_csv(tmp_path):
    check(data.load(write(tmp_path)))
    # As other systems write it: a byte order mark, \r\n, blank lines, quotes, blanks.
    for nodes, edges in (
        ("\ufeff" + NODES.replace("\n", "\r\n"), "\ufeff" + EDGES.replace("\n", "\r\n\r\n")),
        (NODES.replace("red", ' "red"').replace(' "red"', '"red"'), EDGES.replace(",", " , ")),
    ):
        check(data.load(write(tmp_path, nodes, edges)))
    merged = data.load(tmp_path, undirected=True)
    assert weighted_edges(merged)[0] == (0, 1, 3) and merged.graph.num_edges == 6
    (tmp_path / "edges.csv").unlink()
    (tmp_path / "edges.csv.gz").write_bytes(gzip.compress(EDGES.encode()))
    check(data.load(tmp_path))


def test_parquet(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    write(tmp_path)
    for name in ("nodes", "edges"):
        pandas.read_csv(tmp_path / f"{name}.csv").to_parquet(tmp_path / f"{name}.parquet")
        (tmp_path / f"{name}.csv").unlink()
    check(data.load(tmp_path))
    (tmp_path / "edges.parquet").write_bytes(b"PAR1" * 8)
    with pytest.raises(DataError, match=r"edges\.parquet: cannot be read"):
        data.load(tmp_path)


def test_what_is_optional(tmp_path):
    plain = data.load(write(tmp_path, "id\n0\n1\n", "target,source\n1,0\n"))
    assert type(plain) is PlainGraph and plain.node_names is None is plain.features
    assert np.asarray(plain.graph.senders).tolist() == [0]
    for nodes, edges in (("id\n", "source,target\n"), ("id\nx\n", "source,target\nx,x\n")):
        plain = data.load(write(tmp_path, nodes, edges))
        assert plain.num_nodes == plain.num_edges == nodes.count("\n") - 1
    rows = "".join(f"{i},{i % 3 if i < 30 else ''}\n" for i in range(40))
    drawn = data.load(write(tmp_path, "id,label\n" + rows, "source,target\n1,0\n"), seed=5)
    assert drawn.class_names is drawn.node_names is None and drawn.num_classes == 3
    assert next(iter(drawn.splits)) == "seed5" and drawn.split().sizes == (15, 7, 8)
    assert not any(mask[30:].any() for mask in vars(drawn.split()).values())
    assert drawn.features[:2, 0].tolist() == [np.float32(np.log(2)), 0]
    again = data.load(tmp_path, seed=5)
    np.testing.assert_array_equal(again.split().test, drawn.split().test)
    named = data.load(write(tmp_path, "id,label,labels,Weight\nx,a,3,1\n", "source,target\n"))
    assert named.feature_names == ("labels", "Weight")
    one = data.load(write(tmp_path, "id,label\nx,10\ny,9\n", "source,target\n"), num_splits=1)
    assert one.class_names == ("9", "10") and one.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        (["10.0", "", "9.0", "9"], ("9", "10"), [1, 0, 0, 0]),  # as pandas writes missing ones
        (["+1", "-1", "+1", "-1"], ("-1", "+1"), [1, 0, 1, 0]),
        (["1.5", "v2", "1.10", "nan"], ("1.10", "1.5", "nan", "v2"), [1, 3, 0, 2]),
    ],
)
def test_classes_that_are_numbers(tmp_path, labels, names, expected):
    rows = "".join(f"{i},{label},train\n" for i, label in enumerate(labels))
    loaded = data.load(write(tmp_path, "id,label,split\n" + rows, "source,target\n"))
    assert loaded.class_names == names and loaded.labels.tolist() == expected
    assert loaded.split().train.tolist() == [label != "" for label in labels]


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ("", EDGES, r"nodes\.csv: line 1: expected the names of the columns, got an empty file"),
        (NODES[3:], EDGES, r"nodes\.csv: line 1: expected the column 'id'"),
        ("id,x,Label\n", EDGES, r"nodes\.csv: line 1: expected the column 'label', got 'Label'"),
        ("id,splits\n", EDGES, r"nodes\.csv: line 1: expected the column 'split', got 'splits'"),
        (NODES, "source,target,WEIGHTS\n", r"edges\.csv: line 1: .* 'weight', got 'WEIGHTS'"),
        (NODES, "source,weight\n", r"edges\.csv: line 1: expected the column 'target'"),
        ("id,x,x\n", EDGES, r"line 1: expected different names of columns, got 'x'"),
        (",id,\n", EDGES, r"a name for each column, got none for column 1 \(pandas: .*index=False"),
        ("id\na\na\n", EDGES, r"nodes\.csv: line 3, column 'id': .* there before: 'a'"),
        ("id,x\n\n,1\n", EDGES, r"nodes\.csv: line 3, column 'id': .* an empty id"),
        (NODES, EDGES + "\nz,a,1,1\n", r"edges\.csv: line 7, column 'source': .* node, got 'z'"),
        (NODES, "source,target\na,b\na,\n", r"edges\.csv: line 3, column 'target': .* got ''"),
        (
            NODES.replace("-2", "two"),
            EDGES,
            r"nodes\.csv: line 4, column 'y': .* number, got 'two'",
        ),
        (
            NODES.replace("-2", "inf"),
            EDGES,
            r"column 'y': expected a finite float32 number, got 'inf'",
        ),
        (NODES, EDGES.replace("0.5", "1_0"), r"line 3, column 'weight': .* number, got '1_0'"),
        (NODES.replace("TEST", "tset"), EDGES, r"line 4, column 'split': .* nothing, got 'tset'"),
        ("id,x\na\n", EDGES, r"nodes\.csv: line 2: expected 2 fields, got 1"),
        ('id\n"a', EDGES, r"nodes\.csv: line 2: expected comma-separated fields"),
        ("id,split\na,train\n", "source,target\n", "expected the column 'label' beside 'split'"),
        (
            "id,label\na,1\nb,\nc,0.25\n",
            "source,target\n",
            r"column 'label': expected names or integers as classes, got '0.25' of the node 'c'",
        ),
        ("id,label\na,1\nb,nan\n", "source,target\n", "column 'label': .* got 'nan' of"),
        ("id,label\na,-1e-05\n", "source,target\n", "column 'label': .* got '-1e-05' of"),
        ("id,label\na,\n", "source,target\n", "label: expected a node with a label, got none"),
        ("id,label,split\na,,test\n", "source,target\n", "label: expected a node with a label"),
        ("id\n\x1b[2J\n", "source,target\n\x1bx,a\n", r"line 2, .*got '\\x1bx'"),
    ],
)
def test_refusals_name_file_line_and_column(tmp_path, nodes, edges, message):
    with pytest.raises(DataError, match=message):
        data.load(write(tmp_path, nodes, edges))


def test_nodes_without_labels_name_the_column(tmp_path):
    write(tmp_path, "id,class\na,1\nb,2\n", "source,target\na,b\n")
    message = (
        r"expected nodes with labels \(the column 'label' of nodes\.csv\), got none; .*--task link"
    )
    with pytest.raises(DataError, match=message):
        data.load_nodes(tmp_path)


def test_limits(tmp_path):
    write(tmp_path, "id\n" + "".join(f"{i}\n" for i in range(2000)), "source,target\n")
    with pytest.raises(DataError, match=r"would take .* more than the limit of 100,000"):
        data.load(tmp_path, max_bytes=100_000)
    (tmp_path / "nodes.csv").write_bytes(b"id\n\xff\n")
    with pytest.raises(DataError, match=r"nodes\.csv: line 2: expected UTF-8"):
        data.load(tmp_path)


@pytest.mark.parametrize("nodes", [NODES, "id,x\na,1\nb,2\n3000000000,3\nd,4\n"])
def test_reverse_edges_of_what_is_loaded(nodes, tmp_path):
    """As the reader's own option, weights and features of edges too."""
    loaded = data.load(write(tmp_path, nodes=nodes))
    expected = data.load(tmp_path, undirected=True)
    found = with_reverse_edges(loaded)
    assert type(found) is type(loaded) and found.graph.symmetric
    assert weighted_edges(found) == weighted_edges(expected)
    assert len(weighted_edges(found)) == 6 and weighted_edges(found) != weighted_edges(loaded)
    np.testing.assert_array_equal(found.edge_features, expected.edge_features)
    assert with_reverse_edges(found) is found


def test_degrees_as_features_count_the_reverse_edges(tmp_path):
    write(tmp_path, "id,label\na,x\nb,y\nc,x\n", "source,target\na,b\nb,c\n")
    assert data.load(tmp_path).features[:, 0] == pytest.approx(np.log1p([0, 1, 1]))
    assert load_undirected(tmp_path).features[:, 0] == pytest.approx(np.log1p([1, 2, 1]))


def test_names_of_features_and_a_table_that_is_missing(tmp_path):
    assert data.load(write(tmp_path)).feature_names == tuple(
        name for name in NODES.splitlines()[0].split(",") if name not in ("id", "label", "split")
    )
    (tmp_path / "edges.csv").unlink()
    with pytest.raises(DataError, match=r"expected an edges.csv beside nodes.csv"):
        data.load(tmp_path)


def test_weights_that_a_run_does_not_use(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    from jaxgnn.train import TrainConfig
    from jaxgnn.train.problems.problem import make_problem
    from jaxgnn.train.process.recovery import Recovery

    config = TrainConfig(dataset=str(write(tmp_path)), hidden=4).check()
    described = make_problem(config, None, Recovery()).describe()
    assert "weights and features of the edges are not used (weights: --edge-weights)" in described


@pytest.mark.parametrize("split", ["", ",split"])
def test_homophily_is_of_labelled_nodes(tmp_path, split):
    """c's class is unknown, though labels hold the first one for it."""
    parts = ("train", "test", "", "val") if split else ("",) * 4
    rows = zip("abcd", ("red", "blue", "", "blue"), parts, strict=True)
    lines = [f"{name},{label}" + (f",{part}" if split else "") for name, label, part in rows]
    nodes = "\n".join([f"id,label{split}", *lines, ""])
    write(tmp_path, nodes, "source,target\na,b\nb,c\nc,d\nd,b\n")
    loaded = data.load(tmp_path)
    assert loaded.metadata.unlabelled and loaded.statistics()["homophily"] == 0.5
    write(tmp_path, nodes.replace("c,", "c,red"), "source,target\nc,b\n")
    assert not data.load(tmp_path).metadata.unlabelled
