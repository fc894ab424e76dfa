"""Which implementation runs: by the platform that is lowered for, the settings, the machine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn import Graph, config
from jaxgnn._core import ffi, platform
from jaxgnn._core.dispatch import dispatch

needs_kernels = pytest.mark.skipif(ffi.cpu_module is None, reason="jaxgnn._cpu is not built")
SERVED, MISSING = ("jaxgnn_spmm",), ("jaxgnn_no_such_target",)


def run(targets, x, **options):
    return dispatch(targets, lambda x: x + 1, lambda x: x - 1, x, **options)


@pytest.fixture
def graph():
    return Graph.from_edges([0, 1, 2, 2], [1, 2, 0, 1])


@needs_kernels
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.vmap], ids=["", "jit", "vmap"])
def test_a_kernel_where_there_is_one(transform):
    x = jnp.zeros(3)
    np.testing.assert_array_equal(transform(lambda x: run(SERVED, x))(x), 1)
    np.testing.assert_array_equal(transform(lambda x: run(MISSING, x))(x), -1)
    elsewhere = transform(lambda x: run(SERVED, x, platforms=("no such platform",)))
    np.testing.assert_array_equal(elsewhere(x), -1)


@needs_kernels
def test_lowering_decides(graph):
    """One trace, lowered for three platforms: only those with kernels get the custom call."""
    traced = jax.jit(lambda g, x: jaxgnn.spmm(g, x)).trace(graph, jnp.ones((3, 4)))

    def calls(name):
        return "jaxgnn_spmm" in traced.lower(lowering_platforms=(name,)).as_text()

    assert calls("cpu") and not calls("tpu")
    assert calls("cuda") == platform.serves("cuda", *SERVED)


@pytest.mark.gpu
def test_a_cpu_device_of_a_machine_with_a_gpu(graph):
    """`cosine_attention`'s own kernels are CUDA's alone."""
    x = np.random.default_rng(0).standard_normal((3, 2, 8)).astype(np.float32)

    def value_and_gradient(graph, x):
        return jax.value_and_grad(lambda x: jnp.sum(jaxgnn.cosine_attention(graph, x, 1.0) ** 2))(x)

    on_gpu = jax.jit(value_and_gradient)(graph, x)
    cpu = jax.devices("cpu")[0]
    on_cpu = jax.jit(value_and_gradient)(*jax.device_put((graph, x), cpu))
    assert next(iter(on_cpu[1].devices())).platform == "cpu"
    for a, b in zip(on_gpu, on_cpu, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_gpu_that_the_module_cannot_serve(graph, monkeypatch):
    """An old driver, or another architecture: the reference runs, and the reason is told."""

    class Module:
        @staticmethod
        def why_not():
            return "the kernels are for the architectures 90: no kernel image"

        @staticmethod
        def architectures():
            return "90"

    monkeypatch.setattr(ffi, "cuda_module", Module)
    monkeypatch.setitem(ffi.targets, "cuda", set(SERVED))
    platform._cuda_problem.cache_clear()
    try:
        assert not platform.serves("cuda", *SERVED)
        assert "no kernel image" in str(jaxgnn.build_info().cuda_error)
        traced = jax.jit(lambda g, x: jaxgnn.spmm(g, x)).trace(graph, jnp.ones((3, 4)))
        assert "jaxgnn_spmm" not in traced.lower(lowering_platforms=("cuda",)).as_text()
        with config.use(impl="kernel"):
            traced = jax.jit(lambda g, x: jaxgnn.spmm(g, x)).trace(graph, jnp.ones((3, 4)))
            with pytest.raises(RuntimeError, match="no kernel image"):
                traced.lower(lowering_platforms=("cuda",))
    finally:
        platform._cuda_problem.cache_clear()


@needs_kernels
def test_the_setting_reaches_modules(graph):
    def text(impl):
        with config.use(impl=impl):
            layer = jax.jit(lambda g, x: jaxgnn.spmm(g, x, reduce="mean"))
            return layer.lower(graph, jnp.ones((3, 4))).as_text()

    assert "jaxgnn_spmm" in text(None) and "jaxgnn_spmm" in text("kernel")
    assert "jaxgnn_spmm" not in text("jax")
    with config.use(impl="jax"):  # an operation's own argument is stronger
        lowered = jax.jit(lambda g, x: jaxgnn.spmm(g, x, impl="kernel"))
        assert "jaxgnn_spmm" in lowered.lower(graph, jnp.ones((3, 4))).as_text()
    with pytest.raises(ValueError, match=r"jaxgnn\.config\.impl: expected one of"):
        config.update("impl", "fast")


def test_operations_are_named_in_programs(graph):
    lowered = jax.jit(lambda g, x: jaxgnn.spmm(g, x)).lower(graph, jnp.ones((3, 4)))
    assert "jaxgnn.spmm" in lowered.as_text(debug_info=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_platforms_without_kernels_agree(graph, reduce, monkeypatch):
    """The derivative rules by the references, as on a TPU."""
    monkeypatch.setattr(platform, "serves", lambda *_: False)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 2, 4)), jnp.float32)
    weights = jnp.asarray([1.0, -2.0, 0.5, 3.0])

    def loss(x, weights, impl):
        out = jaxgnn.spmm(graph, x, weights, reduce=reduce, impl=impl)
        out = jaxgnn.gat_attention(graph, out, x[..., 0], out[..., 1], impl=impl)
        kept = jaxgnn.maxk(out[:, 0], 2, impl=impl)
        return jnp.sum(jaxgnn.maxk_spmm(graph, kept, weights, impl=impl) ** 2)

    def second(x, weights, impl):
        return jnp.sum(jax.grad(loss)(x, weights, impl) ** 2)

    for function in (loss, second):
        gradients = jax.jit(jax.grad(function, (0, 1)), static_argnums=2)
        rule, reference = gradients(x, weights, None), gradients(x, weights, "jax")
        for a, b in zip(rule, reference, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_settings_of_the_trace_hold_in_what_is_traced_later(graph):
    """Kernels, their references and transposes are traced again at lowering, outside of `use`."""
    seen = []

    def kernel(x):
        seen.append(config.deterministic)
        return x

    def traced(x):
        with config.use(deterministic=True):
            return dispatch(MISSING, kernel, kernel, x)

    jax.jit(traced).lower(jnp.ones(3))
    assert len(seen) >= 2 and all(seen)

    def differentiated(x):
        with config.use(impl="jax"):
            return jnp.sum(jaxgnn.gather_edges(graph, x) ** 2)

    assert "jaxgnn_" not in jax.jit(jax.grad(differentiated)).lower(jnp.ones((3, 4))).as_text()

    def required(x):
        return jnp.sum(jaxgnn.spmm(graph, x, impl="kernel") ** 2)

    with pytest.raises(RuntimeError, match="impl='kernel'"):
        jax.jit(jax.grad(required)).trace(jnp.ones((3, 4))).lower(lowering_platforms=("tpu",))
