"""Folders of partitions: what comes back, and what damaged ones say."""

import json
from hashlib import sha256

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import distributed
from jaxgnn._core.ffi import cpu_module
from jaxgnn.data import DataError, benchmark_graph
from jaxgnn.distributed import Partition

pytestmark = pytest.mark.skipif(cpu_module is None, reason="jaxgnn._cpu is not built")


@pytest.fixture
def saved(tmp_path):
    csr = benchmark_graph("arxiv", 0.01)
    split = distributed.partition(csr, 3)
    x = np.arange(2 * csr.num_nodes, dtype=np.float32).reshape(-1, 2)
    split.save(tmp_path / "out", csr, {"x": x})
    return csr, split, x, tmp_path / "out"


def test_parts_come_back(saved):
    csr, split, x, folder = saved
    back = Partition.load(folder)
    np.testing.assert_array_equal(back.owner, split.owner)
    assert (back.parts, back.statistics) == (3, split.statistics)
    for part in range(3):
        data = Partition.load_part(folder, part)
        np.testing.assert_array_equal(data.nodes, np.flatnonzero(split.owner == part))
        np.testing.assert_array_equal(data.arrays["x"], x[data.nodes])
        rows = np.split(data.senders, data.row_offsets[1:-1])
        for node, row in zip(data.nodes, rows, strict=True):
            begin, end = csr.row_offsets[node : node + 2]
            np.testing.assert_array_equal(row, csr.senders[begin:end])
    with pytest.raises(ValueError, match="directory: expected an empty one"):
        split.save(folder, csr)
    with pytest.raises(ValueError, match="x: expected numbers with"):
        split.save(folder, csr, {"x": x[1:]})
    with pytest.raises(ValueError, match=r"x: expected numbers with .* got bfloat16"):
        split.save(folder.with_name("other"), csr, {"x": x.astype(jnp.bfloat16)})
    with pytest.raises(ValueError, match="part: expected 0 to 2, got 3"):
        Partition.load_part(folder, 3)


def test_damage_names_the_file_and_spares_other_parts(saved):
    *_, folder = saved
    path = folder / "part-00001" / "senders.npy"
    whole = path.read_bytes()
    for data, message in ((whole[:-4], "expected .* bytes"), (whole[:-1] + b"~", "checksum")):
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"part-00001/senders\.npy: .*{message}"):
            Partition.load_part(folder, 1)
        Partition.load_part(folder, 0)
    path.unlink()
    with pytest.raises(DataError, match=r"part-00001/senders\.npy"):
        Partition.load_part(folder, 1)
    nodes = folder / "part-00002" / "nodes.npy"
    whole = nodes.read_bytes()
    nodes.write_bytes((folder / "part-00000" / "nodes.npy").read_bytes())
    with pytest.raises(DataError, match=r"part-00002/nodes\.npy"):
        Partition.load(folder)
    nodes.write_bytes(whole)
    manifest = folder / "manifest.json"
    good = json.loads(manifest.read_text())
    for change in ({"version": 2}, {"parts": 0}, {"format": "other"}, {"files": []}):
        manifest.write_text(json.dumps(good | change))
        with pytest.raises(DataError, match=r"manifest\.json"):
            Partition.load_part(folder, 0)
    manifest.write_text(json.dumps(good | {"nodes": 1 << 60}))
    with pytest.raises(DataError, match=r"some nodes have no part"):
        Partition.load(folder)
    # Checksums that fit do not make it a part.
    for name, change, message in (
        ("row_offsets", lambda values: values[::-1].copy(), "expected an ascent from 0"),
        ("senders", lambda values: -1 - values, "senders: expected nodes from 0 to "),
        ("nodes", lambda values: values[::-1].copy(), "nodes: expected int64, ascending"),
        ("x", lambda values: values[1:], "do not belong together"),
    ):
        path = folder / "part-00000" / f"{name}.npy"
        content = path.read_bytes()
        np.save(path, change(np.load(path)))
        changed = {"bytes": path.stat().st_size, "sha256": sha256(path.read_bytes()).hexdigest()}
        files = good["files"] | {f"part-00000/{name}.npy": changed}
        manifest.write_text(json.dumps(good | {"files": files}))
        with pytest.raises(DataError, match=message):
            Partition.load_part(folder, 0)
        path.write_bytes(content)
    manifest.unlink()  # interrupted before the end
    with pytest.raises(DataError, match=r"manifest\.json"):
        Partition.load(folder)
