"""Readers of Matrix Market files and edge lists."""

import gzip
import re

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from jaxgnn import data
from jaxgnn.data import DataError
from jaxgnn.data.files.limits import Budget
from jaxgnn.data.files.native import native_module
from jaxgnn.data.formats.edges import parse

MATRIX = """%%MatrixMarket matrix coordinate {kind}
% a comment
4 {columns} 5
1 2{a}
3 1{b}
4 1{a}
4 2{b}
4 4{a}
"""


def write_matrix(path, kind="real general", columns=4, a=" 2.5", b=" 0"):
    path.write_text(MATRIX.format(kind=kind, columns=columns, a=a, b=b))
    return path


def test_gnutella(data_directory):
    path = data_directory / "p2p_gnutella31" / "p2p-Gnutella31.mtx.gz"
    csr = data.read_matrix_market(path)
    assert (csr.num_nodes, csr.num_edges) == (62_586, 147_892)
    matrix = scipy.sparse.csr_array(scipy.io.mmread(path))
    senders, receivers = matrix.tocoo().coords
    graph = csr.to_graph()
    dense = set(zip(np.asarray(graph.senders), np.asarray(graph.receivers), strict=True))
    assert dense == set(zip(senders, receivers, strict=True))


def test_facebook(data_directory):
    path = data_directory / "facebook_combined" / "facebook_combined.txt.gz"
    csr = data.read_edge_list(path, undirected=True)
    assert (csr.num_nodes, csr.num_edges, csr.degrees.max()) == (4039, 176_468, 1045)
    assert data.read_edge_list(path).num_edges == 88_234


@pytest.mark.parametrize("kind", ("real", "pattern"))
def test_matrix_market(tmp_path, kind):
    values = ("", "") if kind == "pattern" else (" 2.5", " 0")
    path = write_matrix(tmp_path / "a.mtx", f"{kind} general", 4, *values)
    csr = data.read_matrix_market(path)
    assert csr.receivers.tolist() == [0, 0, 1, 1, 3]
    assert csr.senders.tolist() == [2, 3, 0, 3, 3]


def test_matrix_market_refuses(tmp_path):
    with pytest.raises(DataError, match=r"a\.mtx: expected a square matrix, got 4 x 5"):
        data.read_matrix_market(write_matrix(tmp_path / "a.mtx", columns=5))
    whole = write_matrix(tmp_path / "a.mtx").read_text()
    for damaged in (
        "",
        whole[:60],
        whole[:-5],
        whole.replace("4 4 5", "4 4 500000000000"),
        whole.replace("4 4 5", "4000000000 4000000000 5"),
        whole.replace("4 1", "5 1"),
        whole.replace("4 1", "0 1"),
        whole.replace("4 1", "x 1"),
        whole.replace("%%MatrixMarket", "%%"),
    ):
        path = tmp_path / "b.mtx"
        path.write_text(damaged)
        with pytest.raises(DataError, match=r"b\.mtx: "):
            data.read_matrix_market(path)
    with pytest.raises(DataError, match=r"none\.mtx: cannot be read"):
        data.read_matrix_market(tmp_path / "none.mtx")


def test_edge_list(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("# a comment\n% another\n0 1\n1,0, 7.5\n\n2\t2\n0 1\n4 2 x\n")
    csr = data.read_edge_list(path)
    assert csr.num_nodes == 5
    assert csr.receivers.tolist() == [0, 1, 2, 2]
    assert csr.senders.tolist() == [1, 0, 2, 4]
    assert data.read_edge_list(path, num_nodes=9, undirected=True).num_edges == 5
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write(path.read_text())
    assert data.read_edge_list(tmp_path / "a.txt.gz").senders.tolist() == [1, 0, 2, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0 x\n", "line 1: expected two ids"),
        ("0 1\n0 1.5\n", "line 2: expected two ids from 0 to 2147483646, got '0 1.5'"),
        ("# a\n0\n", "line 2: expected two ids"),
        ("0 -1\n", "line 1: expected two ids from 0 to 2147483646, got '0 -1'"),
        ("0 2000000\n", "claims 2000001 nodes"),
        ("0 99999999999999999999\n", "line 1: expected two ids"),
        ("\x00\xff\n", r"line 1: expected two ids from 0 to 2147483646, got '\\x00\\xff'"),
    ],
)
def test_edge_list_refuses(tmp_path, content, message):
    path = tmp_path / "a.txt"
    path.write_text(content, encoding="latin1")
    with pytest.raises(DataError, match=rf"a\.txt: {message}"):
        data.read_edge_list(path)


