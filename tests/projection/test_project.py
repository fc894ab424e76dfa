"""Products of node rows and a matrix against `jnp.matmul`: values, derivatives, transforms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jax.test_util import check_grads

from jaxgnn._core import ffi
from jaxgnn._core.dtypes import accumulation_dtype
from jaxgnn.nn import MLP
from jaxgnn.ops._projection import weight_gradient
from jaxgnn.ops._projection.project import add_bias, project
from tests.support.arrays import normal
from tests.support.devices import two_devices
from tests.support.oracle import close

pytestmark = pytest.mark.usefixtures("strict")

ROWS = weight_gradient._LEAST_ROWS
TOLERANCES = {"float32": 3e-6, "bfloat16": 2**-7, "float16": 2**-9, "float64": 1e-13}

needs_kernel = pytest.mark.skipif(
    ffi.cpu_module is None or jax.default_backend() != "cpu", reason="needs the CPU's kernel"
)


def loss(product, x, kernel):
    return jnp.sum(jnp.sin(product(x, kernel).astype(accumulation_dtype(x.dtype))))


def calls(function, *operands):
    text = jax.jit(function).lower(*operands).as_text()
    return text.count("@jaxgnn_weight_gradient(")


@pytest.mark.few(6)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("batch", [(ROWS,), (ROWS // 2, 3), (5,), (0,)], ids=str)
def test_values_and_gradients(dtype, batch):
    with jax.enable_x64(dtype == "float64"):
        x, kernel = normal(*batch, 9, dtype=dtype), normal(9, 21, seed=1, dtype=dtype)
        value, gradients = jax.value_and_grad(functools.partial(loss, project), (0, 1))(x, kernel)
        wide = [np.asarray(a, np.float64) for a in (x, kernel)]
        rows = wide[0].reshape(-1, 9)
        g = np.cos(np.asarray(project(x, kernel), np.float64)).reshape(-1, 21)
        g = np.asarray(g.astype(jnp.dtype(dtype)), np.float64)  # as the cotangent is rounded
        tolerance = TOLERANCES[dtype]
        close(value, np.sin(np.asarray(project(x, kernel), np.float64)).sum(), 4 * tolerance)
        close(project(x, kernel), wide[0] @ wide[1], tolerance)
        close(gradients[1], rows.T @ g, tolerance)
        close(gradients[0], (g @ wide[1].T).reshape(x.shape), tolerance)
        assert gradients[1].dtype == kernel.dtype


@needs_kernel
def test_the_kernel_runs_for_many_rows_and_few_numbers():
    def gradient(x, kernel):
        return jax.grad(functools.partial(loss, project), 1)(x, kernel)

    assert calls(gradient, normal(ROWS, 8), normal(8, 8)) == 1
    assert calls(gradient, normal(ROWS - 1, 8), normal(8, 8)) == 0
    assert calls(gradient, normal(ROWS, 256), normal(256, 256)) == 0
    assert calls(gradient, normal(ROWS, 0), normal(0, 4)) == 0
    # Nobody asks for it.
    assert calls(jax.grad(functools.partial(loss, project)), normal(ROWS, 8), normal(8, 8)) == 0


@needs_kernel
def test_modules_use_it():
    mlp = MLP([8, 16, 3], rngs=nnx.Rngs(0))
    definition, params = nnx.split(mlp)

    def loss_of(params, x):
        return jnp.sum(nnx.merge(definition, params)(x) ** 2)

    assert calls(jax.grad(loss_of), params, normal(ROWS, 8)) == 2


def test_derivatives_of_both_orders_and_modes():
    x, kernel = normal(ROWS, 3), normal(3, 2, seed=1)
    check_grads(lambda x, kernel: jnp.sin(project(x, kernel)), (x, kernel), 2, atol=0.05, rtol=0.05)


def test_second_derivatives_are_those_of_matmul():
    x, kernel = normal(ROWS, 5), normal(5, 4, seed=1)

    def second(product, x, kernel):
        def gradient_norm(x, kernel):
            d_x, d_kernel = jax.grad(functools.partial(loss, product), (0, 1))(x, kernel)
            return jnp.sum(d_x**2) + jnp.sum(d_kernel**3)

        return jax.grad(gradient_norm, (0, 1))(x, kernel)

    for found, expected in zip(
        second(project, x, kernel), second(jnp.matmul, x, kernel), strict=True
    ):
        close(found, expected, 2e-5)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)], ids=str)
def test_vmap(axes):
    x, kernel = normal(2, ROWS, 5), normal(2, 5, 4, seed=1)
    x, kernel = (a if axis == 0 else a[0] for a, axis in zip((x, kernel), axes, strict=True))
    gradients = [
        jax.vmap(jax.grad(functools.partial(loss, product), (0, 1)), axes)(x, kernel)
        for product in (project, jnp.matmul)
    ]
    for found, expected in zip(*gradients, strict=True):
        close(found, expected, 1e-5)


def test_shard_map_over_rows():
    """The rows are sharded, the matrix is replicated: its gradient is a sum."""
    mesh, x, kernel = two_devices(), normal(2 * ROWS, 5), normal(5, 4, seed=1)
    rows = PartitionSpec("d")

    def total(product, x, kernel):
        @functools.partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(rows, PartitionSpec()),
            out_specs=rows,
            check_vma=True,
        )
        def sharded(x, kernel):
            return product(x, kernel)

        return loss(sharded, x, kernel)

    gradients = [
        jax.jit(jax.grad(functools.partial(total, product), (0, 1)))(x, kernel)
        for product in (project, jnp.matmul)
    ]
    for found, expected in zip(*gradients, strict=True):
        close(found, expected, 1e-5)


@needs_kernel
def test_sharded_rows_stay_where_they_are():
    """Under plain `jit` XLA partitions its own product: a kernel's operands would be gathered."""
    mesh = two_devices()
    rows = jax.device_put(normal(2 * ROWS, 5), NamedSharding(mesh, PartitionSpec("d")))
    kernel = jax.device_put(normal(5, 4, seed=1), NamedSharding(mesh, PartitionSpec()))
    gradient = jax.grad(functools.partial(loss, project), 1)
    compiled = jax.jit(gradient).lower(rows, kernel).compile().as_text()
    assert "all-reduce" in compiled and "all-gather" not in compiled
    close(
        gradient(rows, kernel), jax.jit(gradient)(normal(2 * ROWS, 5), normal(5, 4, seed=1)), 1e-5
    )


