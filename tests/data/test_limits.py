"""What a reader may open, read, build and print, whatever the file: cost is bounded by it."""

import functools
import gzip
import os
import re
import socket
import struct
import sys
import zipfile

import numpy as np
import pytest
import scipy.sparse

from jaxgnn import data
from jaxgnn._core.text import printable
from jaxgnn.data import DataError
from jaxgnn.data.files.limits import MESSAGE_LENGTH, Budget, quote
from tests.data.test_npz import claim, shchur_arrays
from tests.data.test_planetoid import write_planetoid
from tests.fuzz.pool import Worker
from tests.support.large_sets import write_csv, write_graphsaint, write_ogb, write_reddit
from tests.support.memory import SLACK, cost_of

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS and /proc are Linux's"),
    pytest.mark.few(1),
]

MB = 1 << 20


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.stop()


@pytest.fixture
def refused(worker):
    return functools.partial(assert_refused, worker)


def assert_refused(worker, call, max_bytes=256 * MB, *, match, seconds=10.0, peak=None):
    """Asserts that the call ends with one short line, in time and within its memory."""
    cost = cost_of(worker, call, max_bytes)
    assert cost.kind == "refused", cost
    assert cost.message is not None and re.search(match, cost.message), cost
    assert len(cost.message) <= MESSAGE_LENGTH and cost.message.isprintable()
    assert cost.peak_bytes <= (max_bytes if peak is None else peak) + SLACK, cost
    assert cost.seconds < seconds and not cost.warnings, cost


# Messages.


def test_messages_are_one_short_line():
    for text in ("a\nb\x1b[2J\0é", "x" * 10**6, "\x1b" * 10**6, "\udcff\u202e" * 200):
        message = str(DataError(text))
        assert len(message) <= MESSAGE_LENGTH and message.isprintable()
    assert str(DataError("a\nb\x1b[2J")) == r"a\nb\x1b[2J"
    assert printable("a" * 50 + "b" * 50, 20) == "a" * 13 + "..." + "b" * 4


def test_quoting_does_not_build_a_repr():
    nested = ()
    for _ in range(200):
        nested = (nested, nested)  # its repr has 2^200 characters
    assert quote(nested) == "tuple"
    assert quote((2, 10**4000, 3, 4, 5)) == "[2, an integer of 13288 bits, 3, 4, ...]"
    assert quote("x\n" * 10**6).startswith(r"'x\nx") and len(quote("x\n" * 10**6)) < 70


def test_long_names_keep_their_end(tmp_path):
    folder = tmp_path
    for _ in range(6):
        folder = folder / ("d" * 90)
    folder.mkdir(parents=True)
    (folder / "a\x1b[31m.txt").write_text("x")
    with pytest.raises(DataError, match=re.escape(r"a\x1b[31m.txt: line 1: expected two ids")):
        data.read_edge_list(folder / "a\x1b[31m.txt")
    with pytest.raises(DataError, match="name too long"):
        data.load(tmp_path / ("n" * 300))


def test_max_bytes_is_checked():
    for value in (0, -1, 1.5, "1", True):
        with pytest.raises(DataError, match="max_bytes: expected a positive integer"):
            Budget(value)


# Files that are none.

READERS = {
    "edge list": (data.read_edge_list, "a.txt"),
    "matrix": (data.read_matrix_market, "a.mtx"),
    "shchur": (data.read_shchur, "a.npz"),
    "heterophilous": (data.read_heterophilous, "a.npz"),
}


