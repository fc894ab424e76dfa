"""The example of point clouds, small."""

import numpy as np
import pytest

from tests.support.paths import load_example

SMALL = "--points 64 --k 6 --hidden 16 --batch-size 16 --learning-rate 0.01"


@pytest.mark.system
def test_it_learns_synthetic_shapes(capsys):
    command = f"{SMALL} --layers 2 --shapes 400 --epochs 8"
    accuracy = load_example("edgeconv_pointclouds")["main"](command.split())
    text = capsys.readouterr().out
    assert "synthetic shapes: sphere, cube, cylinder, torus; 320 for training, 80" in text
    assert f"test accuracy {accuracy:.3f}" in text
    assert accuracy > 0.5  # of four kinds


def test_it_reads_the_file(tmp_path, capsys):
    """Of the format of the real one: a row of each occupied voxel, shape after shape."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(30, 80, 24)
    np.savez(
        tmp_path / "points.npz",
        coords=rng.integers(32, size=(sizes.sum(), 3)).astype(np.uint8),
        ptr=np.concatenate([[0], np.cumsum(sizes)]),
        label=np.arange(24) % 2,
        test_mask=np.arange(24) % 3 == 0,
        class_names=np.array(["chair", "monitor"]),
    )
    example = load_example("edgeconv_pointclouds")
    options = example["Options"](data=tmp_path, points=48)
    clouds = example["read"](tmp_path / "points.npz", options)
    assert clouds.points.shape == (24, 48, 3) and clouds.classes == ("chair", "monitor")
    assert np.linalg.norm(clouds.points, axis=-1).max() <= 1 + 1e-6
    np.testing.assert_allclose(clouds.points.mean(axis=1), 0, atol=1e-6)
    example["main"](f"{SMALL} --layers 1 --epochs 1 --data {tmp_path}".split())
    assert "points.npz: chair, monitor; 16 for training, 8 for the test" in capsys.readouterr().out
