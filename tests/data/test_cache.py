"""The cache of built data sets: equal to what was read, rebuilt where stale or damaged."""

import concurrent.futures
import dataclasses
import fcntl
import os
import subprocess
import sys
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn import data
from jaxgnn.data import DataError
from jaxgnn.data.cache import built_sets as cache
from jaxgnn.data.cache import directory as cache_directory
from jaxgnn.data.cache import set_file
from tests.support.large_sets import write_ogb_graphs


@pytest.fixture
def entries(tmp_path, monkeypatch):
    """The entries there are: their inodes, which change where one is written anew."""
    monkeypatch.setenv("JAXGNN_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "graphs"
    return lambda: {path: path.stat().st_ino for path in sorted(folder.glob("*"))}


def age(path, mtime=1_000_000_000):
    """Gives files a time; by default one of long ago, which is relied on."""
    for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
        os.utime(file, ns=(mtime, mtime))
    return path


def write_tables(folder, middle="bob"):
    """Names, labels of text, weights and features of edges."""
    folder.mkdir(exist_ok=True)
    rows = ["id,label,split,age", "ann,red,train,1", f"{middle},blue,val,2", "café,red,test,3"]
    (folder / "nodes.csv").write_text("\n".join([*rows, ""]), "utf-8")
    edges = ["source,target,weight,kind", f"ann,{middle},2.5,0", f"{middle},café,1,1", ""]
    (folder / "edges.csv").write_text("\n".join(edges), "utf-8")
    return age(folder)


def write_edges(path, seed=0):
    ends = np.random.default_rng(seed).integers(10, 99, (300, 2))
    path.write_text("".join(f"{a} {b}\n" for a, b in ends))
    return age(path)


def contents(value, place=""):
    """All that a data set holds, by the places of its fields."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        parts = [contents(item, f"{place}.{name}") for name, item in value.items()]
        return {name: item for part in parts for name, item in part.items()}
    return {place: value}


def assert_equal(got, expected):
    assert type(got) is type(expected)
    got, expected = contents(got), contents(expected)
    assert got.keys() == expected.keys()
    for place, value in expected.items():
        assert isinstance(got[place], type(value)), place
        if isinstance(value, np.ndarray | jax.Array):
            assert got[place].dtype == value.dtype, place
            np.testing.assert_array_equal(got[place], value, err_msg=place)
        else:
            assert got[place] == value, place


def test_what_is_cached_equals_what_was_read(tmp_path, entries):
    paths = [
        write_tables(tmp_path / "tables"),
        age(write_ogb_graphs(tmp_path / "graphs", tasks=2)),  # missing targets, an empty graph
        write_edges(tmp_path / "a.txt"),
    ]
    (tmp_path / "empty.txt").write_text("")
    age(tmp_path / "empty.txt")
    options = [{}, {}, {"undirected": True}, {}]
    read = []
    for path, given in zip([*paths, tmp_path / "empty.txt"], options, strict=True):
        read.append(data.load(path, cache=True, **given))
        before = entries()
        assert len(before) == len(read)
        cached = data.load(path, cache=True, **given)
        assert entries() == before  # it was not written again
        assert_equal(cached, read[-1])
        assert_equal(data.load(path, cache=False, **given), read[-1])
    graph = cached.graph if cached.num_edges else data.load(paths[2], cache=True).graph
    graph.validate()
    undirected = data.load(paths[2], cache=True, undirected=True).graph
    assert undirected.symmetric and undirected.senders is undirected.transpose_receivers


def test_the_file_is_mapped_and_never_written_to(tmp_path, entries):
    path = write_tables(tmp_path / "set")
    data.load(path, cache=True)
    cached = data.load(path, cache=True)
    before = cached.features.copy(), np.asarray(cached.graph.senders).copy()
    cached.features[:] = 7
    scaled = data.load(path, cache=True, normalize_features=True)
    assert scaled.features.max() <= 1
    total = jax.jit(lambda senders: senders + 1, donate_argnums=0)
    if jax.default_backend() == "cpu":  # XLA reads the mapped pages where they are
        address = cached.graph.senders.unsafe_buffer_pointer()
        with open("/proc/self/maps") as maps:
            lines = [line.split() for line in maps if ".graph" in line]
        ranges = [[int(end, 16) for end in line[0].split("-")] for line in lines]
        assert any(begin <= address < end for begin, end in ranges)
    total(cached.graph.senders)
    again = data.load(path, cache=True)
    np.testing.assert_array_equal(again.features, before[0])
    np.testing.assert_array_equal(again.graph.senders, before[1])
    (entry,) = entries()
    entry.unlink()  # what is mapped stays
    y = jaxgnn.spmm(again.graph, jnp.asarray(again.features), again.weights)
    np.testing.assert_allclose(y, [[0.0], [2.5], [2.0]])


def test_changed_sources_are_read_again(tmp_path, entries, monkeypatch):
    folder = write_tables(tmp_path / "set")
    now = time.time_ns() + 10**12  # not yet over, however slow the test is
    age(folder, now)
    assert data.load(folder, cache=True).node_names[1] == "bob"
    (first,) = entries().items()
    # Another content of the same size and time, as a change within the same tick of the clock.
    write_tables(folder, "eve")
    age(folder, now)
    assert data.load(folder, cache=True).node_names[1] == "eve"
    (second,) = entries().items()
    assert first[0] == second[0] and first[1] != second[1]
    # Where the time alone differs the checksum decides; a time that is long ago is kept then.
    for old in (1_000_000_000, 2_000_000_000):
        age(folder, old)
        before = entries()
        data.load(folder, cache=True)
        (renewed,) = entries().items()
        assert before != dict([renewed])
        with monkeypatch.context() as patch:
            patch.setattr(cache, "_checksum", None)  # the next call does without
            data.load(folder, cache=True)
        assert dict([renewed]) == entries()
    (folder / "edges.csv").write_text("source,target\nann,eve\n")
    age(folder, old)  # the size tells
    assert data.load(folder, cache=True).weights is None
    # A further file may be one that the reader takes; other options are another entry.
    before = entries()
    (folder / "more.txt").write_text("")
    data.load(folder, cache=True)
    assert entries() != before
    data.load(folder, cache=True, undirected=True)
    assert len(entries()) == 2


def test_damaged_entries_are_rebuilt(tmp_path, entries):
    path = write_edges(tmp_path / "a.txt")
    expected = data.load(path, cache=True)
    (entry,) = entries()
    valid, rng = entry.read_bytes(), np.random.default_rng(0)
    damaged = [b"", valid[:10], valid[:-1], valid + b"x", valid[: len(valid) // 2]]
    for place in (0, 9, 13, 20, len(valid) - 5, *rng.integers(len(valid), size=20)):
        data_ = bytearray(valid)
        data_[place] ^= 0x41
        damaged.append(bytes(data_))
    for content in damaged:
        entry.write_bytes(content)
        assert_equal(data.load(path, cache=True), expected)
    assert len(entries()) == 1 and entry.read_bytes() == valid
    # Larger than may be taken: the reader says so.
    with pytest.raises(DataError, match="max_bytes"):
        data.load(path, cache=True, max_bytes=100)
    with pytest.raises(DataError, match="more than the limit of 100 "):
        set_file.read(entry, 100)


def test_when_there_is_no_cache(tmp_path, entries, monkeypatch):
    path = write_edges(tmp_path / "a.txt")
    data.load(path), data.load(path, cache=False), data.load("digits", cache=True)
    assert not entries()  # small, not wanted, not read from a file
    with pytest.raises(DataError, match="cache: expected None, True or False, got 'yes'"):
        data.load(path, cache="yes")
    monkeypatch.setattr(cache, "CACHED_FROM", 1000)
    data.load(path)
    assert len(entries()) == 1
    # All entries together take so much at most; the one that was used last stays.
    monkeypatch.setattr(cache, "MOST_BYTES", 1 << 14)
    for seed in range(4):
        data.load(write_edges(tmp_path / f"{seed}.txt", seed))
    kept = entries()
    assert 1 <= len(kept) < 5 and any(found.name.startswith("3-txt") for found in kept)
    folder = next(iter(kept)).parent
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="others may write to it"):
        data.load(path)
    folder.chmod(0o700)
    assert entries() == kept
    # Where nothing can be written, reading goes on.
    monkeypatch.setattr(set_file, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    data.load(path, cache=True)
    assert entries() == kept
    monkeypatch.setenv("JAXGNN_CACHE", "")
    data.load(path, cache=True)
    for name in ("JAXGNN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_home(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.expanduser", no_home)
    data.load(path, cache=True)
    with pytest.raises(DataError, match="JAXGNN_CACHE: expected a directory, for the user has no"):
        cache_directory.user_cache()


def test_a_killed_process_leaves_nothing_harmful(tmp_path, entries):
    path = write_edges(tmp_path / "a.txt")
    code = f"""
        import os, signal, zlib
        from jaxgnn import data
        from jaxgnn.data.cache import set_file
        seen = []
        def crc32(block):
            seen.append(block)
            if len(seen) == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            return 0
        set_file.zlib = type("zlib", (), {{"crc32": crc32}})
        data.load({str(path)!r}, cache=True)
    """
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=120, check=False)
    (left,) = entries()
    assert child.returncode == -9 and left.suffix == ".part" and left.stat().st_size
    # Another process's unfinished file, which it holds, stays.
    held = left.with_name("other.part")
    with held.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:  # several at once
            loaded = list(pool.map(lambda _: data.load(path, cache=True), range(8)))
        assert [found.suffix for found in entries()] == [".graph", ".part"]
    expected = data.load(path, cache=False)
    for found in loaded:
        assert_equal(found, expected)
