"""Readers of Matrix Market files and edge lists."""

import gzip

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from jaxgnn import data
from jaxgnn.data import DataError

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
        ("0 x\n", "cannot be read"),
        ("0 1.5\n", "cannot be read"),
        ("0\n", "cannot be read"),
        ("0 -1\n", "expected ids from 0 to 0, got -1 to 0"),
        ("0 2000000\n", "claims 2000001 nodes"),
        ("0 99999999999999999999\n", "cannot be read"),
        ("\x00\xff\n", "cannot be read"),
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
    with pytest.raises(DataError, match="expected ids from 0 to 3, got 0 to 5"):
        data.read_edge_list(path, num_nodes=4)


def test_truncated_gzip(tmp_path):
    whole = gzip.compress(b"0 1\n" * 1000)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(whole[:-9])
    with pytest.raises(DataError, match=r"a\.txt\.gz: "):
        data.read_edge_list(path)
