"""Damaged and hostile directories."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import export
from jaxgnn.data import DataError
from tests.support.exports import FEATURES, NODES, OTHER, PLATFORM, edited, other_program, replaced

pytest.importorskip("flatbuffers")


def test_damaged_and_hostile_directories(written, tmp_path):
    def message(directory):
        with pytest.raises(DataError) as caught:
            export.load(directory)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    copies = (tmp_path / str(number) for number in range(1000))
    assert "no exported model" in message(tmp_path / "nowhere")
    assert "no exported model" in message("x" * 5000)
    for changes, expected in (
        ({"format": 1}, "expected format 4, got 1: export the run again"),
        ({"jaxgnn": "0.0.1"}, "exported by jaxgnn '0.0.1', whose kernels are not those of"),
        (
            {"platforms": [OTHER], "kernels": {OTHER: []}},
            f"exported for {OTHER}, the default device",
        ),
        (
            {"kernels": {PLATFORM: ["jaxgnn_later"]}},
            f"needs the kernel 'jaxgnn_later' on {PLATFORM}",
        ),
        ({"dtype": "float64"}, "needs jax.config.update('jax_enable_x64', True)"),
        ({"num_nodes": "40"}, "num_nodes: expected a count, got '40'"),
        ({"num_nodes": 41}, "the program expects float32[40, 5], the files hold float32[41, 5]"),
        ({"arrays": ["senders"]}, "arrays: expected row_offsets, senders"),
        ({"class_names": ["a"]}, "class_names: expected 3 names, got 1"),
        ({"feature_names": ["a"]}, "feature_names: expected 5 names, got 1"),
        ({"normalized_features": None}, "normalized_features: expected true or false"),
        ({"sha256": {}}, "sha256: expected those of program.bin and variables.npz"),
        ({"num_graphs": 3}, "a model of graphs, for jaxgnn.export.load_graphs"),
        ({"num_graphs": 3, "links": True}, "links: expected false of graphs, got True"),
        ({"num_edge_features": 2}, "arguments are not the weights and the arrays of a graph"),
        ({"edge_weights": True}, "arguments are not the weights and the arrays of a graph"),
        ({"edge_weights": 1}, "edge_weights: expected true or false, got 1"),
        ({"edge_weights": True, "num_graphs": 3}, "edge_weights: expected false of links and of"),
        ({"more": 1}, "expected the keys format, jaxgnn"),
        (
            {"kernels": {PLATFORM: []}},
            "expected calls of jaxgnn's kernels alone, got 'jaxgnn_spmm'",
        ),
    ):
        assert expected in message(edited(written, next(copies), **changes))
    for text in ("", "[]", "[" * 100_000, "{", "\0"):
        directory = edited(written, next(copies))
        (directory / "manifest.json").write_text(text)
        assert "manifest.json: " in message(directory)

    program = (written / "program.bin").read_bytes()
    for name in ("program.bin", "variables.npz"):
        directory = edited(written, next(copies))
        blob = bytearray((directory / name).read_bytes())
        blob[len(blob) // 2] ^= 1
        (directory / name).write_bytes(blob)
        assert "its checksum is not that of the manifest" in message(directory)
        (directory / name).unlink()
        assert f"{name}: cannot be read" in message(directory)
    for blob in (b"", program[:100], program[: len(program) // 2], b"\xff" * 1000):
        found = message(replaced(written, next(copies), "program.bin", blob))
        assert "cannot read it, written by jax" in found
    x = jax.ShapeDtypeStruct((NODES, FEATURES), jnp.float32)

    def calls_another(x):
        return jax.ffi.ffi_call("xla_ffi_other", jax.ShapeDtypeStruct((NODES, 3), x.dtype))(x)

    blob = other_program(calls_another, x)
    found = message(replaced(written, next(copies), "program.bin", blob))
    assert "expected calls of jaxgnn's kernels alone, got 'xla_ffi_other'" in found
    blob = other_program(lambda x: x[:, :3], x)
    found = message(replaced(written, next(copies), "program.bin", blob))
    assert "the program's arguments are not the weights and the arrays of a graph" in found
    np.savez(tmp_path / "pickled.npz", a=np.array([{}], object))
    blob = (tmp_path / "pickled.npz").read_bytes()
    assert "pickled" in message(replaced(written, next(copies), "variables.npz", blob))
