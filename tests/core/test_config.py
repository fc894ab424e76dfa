"""The library's settings: values, threads, the environment, and what jit does with them."""

import threading

import jax
import jax.numpy as jnp
import pytest

from jaxgnn import config
from tests.support.processes import run_python


@pytest.fixture(autouse=True)
def defaults():
    before = config.deterministic, config.maxk_accumulation
    yield
    config.update("deterministic", before[0])
    config.update("maxk_accumulation", before[1])


def test_use_holds_in_its_block_even_if_it_raises():
    assert config.deterministic is False and config.maxk_accumulation == "auto"
    with (
        pytest.raises(KeyError),
        config.use(deterministic=True, maxk_accumulation="float"),
    ):
        assert config.deterministic is True and config.maxk_accumulation == "float"
        with config.use(deterministic=False):
            assert config.deterministic is False and config.maxk_accumulation == "float"
        assert config.deterministic is True
        raise KeyError
    assert config.deterministic is False and config.maxk_accumulation == "auto"


def test_update_is_for_all_threads_and_use_for_one():
    def in_another_thread():
        seen = []
        thread = threading.Thread(target=lambda: seen.append(config.deterministic))
        thread.start()
        thread.join()
        return seen[0]

    with config.use(deterministic=True):
        assert in_another_thread() is False
    config.update("deterministic", True)
    assert config.deterministic is True and in_another_thread() is True
    config.deterministic = False  # the same as `update`
    assert config.deterministic is False and in_another_thread() is False


def test_a_change_traces_again_and_the_old_program_is_kept():
    seen = []

    @jax.jit
    def f(x):
        seen.append((config.deterministic, config.maxk_accumulation))
        return x + 1 if config.deterministic else x

    x = jnp.zeros(())
    assert f(x) == 0 and f(x) == 0
    with config.use(deterministic=True):
        assert f(x) == 1 and f(x) == 1
    assert f(x) == 0
    config.update("deterministic", True)
    assert f(x) == 1
    with config.use(maxk_accumulation="float"):
        assert f(x) == 1
    assert seen == [(False, "auto"), (True, "auto"), (True, "float")]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"deterministic": 1}, ValueError, "jaxgnn.config.deterministic: .* False, True, got 1"),
        ({"deterministic": None}, ValueError, "deterministic: expected one of .* got None"),
        ({"maxk_accumulation": "int"}, ValueError, "one of 'auto', 'float', got 'int'"),
        ({"determinism": True}, AttributeError, "expected one of deterministic, .*'determinism'"),
    ],
)
def test_bad_settings(settings, error, message):
    ((name, value),) = settings.items()
    with pytest.raises(error, match=message):
        config.update(name, value)
    with pytest.raises(error, match=message), config.use(**settings):
        pass
    with pytest.raises(error, match=message):
        setattr(config, name, value)
    assert config.deterministic is False


def test_an_unknown_attribute_is_missing():
    with pytest.raises(AttributeError, match="no attribute 'nondeterministic'"):
        config.nondeterministic  # noqa: B018


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "False auto"),
        ({"JAXGNN_DETERMINISTIC": "1"}, "True auto"),
        ({"JAXGNN_DETERMINISTIC": "0", "JAXGNN_MAXK_ACCUMULATION": "float"}, "False float"),
        (
            {"JAXGNN_DETERMINISTIC": "yes"},
            "ValueError: JAXGNN_DETERMINISTIC: expected one of 0, 1, got 'yes'",
        ),
    ],
)
def test_environment(monkeypatch, variables, expected):
    for name in ("JAXGNN_DETERMINISTIC", "JAXGNN_MAXK_ACCUMULATION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    program = (
        "from jaxgnn import config; print(config.deterministic, config.maxk_accumulation, end='')"
    )
    process = run_python("-c", program, status="ValueError" in expected)
    assert (process.stdout or process.stderr.splitlines()[-1]) == expected