def test_edge_list_with_too_few_nodes(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("0 5\n")
    with pytest.raises(DataError, match="expected ids from 0 to 3, got 5"):
        data.read_edge_list(path, num_nodes=4)


def test_truncated_gzip(tmp_path):
    whole = gzip.compress(b"0 1\n" * 1000)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(whole[:-9])
    with pytest.raises(DataError, match=r"a\.txt\.gz: "):
        data.read_edge_list(path)


# The formats, line by line.

HEAD = "%%MatrixMarket matrix coordinate {} {}\n"


def write_lines(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode("latin1"))
    return path


def pattern_of(path):
    """The matrix that SciPy's own parser reads, as the pairs of rows and columns."""
    matrix = scipy.sparse.coo_array(scipy.io.mmread(path))
    return sorted(zip(*(ids.tolist() for ids in matrix.coords), strict=True))


@pytest.mark.parametrize("symmetry", ("general", "symmetric", "skew-symmetric"))
@pytest.mark.parametrize("field", ("real", "integer", "pattern"))
@pytest.mark.parametrize("form", ("coordinate", "array"))
def test_matrix_market_formats(tmp_path, form, field, symmetry):
    if field == "pattern" and (form == "array" or symmetry == "skew-symmetric"):
        pytest.skip("no such format")
    rng = np.random.default_rng(0)
    matrix = rng.integers(-2, 3, (7, 7))
    if symmetry != "general":
        lower = np.tril(matrix, -1 if symmetry == "skew-symmetric" else 0)
        matrix = lower + np.tril(lower, -1).T * (-1 if symmetry == "skew-symmetric" else 1)
    values = matrix.astype(float if field == "real" else np.int64)
    stored = values if form == "array" else scipy.sparse.coo_array(values)
    path = tmp_path / "a.mtx"
    scipy.io.mmwrite(path, stored, "a comment", field=field, symmetry=symmetry)
    assert path.read_text().startswith(f"%%MatrixMarket matrix {form} {field} {symmetry}")
    csr = data.read_matrix_market(path)
    expected = [(int(i), int(j)) for i, j in zip(*np.nonzero(matrix), strict=True)]
    edges = sorted(zip(csr.senders.tolist(), csr.receivers.tolist(), strict=True))
    assert edges == expected == pattern_of(path)
    (tmp_path / "b.mtx").write_bytes(gzip.compress(path.read_bytes().replace(b"\n", b" \r\n")))
    packed = data.read_matrix_market(tmp_path / "b.mtx")
    assert packed.senders.tolist() == csr.senders.tolist()


def test_matrix_market_numbers(tmp_path):
    values = ("1", "-1.5", "+.5", "5.", "1e5", "1E-5", "1d+300", "nan", "-Inf", "infinity", "0")
    lines = [f"{i + 1} 1 {value}" for i, value in enumerate(values)]
    text = HEAD.format("REAL", "General") + f"\n 20\t20  {len(lines)} \n\n" + "\n".join(lines)
    csr = data.read_matrix_market(write_lines(tmp_path / "a.mtx", text))
    assert csr.num_edges == len(values)


PATTERN = HEAD.format("pattern", "general")
REAL = HEAD.format("real", "general")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PATTERN + "30 30 2\n1 2\n7 3\0\n", r"line 4: expected a row .* got '7 3\\x00'"),
        (PATTERN + "30 30 2\n1 2\n7 3junk", "line 4: expected a row"),
        (PATTERN + "30 30 2\n1 2\n7 3\njunk", "line 5: expected the end of the file after 2"),
        *(
            (PATTERN + f"30 30 2\n1 2\n7 {column}\n", "line 4: expected a row from 1 to 30")
            for column in (
                "1.9",
                "1e1",
                "1,2",
                "1_0",
                "12junk",
                "+1",
                "-1",
                "0",
                "31",
                "",
                "2" * 99,
            )
        ),
        (PATTERN + "30 30 2\n1 2\n7 3 1\n", "line 4: expected two columns, got '7 3 1'"),
        (PATTERN + "30 30 2\n1 2\n% late\n7 3\n", "line 4: expected a row"),
        (PATTERN + "30 30 2\n1 2\n", "expected 2 entries, got 1"),
        (PATTERN + "30 30\n1 2\n", "line 2: expected two sizes below 2..31 and the number"),
        (PATTERN + "30 30 -1\n", "line 2: expected two sizes"),
        (PATTERN + "2147483648 30 1\n", "line 2: expected two sizes"),
        (REAL + "3 3 1\n1 2\n", "line 3: expected a value, got '1 2'"),
        (REAL + "3 3 1\n1 2 3 4\n", "line 3: expected three columns"),
        *(
            (REAL + f"3 3 1\n1 2 {value}\n", "line 3: expected a value")
            for value in ("x", "1e", "1e+", ".", "-", "1.2.3", "1,5", "0x1", "1_0", "infin")
        ),
        (HEAD.format("integer", "general") + "3 3 1\n1 2 1.5\n", "line 3: expected an integer"),
        (HEAD.format("complex", "general") + "3 3 1\n1 2 1 2\n", "edges have no complex weights"),
        (HEAD.format("complex", "hermitian") + "3 3 0\n", "edges have no complex weights"),
        (HEAD.format("quaternion", "general"), "line 1: expected the field real"),
        (HEAD.format("real", "diagonal"), "line 1: expected the symmetry general"),
        (HEAD.format("pattern", "skew-symmetric"), "which a pattern does not have"),
        (HEAD.format("real", "symmetric") + "3 4 0\n", "line 2: expected a square matrix"),
        (HEAD.format("real", "skew-symmetric") + "3 3 1\n2 2 1\n", "nothing on the diagonal"),
        ("%%MatrixMarket matrix coordinate pattern general x\n", "line 1: expected '%%Matrix"),
        ("%%MatrixMarket vector coordinate pattern general\n", "line 1: expected '%%Matrix"),
        ("%%MatrixMarket matrix sparse pattern general\n", "line 1: expected coordinate or array"),
        ("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n", "expected 4 entries, got 3"),
        ("%%MatrixMarket matrix array real general\n2 2\n1 2\n", "line 3: expected one value"),
        (PATTERN, "got its end before the sizes"),
        ("", "got its end before the sizes"),
        (PATTERN + "% " + "x" * 70_000, "line 2: expected at most 65536 bytes"),
    ],
)
def test_matrix_market_is_strict(tmp_path, text, message):
    path = write_lines(tmp_path / "a.mtx", text)
    with pytest.raises(DataError, match=rf"a\.mtx: .*{message}"):
        data.read_matrix_market(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("7 12junk", "expected two ids"),
        ("7 1.0", "expected two ids"),
        ("7 1_0", "expected two ids"),
        ("7,,1", "expected two ids"),
        (",7 1", "expected two ids"),
        ("7;1", "expected two ids"),
        ("7 2147483647", "expected two ids"),
        ("7 1 \x1b[2J", "expected text"),
        ("7 1 \0", "expected text"),
        ("7 1 \xe9", "expected text"),
    ],
)
def test_edge_list_is_strict(tmp_path, line, message):
    path = write_lines(tmp_path / "a.txt", f"# \xe9\n0 1\n{line}\n")
    with pytest.raises(DataError, match=rf"a\.txt: line 3: {message}"):
        data.read_edge_list(path)


