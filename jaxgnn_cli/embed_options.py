"""The options of `jaxgnn embed`, with Gunrock's names and defaults."""

from __future__ import annotations

import dataclasses
import io
import itertools
import warnings
from typing import Annotated, NamedTuple

import numpy as np
import tyro

from jaxgnn.train.settings.options import FeaturesOn
from jaxgnn_cli.options import parse_options
from jaxgnn_cli.status import UsageError
from jaxgnn_cli.values import check_between, integers

MATRICES = ("Wf1", "Wa1", "Wf2", "Wa2")

_WIDEST = 65536
_File = Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(random)")]


class Shapes(NamedTuple):
    """The widths of the random matrices of a run."""

    feature_column: int
    Wf1_dim1: int
    Wa1_dim1: int
    Wf2_dim1: int
    Wa2_dim1: int


@dataclasses.dataclass(frozen=True)
class EmbedOptions:
    """Embed the nodes of a graph by two GraphSAGE layers over sampled neighbors.

    Prints the degrees, the time of each run, and how far the result is from float64. Several
    numbers such as 10,25 run all combinations.
    """

    graph: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="GRAPH")]
    """A Matrix Market file, or an edge list of numbered nodes, gzipped or not."""

    undirected: bool = False
    """Add the reverse of each edge."""

    feature_column: str = "64"
    """Width of random features."""

    num_children_per_source: str = "10"
    """Neighbors drawn for each node, with replacement."""

    num_leafs_per_child: str = "-1"
    """Neighbors drawn for each child; -1: the number of children."""

    batch_size: str = "65536"
    """Nodes embedded at once."""

    features: _File = None
    """A row a node: a .npy file, or text with numbers split by blanks."""

    features_on: FeaturesOn = "device"
    """Where graph and features are: in the device's memory, or in the host's, where a CPU draws and
    sums the neighbors. The results are the same but for rounding."""

    Wf1: _File = None
    """Weights of the source's own features in layer 1, features x width."""

    Wa1: _File = None
    """Weights of its neighbors' mean in layer 1, features x width."""

    Wf2: _File = None
    """Weights of the source's own features in layer 2."""

    Wa2: _File = None
    """Weights of its neighbors' mean in layer 2."""

    checkpoint: Annotated[
        str | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="(optional)")
    ] = None
    """The directory of a run of jaxgnn train with the model sage_embedding, whose matrices to take
    in place of these four."""

    Wf1_dim1: str = "128"
    """Width of a random Wf1."""

    Wa1_dim1: str = "128"
    """Width of a random Wa1."""

    Wf2_dim1: str = "128"
    """Width of a random Wf2."""

    Wa2_dim1: str = "128"
    """Width of a random Wa2."""

    rand_seed: int = 0
    """Seed of the draws and of what is random."""

    num_runs: int = 10
    """Timed runs, after one that is not timed."""

    output: Annotated[
        str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="(optional)")
    ] = None
    """Where to write the embedding, as .npy; of several combinations the last one's."""

    def shapes(self) -> list[Shapes]:
        """All combinations of the widths of random matrices; those of a file's are the file's.

        Raises:
            UsageError: a list has something else than widths, or more than one where a file has the
                rows of one.
        """
        widths = []
        for field in Shapes._fields:
            name = f"--{field.replace('_', '-')}"
            found = integers(getattr(self, field), name, 1, _WIDEST)
            matrix = "features" if field == "feature_column" else field.split("_")[0]
            by_run = self.checkpoint is not None
            if by_run or getattr(self, matrix) is not None:
                found = found[:1]  # not used
            widths.append(found)
        inputs = {"Wf1": 0, "Wa1": 0, "Wf2": 1, "Wa2": 1}
        for matrix, layer in inputs.items():
            rows = (widths[:1], widths[1:3])[layer]
            if getattr(self, matrix) is not None and max(map(len, rows)) > 1:
                of = "--feature-column" if layer == 0 else "--Wf1-dim1 and --Wa1-dim1"
                raise UsageError(f"--{matrix}: expected a single number for {of} with it")
        return [Shapes(*every) for every in itertools.product(*widths)]

    def combinations(self) -> list[tuple[int, int, int]]:
        """All combinations of children, leaves (for -1 as many as children) and batch sizes.

        Raises:
            UsageError: a list has something else than such numbers.
        """
        children = integers(self.num_children_per_source, "--num-children-per-source", 1, 4096)
        leaves = integers(self.num_leafs_per_child, "--num-leafs-per-child", -1, 4096)
        if 0 in leaves:
            raise UsageError("--num-leafs-per-child: expected a positive integer or -1, got 0")
        batch_sizes = integers(self.batch_size, "--batch-size", 1, 2**31 - 1)
        every = itertools.product(children, leaves, batch_sizes)
        return [(c, c if own == -1 else own, size) for c, own, size in every]


def parse_embed(arguments: list[str]) -> EmbedOptions | None:
    """The options, checked; None if help was asked for, and printed."""
    options = parse_options(EmbedOptions, arguments, "embed")
    if options is None:
        return None
    options.combinations()
    options.shapes()
    if options.checkpoint is not None:
        given = [f"--{name}" for name in MATRICES if getattr(options, name) is not None]
        if given:
            raise UsageError(f"--checkpoint: expected no {given[0]} with it, got both")
        if options.features is None:
            raise UsageError("--checkpoint: expected --features with it, got none")
    check_between(options.num_runs, "num_runs", 1, 10**6)
    check_between(options.rand_seed, "rand_seed", 0, 2**31 - 1)
    return options


def read_matrix(path: str, name: str, rows: int) -> np.ndarray:
    """A matrix of finite numbers with so many rows, as float32."""
    from jaxgnn.data.files.archive import open_npy
    from jaxgnn.data.files.limits import Budget, DataError, reading

    try:
        if path.endswith(".npy"):
            with open_npy(path, Budget(1 << 62)) as file:  # an array has the size of its file
                found = file.read()
        else:
            budget, text = Budget(), bytearray()
            with reading(path), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a text without numbers
                for block in budget.blocks(path):
                    budget.charge(len(block), "the text")
                    text += block
                found = np.loadtxt(io.BytesIO(text), dtype=np.float32, ndmin=2)
    except DataError as error:
        raise UsageError(f"{name}: {error}") from None
    if found.dtype.kind not in "fiu":
        raise UsageError(f"{name}: {path}: expected a matrix of real numbers")
    if found.ndim != 2 or found.shape[0] != rows or found.shape[1] == 0:
        raise UsageError(f"{name}: {path}: expected {rows} rows, got the shape {found.shape}")
    with np.errstate(over="ignore"):  # infinite then
        found = found.astype(np.float32)
    if not np.isfinite(found).all():
        raise UsageError(f"{name}: {path}: expected finite numbers")
    return found
