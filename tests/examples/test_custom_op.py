"""The operation outside of the tree: built as its page says, its values and its gradient."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn import Graph
from tests.support.paths import ROOT
from tests.support.processes import PACKAGES

PAGE = (ROOT / "docs" / "adding-an-operation.md").read_text(encoding="utf-8")
NEEDED = ("common/rows.h", "ffi/check.h", "cpu/core/parallel.h", "cuda/core/rows.cuh")


def test_headers_are_where_the_function_says():
    assert all((Path(jaxgnn.include_dir()) / header).is_file() for header in NEEDED)


def energy(graph, x, d):
    """The energies, and the gradient of their sum weighted by `d`, in float64."""
    x, d = np.asarray(x, np.float64), np.asarray(d, np.float64)
    y, dx = np.zeros(len(x)), np.zeros_like(x)
    for j, i in zip(np.asarray(graph.senders), np.asarray(graph.receivers), strict=True):
        y[i] += ((x[j] - x[i]) ** 2).sum()
        dx[i] += 2 * d[i] * (x[i] - x[j])
        dx[j] += 2 * d[i] * (x[j] - x[i])
    return y, dx


@pytest.mark.system
def test_the_page_builds_and_runs(tmp_path, monkeypatch):
    pytest.importorskip("pybind11")
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    shutil.copytree(
        ROOT / "examples" / "custom_op",
        tmp_path / "examples" / "custom_op",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    install, *commands = re.search(r"```bash\n(.*?)```", PAGE, re.S)[1].splitlines()
    assert install.startswith("pip install") and len(commands) == 2
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": PACKAGES, "JAX_PLATFORMS": "cpu"}
    built = subprocess.run(
        ["bash", "-ec", "\n".join(commands)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert built.returncode == 0, built.stdout
    assert "warning:" not in built.stdout, built.stdout

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", PAGE, re.S)[1], names)
    assert "cpu" in names["PLATFORMS"]
    assert (shutil.which("nvcc") is None) == ("cuda" not in names["PLATFORMS"])
    y, dx = energy(names["graph"], names["x"], jnp.arange(5.0))
    np.testing.assert_allclose(names["y"], y, rtol=1e-5)
    np.testing.assert_allclose(names["dx"], dx, rtol=1e-5, atol=1e-5)
    text = jax.jit(names["dirichlet_energy"]).lower(names["graph"], names["x"]).as_text()
    assert "@dirichlet_energy" in text  # the kernel, not the reference

    def both(graph, x, d):
        y, pull = jax.vjp(lambda x: names["dirichlet_energy"](graph, x), x)
        return y, pull(d)[0]

    # Directed, with repeated edges, self-loops, isolated nodes and more than a block of rows;
    # without edges; without nodes.
    rng = np.random.default_rng(0)
    large = Graph.from_edges(*rng.integers(0, 590, (2, 3000)), num_nodes=600)
    none = np.zeros(0, np.int32)
    for graph, width in (
        (large, 7),
        (Graph.from_edges(none, none, num_nodes=3), 2),
        (Graph.from_edges(none, none, num_nodes=0), 2),
    ):
        x = rng.standard_normal((graph.num_nodes, width), np.float32)
        d = rng.standard_normal(graph.num_nodes, np.float32)
        y, dx = jax.jit(both)(graph, jnp.asarray(x), jnp.asarray(d))
        expected = energy(graph, x, d)
        np.testing.assert_allclose(y, expected[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(dx, expected[1], rtol=1e-4, atol=1e-4)

    xs = jax.random.normal(jax.random.key(1), (2, 600, 7))
    mapped = jax.vmap(names["dirichlet_energy"], (None, 0))(large, xs)
    np.testing.assert_allclose(mapped[1], names["reference"](large, xs[1]), rtol=1e-4)
    assert names["reference"](large, xs[1]).shape == (600,)

    with pytest.raises(ValueError, match=r"x: expected float32 \[600, features\], got bfloat16"):
        names["dirichlet_energy"](large, xs[0].astype(jnp.bfloat16))
    with pytest.raises(TypeError, match=r"graph: expected a jaxgnn\.Graph, got ArrayImpl"):
        names["dirichlet_energy"](xs[0], large)
    with pytest.raises(ValueError, match="graph: expected as many senders as receivers"):
        names["dirichlet_energy"](Graph.from_edges([0], [0], num_senders=2, num_receivers=1), xs[0])
    call = jax.ffi.ffi_call("dirichlet_energy", jax.ShapeDtypeStruct((600,), jnp.float32))
    with pytest.raises(Exception, match="x must be float32"):
        jax.block_until_ready(call(large.row_offsets, large.senders, xs[0, :5]))
