"""The import rules of `docs/architecture.md`: layers, families, no cycles, what stays lazy."""

import copy
import graphlib

import grimp
import pytest
from grimp import Layer

from tests.support.processes import run_python

# Each may import from the layers below it; those of one line may import each other.
LAYERS = [
    Layer("train", "export", independent=True),
    Layer("data", "nn", "algebra", "distributed", independent=False),
    Layer("ops"),
    Layer("batch", "tiles", "transform", independent=True),  # public names of modules of graph
    Layer("graph"),
    Layer("metrics"),
    Layer("config", "_core", independent=False),
]
# The families above aggregation do not know each other.
FAMILIES = [
    Layer(
        *("_maxk", "_attention", "_gaussian", "_knn", "_sampling", "_projection"),
        *("_normalization", "_dropout"),
        independent=True,
    ),
    Layer("_aggregation"),
    Layer("_core"),
]
# Training: what runs, what they would take and what they left stand on the same problems.
TRAINING = [
    Layer("trained"),
    Layer("runs", "planning", independent=True),
    Layer("problems"),
    Layer("loop"),
    Layer("reports"),
    Layer("steps", "process", independent=True),
    Layer("loaders"),
    Layer("settings"),
]
DATA = [
    Layer("loading"),
    Layer("formats", "generated", "cache", independent=True),
    Layer("sets"),
    Layer("files"),
]


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("jaxgnn", exclude_type_checking_imports=True, cache_dir=None)


def test_the_rules_name_every_package(imports):
    def children(package):
        return {module.removeprefix(f"{package}.") for module in imports.find_children(package)}

    top = children("jaxgnn") - {"__main__"}
    assert top == {name for layer in LAYERS for name in layer.module_tails}
    assert children("jaxgnn.ops") == {name for layer in FAMILIES for name in layer.module_tails}
    assert children("jaxgnn.train") == {name for layer in TRAINING for name in layer.module_tails}
    assert children("jaxgnn.data") == {name for layer in DATA for name in layer.module_tails}


def test_no_import_cycles(imports):
    below = {
        module: imports.find_modules_directly_imported_by(module) for module in imports.modules
    }
    try:
        graphlib.TopologicalSorter(below).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


@pytest.mark.parametrize(
    ("container", "layers"),
    [
        ("jaxgnn", LAYERS),
        ("jaxgnn.ops", FAMILIES),
        ("jaxgnn.train", TRAINING),
        ("jaxgnn.data", DATA),
    ],
    ids=["all", "ops", "train", "data"],
)
def test_layers_import_from_below_alone(imports, container, layers):
    # A package's __init__ re-exports: what imports it need not import all that it re-exports.
    imports = copy.deepcopy(imports)
    for module in imports.find_modules_directly_imported_by(container):
        imports.remove_import(importer=container, imported=module)
    illegal = [
        " -> ".join([sorted(route.heads)[0], *route.middle, sorted(route.tails)[0]])
        for dependency in imports.find_illegal_dependencies_for_layers(layers, {container})
        for route in dependency.routes
    ]
    assert not illegal


def test_the_library_does_not_know_the_command():
    both = grimp.build_graph("jaxgnn", "jaxgnn_cli", cache_dir=None)
    for module in both.find_descendants("jaxgnn") - {"jaxgnn.__main__"}:
        below = both.find_modules_directly_imported_by(module)
        assert not any(name.startswith("jaxgnn_cli") for name in below), module


def test_the_benchmarks_harness_does_not_know_the_suites():
    benchmarks = grimp.build_graph("benchmarks", cache_dir=None)
    below = benchmarks.find_modules_directly_imported_by
    suites, harness = (f"benchmarks.{name}" for name in ("suites", "harness"))
    for module in benchmarks.find_descendants(harness):
        assert not any(name.startswith(suites) for name in below(module)), module
    # The other way round it is imported: the graph has what is looked for.
    assert any(f"{harness}.plan" in below(module) for module in benchmarks.find_descendants(suites))


def test_modules_and_the_algebra_do_not_know_the_kernels(imports):
    def kernels(module):
        return module == "jaxgnn._core.ffi" or (
            module.startswith("jaxgnn.ops._") and module.endswith("kernels")
        )

    known = {module for module in imports.modules if kernels(module)}
    assert len(known) > 3
    for package in ("jaxgnn.nn", "jaxgnn.algebra"):
        for importer in {package, *imports.find_descendants(package)}:
            assert not known & imports.find_modules_directly_imported_by(importer), importer


def test_import_jaxgnn_leaves_the_modules_and_the_data_for_later():
    code = "import jaxgnn, sys; print(*sys.modules)"
    loaded = set(run_python("-c", code).stdout.split())
    assert {"jaxgnn", "jaxgnn.ops", "jax"} <= loaded
    packages = ("nn", "data", "train", "export", "distributed", "algebra", "metrics")
    graph = ("tiles", "transform", "graph.tiles", "graph.transform")
    later = {f"jaxgnn.{name}" for name in (*packages, *graph)}
    later |= {"jaxgnn.ops._sampling", "jax.extend"}
    assert not (later | {"flax", "optax", "rich", "sklearn"}) & loaded


def test_what_is_imported_later_is_there():
    code = """
import jaxgnn, jaxgnn.ops
for package in (jaxgnn, jaxgnn.ops):
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        getattr(package, name)
    try:
        package.nothing
    except AttributeError as error:
        print(error)
"""
    lines = run_python("-c", code).stdout.splitlines()
    assert lines == [
        f"module '{name}' has no attribute 'nothing'" for name in ("jaxgnn", "jaxgnn.ops")
    ]


@pytest.mark.parametrize("name", ["batch", "tiles", "transform"])
def test_modules_of_graph_are_imported_by_their_public_names(name):
    """`from jaxgnn.transform import gcn_norm`: a module that Python's import finds."""
    code = """
import importlib, jaxgnn, sys
module = importlib.import_module(f"jaxgnn.{sys.argv[1]}")
assert module is getattr(jaxgnn, sys.argv[1])
implementation = importlib.import_module(f"jaxgnn.graph.{sys.argv[1]}")
assert module.__doc__ == implementation.__doc__
print(*(getattr(module, name) is getattr(implementation, name) for name in module.__all__))
"""
    assert set(run_python("-c", code, name).stdout.split()) == {"True"}