def test_policies_see_the_product():
    """It is kept, not recomputed, where `jax.checkpoint` is told to keep products."""
    x, kernel = normal(ROWS, 5), normal(5, 4, seed=1)

    def products(policy):
        kept = jax.checkpoint(functools.partial(loss, project), policy=policy)
        return str(jax.make_jaxpr(jax.grad(kept, 1))(x, kernel)).count("dot_general[")

    assert products(jax.checkpoint_policies.dots_saveable) == 1
    assert products(jax.checkpoint_policies.nothing_saveable) == 2


def test_integers_are_left_to_jax():
    integers = jnp.arange(6).reshape(2, 3)
    assert project(integers, integers.T).dtype == integers.dtype


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("batch", [(70,), (35, 2), ()], ids=str)
def test_bias(dtype, batch):
    """In 16 bits the sum of its gradients would leave float16's range and have 1% of error."""
    with jax.enable_x64(dtype == "float64"):
        wide = accumulation_dtype(dtype)
        rows, bias = normal(*batch, 3, dtype=dtype), normal(3, seed=1).astype(wide)
        cotangent = jnp.full_like(rows, 1001)
        out, transpose = jax.vjp(add_bias, rows, bias)
        np.testing.assert_array_equal(out, rows + jnp.broadcast_to(bias.astype(dtype), rows.shape))
        of_rows, of_bias = transpose(cotangent)
        np.testing.assert_array_equal(of_rows, cotangent)
        assert of_bias.dtype == wide
        sums = np.asarray(cotangent, np.float64).reshape(-1, 3).sum(axis=0)
        np.testing.assert_array_equal(of_bias, sums)