def test_blocks_end_anywhere(tmp_path, monkeypatch):
    from jaxgnn._core import limits

    edges = np.random.default_rng(0).integers(0, 500, (3000, 2))
    path = write_lines(tmp_path / "a.txt", "\r\n".join(f" {a} ,\t{b} x" for a, b in edges))
    expected = np.unique(edges[:, ::-1], axis=0)
    for block in (1, 2, 7, 1000, 1 << 18):
        monkeypatch.setattr(limits, "_BLOCK", block)
        csr = data.read_edge_list(path)
        np.testing.assert_array_equal(np.stack([csr.receivers, csr.senders], 1), expected)


# Lines of counts.


@pytest.mark.parametrize(
    ("counts", "options"),
    [
        ("36692 367662", {"nodes": 36692, "lines": 367662}),
        ("50 120", {"nodes": 50, "lines": 120}),
        ("50 60", {"nodes": 50, "lines": 120}),
        ("50 120", {"nodes": 50, "lines": 60}),
        ("50 120", {"nodes": 50, "lines": 120, "base": 1}),
        ("200 120", {"nodes": 200, "lines": 120}),
    ],
)
def test_a_line_of_counts_is_no_edge(tmp_path, counts, options):
    """As SNAP's Email-Enron has it."""
    nodes, lines, base = options["nodes"], options["lines"], options.get("base", 0)
    edges = np.random.default_rng(0).integers(base, nodes + base, (lines, 2))
    edges[0] = nodes + base - 1, base
    text = "# comment\n" + counts + "\n" + "\n".join(f"{a} {b}" for a, b in edges)
    path = write_lines(tmp_path / "a.txt", text)
    with pytest.raises(DataError, match=rf"line 2: '{counts}' looks like .* skip_lines=2"):
        data.read_edge_list(path)
    assert data.read_edge_list(path, skip_lines=2).num_nodes == nodes + base
    more = data.read_edge_list(path, num_nodes=10**6)
    assert more.num_edges == len(np.unique(edges, axis=0)) + 1