def put(kind, path):
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(os.path.relpath(path))
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ("FIFO", "directory", "socket", "character device"))
def test_only_regular_files_are_opened(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    expected = f"expected a regular file, got a {kind}"
    for i, (reader, name) in enumerate(READERS.values()):
        path = tmp_path / f"{i}{name}"
        put(kind, path)
        with pytest.raises(DataError, match=expected):
            reader(path)
    folders = {
        "planetoid": (write_planetoid, data.read_planetoid, "ind.citeseer.allx"),
        "planetoid's index": (write_planetoid, data.read_planetoid, "ind.citeseer.test.index"),
        "graphsaint": (write_graphsaint, data.read_graphsaint, "role.json"),
        "graphsaint's features": (write_graphsaint, data.read_graphsaint, "feats.npy"),
        "reddit": (write_reddit, data.read_reddit, "reddit_graph.npz"),
        "ogb": (write_ogb, data.read_ogb, "raw/edge.csv.gz"),
    }
    for name, (write, reader, file) in folders.items():
        folder = tmp_path / name
        if write is write_planetoid:
            folder.mkdir()
        write(folder)
        (folder / file).unlink()
        put(kind, folder / file)
        with pytest.raises(DataError, match=expected):
            reader(folder)


def test_a_file_that_grows_is_read_as_it_was(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    with Budget().open(path) as file:
        with path.open("ab") as other:
            other.write(b"6789")
        assert file.read(3) == b"123" and file.read() == b"45" and file.read() == b""
    with Budget().open(path) as file, path.open("ab") as other:
        other.write(b"x")
        other.flush()
        with pytest.raises(DataError, match="another size while reading"):
            file.read_all()


# Bombs.


def pickled_planetoid(tmp_path, part, program):
    write_planetoid(tmp_path)
    (tmp_path / f"ind.citeseer.{part}").write_bytes(program)
    return f"data.read_planetoid({str(tmp_path)!r})"


def nested_tuples(depth):
    """Opcodes of a tuple of two tuples of two tuples ...: its `repr` has 2^depth characters."""
    return b")q\x00" + b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(depth))


def test_shared_tuples_cost_no_repr(refused, tmp_path):
    # An array whose shape is the nested tuple, which the memo has at 100.
    program = (
        b"\x80\x02"
        + nested_tuples(100)
        + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        + b"(K\x01h\x64cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R\x89U\x04abcdtb."
    )
    refused(
        pickled_planetoid(tmp_path, "x", program),
        match="expected a pickled array of at most 2 axes, got the shape tuple",
    )


def test_shared_tuples_name_nothing(refused, tmp_path):
    nested = b"\x80\x04" + nested_tuples(200)
    refused(
        pickled_planetoid(tmp_path, "x", nested + b"\x8c\x01a\x93."),
        match="a pickle that names a tuple str",
    )


def test_a_list_that_is_shared_is_charged_each_time(refused, tmp_path):
    # 160 KB that stand for 400 million neighbors.
    items = b"".join(b"J%sh\x00" % struct.pack("<i", i) for i in range(20_000))
    program = b"\x80\x02}q\x01(J\xff\xff\xff\x7f]q\x00(" + b"K\x01" * 20_000 + b"e" + items + b"u."
    call = pickled_planetoid(tmp_path, "graph", program)
    refused(call, match="neighbors, in lists used repeatedly")


def test_a_text_that_is_shared_is_charged_each_time(refused, tmp_path):
    # Each of 100,000 calls would encode a text of 500 KB anew.
    text = b"X" + struct.pack("<i", 500_000) + b"a" * 500_000
    start = b"\x80\x02c_codecs\nencode\nq\x00" + text + b"X\x06\x00\x00\x00latin1\x86q\x01"
    program = start + b"h\x00h\x01R" * 100_000 + b"."
    call = pickled_planetoid(tmp_path, "x", program)
    refused(call, match="a pickle that uses one text again and again")


@pytest.mark.parametrize(
    "opcode", (b"]", b"}", b"]q\x00", b"(", b"G\x00\x00\x00\x00\x00\x00\x00\x00")
)
def test_objects_of_a_pickle_are_charged(refused, tmp_path, opcode):
    program = b"\x80\x02" + opcode * 3_000_000 + b"."
    call = pickled_planetoid(tmp_path, "graph", program)
    call = call.replace(")", f", max_bytes={128 * MB})")
    refused(call, 128 * MB, match="more than the limit of 134,217,728", seconds=30)


def test_wide_characters_of_a_pickle_are_charged(refused, tmp_path):
    text = "\U0001f600".encode() + b"a" * 30_000_000
    program = b"\x80\x02X" + struct.pack("<I", len(text)) + text + b"."
    call = pickled_planetoid(tmp_path, "graph", program).replace(")", f", max_bytes={128 * MB})")
    refused(call, 128 * MB, match="more than the limit of")


@pytest.mark.parametrize("count", (2**31 - 1, 9 * 10**14, -5, 10**30))
def test_ogb_s_counts_cost_nothing(refused, tmp_path, count):
    folder = write_ogb(tmp_path / "ogbn_proteins", features=0, tasks=4)
    write_csv(folder / "raw" / "num-node-list.csv.gz", [count])
    expected = "expected (2147483647 rows, got 40|a number from 0|64-bit integers)"
    refused(f"data.read_ogb({str(folder)!r})", match=expected, seconds=2, peak=8 * MB)


def gz(path, *parts):
    with gzip.open(path, "wb", compresslevel=1) as file:
        for part in parts:
            file.write(part)
    return path


@pytest.mark.parametrize("reader", ("read_edge_list", "read_matrix_market"))
def test_compressed_zeros(refused, tmp_path, reader):
    path = gz(tmp_path / "a.gz", *[bytes(1 << 24)] * 30)
    refused(f"data.{reader}({str(path)!r})", match="line 1: expected .* got '.x00", peak=8 * MB)


def test_compressed_comments(refused, tmp_path):
    path = gz(tmp_path / "a.gz", *[b"%\n" * (1 << 23)] * 15, b"0 x\n")
    call = f"data.read_edge_list({str(path)!r})"
    refused(call, match="line 125829121: expected two ids", peak=8 * MB, seconds=30)


def test_compressed_edges(refused, tmp_path):
    path = gz(tmp_path / "a.gz", *[b"0 1\n" * (1 << 22)] * 10)
    call = f"data.read_edge_list({str(path)!r}, max_bytes={128 * MB})"
    refused(call, 128 * MB, match="more than the limit of 134,217,728", seconds=30)


def test_nodes_are_bounded_by_the_edges(refused, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("#" + "x" * 60_000 + "\n" + "0 600000000\n")
    call = f"data.read_edge_list({str(path)!r})"
    refused(call, match="claims 600000001 nodes for 1 edges", peak=8 * MB)
    path = tmp_path / "a.mtx"
    comments = ("%" + "x" * 60_000 + "\n") * 10
    head = "%%MatrixMarket matrix coordinate pattern general\n"
    path.write_text(head + comments + "600000000 600000000 1\n1 1\n")
    call = f"data.read_matrix_market({str(path)!r})"
    refused(call, match="claims 600000000 nodes for 1 edges", peak=8 * MB)
    path.write_text("0 999999\n")
    call = f"data.read_edge_list({str(path)!r}, num_nodes=2147483647)"
    refused(call, match="more than the limit of", peak=8 * MB)


def test_messages_do_not_grow_with_the_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\x1b[2J" + "z" * 50_000)
    with pytest.raises(DataError, match=r"got '\\x1b\[2Jz+\.\.\.'") as refusal:
        data.read_edge_list(path)
    assert len(str(refusal.value)) <= MESSAGE_LENGTH
    path.write_text("1" * 10**6)
    with pytest.raises(DataError, match="line 1: expected at most 65536 bytes"):
        data.read_edge_list(path)


def test_labels_are_refused_by_their_header(refused, tmp_path):
    content = claim((250_000_000,), "|i1", 0)
    arrays = shchur_arrays(labels=None)
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("labels.npy", "w", force_zip64=True) as entry,
    ):
        entry.write(content)
        for _ in range(250):
            entry.write(bytes(1_000_000))
    call = f"data.read_shchur({str(path)!r})"
    refused(call, match="labels: expected 220 entries, one a node, got 250000000", peak=8 * MB)


def test_a_directory_of_many_entries(refused, tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(30_000):
            archive.writestr(str(i), b"")
    refused(f"data.load({str(path)!r})", match="expected parts of at most 1,048,576 bytes")


def test_json_is_charged(refused, tmp_path):
    folder = write_graphsaint(tmp_path / "set")
    call = f"data.read_graphsaint({str(folder)!r}, max_bytes={128 * MB})"
    for part in ("[],", "[" * 500 + "]" * 500 + ",", '{"":0},', '"\U0001f600",', "999,"):
        for size in (15_000_000, 400_000):  # too much, and what fits
            text = '{"0": [' + part * (size // len(part)) + "[]]}"
            (folder / "class_map.json").write_text(text)
            message = "limit of 134,217,728" if size > MB else "for each of the 40 nodes, got 1"
            refused(call, 128 * MB, match=message)
    texts = ", ".join(f'"{i}": "a"' for i in range(39))
    (folder / "class_map.json").write_text(f'{{{texts}, "39": "{"a" * 10**7}"}}')
    refused(
        f"data.read_graphsaint({str(folder)!r})", 10_000 * MB, match="labels: expected integers"
    )


# The limit is a promise: of files that can be read, what is taken is within what is allowed.


def write_npz(path, arrays):
    np.savez_compressed(path, **arrays)
    return path


def valid_files(tmp_path):
    rng = np.random.default_rng(0)
    n, e = 20_000, 150_000
    edges = rng.integers(0, n, (e, 2))
    text = "\n".join(f"{a} {b}" for a, b in edges)
    (tmp_path / "edges.txt").write_text(text)
    yield "edge list", f"data.read_edge_list({str(tmp_path / 'edges.txt')!r}, undirected=True"
    ones = "\n".join(f"{a + 1} {b + 1}" for a, b in edges)
    matrix = gz(
        tmp_path / "a.mtx.gz",
        f"%%MatrixMarket matrix coordinate pattern symmetric\n{n} {n} {e}\n{ones}\n".encode(),
    )
    yield "matrix", f"data.read_matrix_market({str(matrix)!r}"
    attributes = scipy.sparse.random_array((n, 300), density=0.01, format="csr", rng=rng)
    order = np.argsort(edges[:, 0], kind="stable")
    shchur = dict(
        adj_data=np.ones(e, np.float32),
        adj_indices=edges[order, 1],
        adj_indptr=np.searchsorted(edges[order, 0], np.arange(n + 1)),
        adj_shape=np.array([n, n]),
        attr_data=attributes.data,
        attr_indices=attributes.indices,
        attr_indptr=attributes.indptr,
        attr_shape=np.array([n, 300]),
        labels=np.arange(n) % 5,
    )
    yield "shchur", f"data.read_shchur({str(write_npz(tmp_path / 's.npz', shchur))!r}"
    masks = rng.integers(0, 3, (10, n))
    heterophilous = dict(
        node_features=rng.standard_normal((n, 200)),
        node_labels=np.arange(n) % 3,
        edges=edges,
        train_masks=masks == 0,
        val_masks=masks == 1,
        test_masks=masks == 2,
    )
    path = write_npz(tmp_path / "h.npz", heterophilous)
    yield "heterophilous", f"data.read_heterophilous({str(path)!r}"
    nodes = 4_000
    for name, write, options in (
        ("graphsaint", write_graphsaint, {"features": 200}),
        ("reddit", write_reddit, {"features": 200}),
        ("ogb", write_ogb, {"features": 100}),
        ("ogb", write_ogb, {"features": 0, "tasks": 30}),
    ):
        folder = write(tmp_path / f"{name}{options['features']}", nodes=nodes, **options)
        yield name, f"data.read_{name}({str(folder)!r}"
    folder = tmp_path / "planetoid"
    folder.mkdir()
    wide = {
        part: scipy.sparse.random(rows, 3000, 0.01, "csr", np.float32, random_state=0)
        for part, rows in (("x", 6), ("tx", 12), ("allx", 5_000))
    }
    labels = {
        part: np.eye(3, dtype=np.int32)[np.arange(m.shape[0]) % 3] for part, m in wide.items()
    }
    lists = {i: rng.integers(0, 5_012, 20).tolist() for i in range(5_012)}
    write_planetoid(
        folder,
        **wide,
        y=labels["x"],
        ty=labels["tx"],
        ally=labels["allx"],
        graph=lists,
        **{"test.index": range(5_000, 5_012)},
    )
    yield "planetoid", f"data.read_planetoid({str(folder)!r}"


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    return list(valid_files(tmp_path_factory.mktemp("valid")))


@pytest.mark.system
@pytest.mark.parametrize("index", range(9))
def test_the_peak_is_within_max_bytes(worker, calls, index):
    name, call = calls[index]
    read = []
    for megabytes in (1, 8, 32, 128, 512):
        cost = cost_of(worker, f"{call}, max_bytes={megabytes * MB})", megabytes * MB)
        assert cost.peak_bytes <= megabytes * MB + SLACK, (name, megabytes, cost)
        assert cost.message is None or "max_bytes" in cost.message, (name, megabytes, cost)
        read.append(cost.message is None)
    assert not read[0] and read[-1], (name, read)
    assert cost_of(worker, f"{call})", 16 << 30).message is None  # the default suffices
