"""The pickle reader: the arrays it admits, and that nothing else gets through."""

import collections
import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from jaxgnn.data import DataError
from jaxgnn.data.files import unpickle
from jaxgnn.data.files.limits import reading

DTYPES = ("f4", "f8", "f2", "i1", "i4", "i8", "u1", "u2", "b1", ">f4", ">i8")


@pytest.mark.parametrize("protocol", (2, 3, 4))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", "CF")
def test_arrays(protocol, dtype, order):
    array = np.asarray(np.arange(12).reshape(3, 4) % 5, dtype, order=order)
    loaded = unpickle.as_array(unpickle.loads(pickle.dumps(array, protocol)))
    assert loaded.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(loaded, array)


@pytest.mark.parametrize("protocol", (2, 3, 4))
def test_empty_arrays(protocol):
    for shape in ((0,), (0, 3), (3, 0)):
        program = pickle.dumps(np.zeros(shape, np.float32), protocol)
        assert unpickle.as_array(unpickle.loads(program)).shape == shape


@pytest.mark.parametrize("protocol", (2, 4))
@pytest.mark.parametrize("container", (scipy.sparse.csr_matrix, scipy.sparse.csr_array))
def test_csr(protocol, container):
    dense = np.arange(12, dtype=np.float32).reshape(3, 4) % 3
    loaded = unpickle.as_matrix(unpickle.loads(pickle.dumps(container(dense), protocol)))
    assert isinstance(loaded, scipy.sparse.csr_array)
    np.testing.assert_array_equal(loaded.toarray(), dense)


@pytest.mark.parametrize("protocol", range(5))
def test_neighbor_lists(protocol):
    lists = collections.defaultdict(list, {0: [1, np.int64(70_000)], 3: [], 1: [0, 0, 1]})
    # Protocols 0 and 1 spell NumPy's scalars otherwise.
    if protocol < 2:
        lists[0] = [1, 70_000]
    for value in (lists, dict(lists)):
        sources, targets = unpickle.as_neighbor_lists(unpickle.loads(pickle.dumps(value, protocol)))
        assert sources.tolist() == [0, 0, 1, 1, 1]
        assert targets.tolist() == [1, 70_000, 0, 0, 1]


def test_python_2_strings():
    # What Python 2 wrote: raw values as a byte string.
    raw = struct.pack("<3f", 1.5, -2.0, 255.0)
    program = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x03\x85cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U" + bytes([len(raw)]) + raw + b"tb."
    )
    np.testing.assert_array_equal(unpickle.as_array(unpickle.loads(program)), [1.5, -2.0, 255.0])


class Calls:
    """Pickles to a call of `function`."""

    def __init__(self, function, *arguments):
        self.reduced = (function, arguments)

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("place", ("alone", "in a list", "in a dict"))
def test_code_does_not_run(tmp_path, protocol, place):
    victim = tmp_path / "victim"
    victim.write_text("whole")
    for call in (
        Calls(os.remove, str(victim)),
        Calls(eval, f"__import__('os').remove({str(victim)!r})"),
        Calls(getattr, "os", "remove"),
        Calls(np.load, str(victim), None, True),
        Calls(np.dtype, Calls(os.remove, str(victim))),
        Calls(collections.defaultdict, Calls(os.remove, str(victim))),
    ):
        value = {"alone": call, "in a list": [1, call], "in a dict": {"a": call}}[place]
        with pytest.raises(DataError, match=r"a pickle (that names|with the opcode)"):
            unpickle.loads(pickle.dumps(value, protocol))
    assert victim.read_text() == "whole"


@pytest.mark.parametrize(
    "value",
    [
        print,
        os.system,
        np.load,
        np.random.default_rng,
        pickle.loads,
        collections.OrderedDict(a=1),
        np.ma.masked_array([1.0]),
        np.matrix([[1.0]]),
        scipy.sparse.coo_matrix(np.eye(2)),
    ],
)
def test_other_globals_are_refused(value):
    for protocol in (2, 4):
        with pytest.raises(DataError, match="a pickle that names"):
            unpickle.loads(pickle.dumps(value, protocol))


def arrays(*pickled: object) -> list:
    return [pickle.dumps(value, 2) for value in pickled]


@pytest.mark.parametrize(
    "program",
    [
        *arrays(np.array([None, {}], object), np.array([(1, 2.0)], "i4,f8"), np.array(["a"])),
        *arrays(np.zeros((2, 2, 2)), np.zeros(3, "c8"), np.zeros(3, "M8[s]"), np.float32(3), 7),
    ],
)
def test_other_arrays_are_refused(program):
    with pytest.raises(DataError):
        unpickle.as_array(unpickle.loads(program))