@pytest.mark.parametrize("text", ("0 1\n", "5 6\n3 4\n0 1\n", "6 5\n4 3\n", "3 0\n0 1\n1 2\n2 3"))
def test_an_edge_is_no_line_of_counts(tmp_path, text):
    csr = data.read_edge_list(write_lines(tmp_path / "a.txt", text))
    assert csr.num_edges == len(text.split()) // 2


def test_skip_lines_is_checked(tmp_path):
    path = write_lines(tmp_path / "a.txt", "0 1\n")
    for value in (-1, 1.5, True, 10**30):
        with pytest.raises(DataError, match="skip_lines: expected an integer from 0"):
            data.read_edge_list(path, skip_lines=value)
        with pytest.raises(DataError, match="num_nodes: expected an integer from 0"):
            data.read_edge_list(path, num_nodes=value)


def test_load_nodes_refuses_a_bare_graph(tmp_path):
    path = write_lines(tmp_path / "a.mtx.gz", gzip.compress((PATTERN + "3 3 1\n1 2\n").encode()))
    assert data.load(path).num_edges == 1
    with pytest.raises(DataError, match=r"a\.mtx\.gz: expected nodes with labels, got PlainGraph"):
        data.load_nodes(path)


def test_info_prints_the_statistics_of_a_bare_graph(tmp_path, capsys):
    from jaxgnn_cli import main

    path = write_lines(tmp_path / "a.mtx.gz", gzip.compress((PATTERN + "3 3 1\n1 2\n").encode()))
    assert main(["info", str(path)]) == 0
    assert re.search(r"nodes\s+│ 3 ", capsys.readouterr().out)
    path.write_bytes(b"%%MatrixMarket\n")
    assert main(["info", str(path)]) == 2
    assert re.fullmatch(r"jaxgnn: .*a\.mtx\.gz: line 1: expected .*\n", capsys.readouterr().err)


@pytest.mark.parametrize("end", ("\n", "\r\n"))
def test_plain_lines_between_others(tmp_path, end):
    """Lines of two short ids are parsed by a loop of their own; the others are not."""
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 2**31 - 1, (50_000, 2)) >> rng.integers(0, 31, (50_000, 1))
    forms = (
        "{}\t{}",
        "{} {}",
        "{},{}",
        " {}  {} ",
        "{} , {}, 0.5",
        "{} {} x",
        "# c" + end + "{} {}",
    )
    lines = [
        forms[kind].format(*pair) for kind, pair in zip(rng.choice(7, 50_000), pairs, strict=True)
    ]
    path = write_lines(tmp_path / "a.txt", end.join(lines) + end)
    parser = native_module("").EdgeListParser(0)
    parse(parser, path, Budget())
    np.testing.assert_array_equal(np.stack(parser.take(), axis=1), pairs)
    assert parser.max_id == pairs.max()
    assert parser.max_later_id == pairs[1:].max() and parser.first_line in (1, 2)
    number = len(end.join(lines).split("\n")) + 1
    for bad in ("1 2147483647", "1 99999999999999999999", "1", "1 2 \0", "1;2"):
        write_lines(path, end.join([*lines, bad]) + end)
        with pytest.raises(DataError, match=rf"line {number}: expected "):
            data.read_edge_list(path)


@pytest.mark.parametrize("delimiter", ["\t", ",", ";"])
def test_names_after_an_edge_of_numbers(tmp_path, delimiter):
    path = tmp_path / "edges.txt"
    path.write_text(f"1{delimiter}2\nNew York{delimiter}3\n")
    graph = data.read_edges(path, names=True)
    assert graph.node_names == ("1", "2", "New York", "3")


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("undirected", "no", "True or False"),
        ("weights", 1, "True or False"),
        ("names", "x", "True or False or None"),
        ("num_nodes", 2.5, "an integer or None"),
        ("delimiter", 3, "text or None"),
    ],
)
def test_types_of_options(tmp_path, option, value, expected):
    path = tmp_path / "edges.txt"
    path.write_text("0 1\n")
    with pytest.raises(DataError, match=f"^{option}: expected {expected}, got"):
        data.load(path, **{option: value})
