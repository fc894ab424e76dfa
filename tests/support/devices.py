"""Meshes of devices."""

import jax
import pytest


def two_devices() -> jax.sharding.Mesh:
    """A mesh of the first two devices along the axis `d`."""
    if jax.device_count() < 2:
        pytest.skip("needs two devices")
    automatic = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((2,), ("d",), axis_types=automatic, devices=jax.devices()[:2])