@pytest.mark.parametrize(
    "program",
    [
        b"",
        b".",
        b"\x80\x02",
        b"\x80\x02]",
        b"\x80\x02(.",
        b"\x80\x02K\x01K\x02a.",
        b"\x80\x02h\x07.",
        b"\x80\x02Pone\n.",
        b"\x80\x02}K\x01K\x02K\x03(u.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02}]K\x01s.",
        b"\x80\x02}K\x01)\x85K\x01s.",
        b"\x80\x02cnumpy\ndtype\nNR.",
        b"\x80\x02cnumpy\ndtype\n)R.",
        b"\x80\x02cnumpy\ndtype\nU\x01O\x85R.",
        b"\x80\x02cnumpy\ndtype\nU\x02f4\x85RK\x01b.",
        b"\x80\x02cnumpy\ndtype\nU\x02f4\x85R(K\x03U\x01<U\x01xNNtb.",
        b"\x80\x02c__builtin__\nlist\n(K\x01tR.",
        b"\x80\x02c__builtin__\nobject\n)R.",
        b"\x80\x02K\x01K\x01R.",
        b"\x80\x02K\x01K\x01b.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02\x82\x01.",
    ],
)
def test_broken_programs(program):
    # `reading` names the file and gives what the standard library raises its one type.
    with pytest.raises(DataError, match=r"^file: "), reading("file"):
        unpickle.as_array(unpickle.loads(program))


def csr_with(**changes) -> bytes:
    """A pickle of a CSR matrix whose fields don't fit."""
    matrix = scipy.sparse.csr_matrix(np.array([[1, 0, 2], [0, 3, 0]], np.float32))
    state = dict(matrix.__dict__)
    state.update(changes)
    matrix.__dict__.clear()
    matrix.__dict__.update(state)
    return pickle.dumps(matrix, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"indptr": np.array([0, 3, 2], np.int32)},
        {"indptr": np.array([1, 2, 3], np.int32)},
        {"indptr": np.array([0, 2, 2**30], np.int32)},
        {"indptr": np.array([0, 2], np.int32)},
        {"indptr": np.array([0.0, 2.0, 3.0])},
        {"indptr": np.zeros((2, 2), np.int32)},
        {"indices": np.array([0, 3, 1], np.int32)},
        {"indices": np.array([0, -1, 1], np.int32)},
        {"indices": np.array([0, 2**63 + 1, 1], np.uint64)},
        {"indices": np.array([0, 2], np.int32)},
        {"data": np.ones(4, np.float32)},
        {"data": np.ones((3, 1), np.float32)},
        {"data": np.array([None] * 3)},
        {"data": [1.0, 2.0, 3.0]},
        {"_shape": (2, 2)},
        {"_shape": (-2, 3)},
        {"_shape": (2, 2**31)},
        {"_shape": (2**62, 2**62)},
        {"_shape": (2, 3, 1)},
        {"_shape": (2.0, 3.0)},
        {"_shape": None},
    ],
)
def test_inconsistent_csr(changes):
    with pytest.raises(DataError):
        unpickle.as_matrix(unpickle.loads(csr_with(**changes)))


def test_unchanged_csr_is_taken():
    assert unpickle.as_matrix(unpickle.loads(csr_with())).nnz == 3


def array_claiming(shape: bytes) -> bytes:
    """An array of 4 bytes of values that claims another shape."""
    return (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01" + shape + b"cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x04abcdtb."
    )


@pytest.mark.parametrize(
    "program",
    [
        array_claiming(b"J\x00\x00\x00\x7f\x85"),
        array_claiming(b"\x8a\x08" + b"\x00" * 7 + b"\x40\x85"),
        array_claiming(b"K\x00K\x07\x86"),
        array_claiming(b"J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86"),
        array_claiming(b"\x89\x85"),
        array_claiming(b"N"),
        # Lengths of strings, and places of the memo, that the file does not have.
        b"\x80\x02T\xff\xff\xff\x7fabc.",
        b"\x80\x04\x8e\x00\x00\x00\x00\x00\x00\x00\x40abc.",
        b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x40abc.",
        b"\x80\x02K\x01r\xff\xff\xff\xff0.",
        # A tuple of tuples of tuples ..., whose hash would take 2^60 steps.
        b"\x80\x02})" + b"\x86".join(b"q%ch%c" % (i, i) for i in range(60)) + b"\x86K\x01s.",
    ],
)
def test_bombs(program):
    tracemalloc.start()
    try:
        with pytest.raises((ValueError, IndexError)):
            unpickle.as_array(unpickle.loads(program))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_claimed_shape_that_fits_is_taken():
    assert unpickle.as_array(unpickle.loads(array_claiming(b"K\x01\x85"))).shape == (1,)


@given(st.data())
def test_damage(draw):
    matrix = scipy.sparse.csr_matrix(np.eye(5, 8, dtype=np.float32))
    original = pickle.dumps(matrix, draw.draw(st.sampled_from((2, 4))))
    damaged = bytearray(original)
    for _ in range(draw.draw(st.integers(1, 3))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    damaged = bytes(damaged[: draw.draw(st.integers(len(damaged) // 2, len(damaged)))])
    try:
        with reading("file"):
            loaded = unpickle.as_matrix(unpickle.loads(damaged))
    except DataError:
        return
    # Whatever got through is safe for SciPy.
    if isinstance(loaded, scipy.sparse.csr_array):
        loaded.check_format(full_check=True)
