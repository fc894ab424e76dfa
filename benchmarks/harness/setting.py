"""The setting of a training step: implementation, model, precision and sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import plan

ORACLE = "float64"
NORM_EPSILON = 1e-5

Arrays = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Setting:
    """One step to time, or its oracle."""

    impl: str
    model: str = "sage"  # or gcn, gin, one of `plan.EDGE_MODELS`
    k: int | None = None  # of MaxK; without it ReLU
    dtype: str = "float32"  # of the computation; parameters are float32
    # As in the published script, a linear projection before the first convolution, and another
    # after the last one's activation.
    input_layer: bool = False
    heads: int | None = None  # of gat and gatv2; the last layer has one
    recompute: bool = False  # of normalization, activation and dropout, in the backward pass
    hidden: int | None = None  # width of the hidden rows, if not the task's
    layers: int | None = None  # of `hidden`, if not as many as the task's widths have
    dim: int | None = None  # coordinates of monet, and its Gaussians
    kernel_size: int | None = None
    forward: bool = False  # the model alone, without loss, gradients and update
    # Layer normalization and dropout after hidden layers, but in models of edges, which have none.
    regularize: bool = True
    tf32: bool = True  # whether float32 projections may be TF32's, on a GPU
    label: str = ""  # tells its rows from those of the same model in other sizes
    graph: str = ""  # by name, of the task's

    def __str__(self) -> str:
        activation = "ReLU" if self.k is None else f"MaxK {self.k}"
        what = "forward" if self.forward else "training"
        on = f" on {self.graph}" if self.graph else ""
        return f"{what} {self.impl} {self.model}{self.label} {activation} {self.dtype}{on}"

    def case(self, graph: str) -> str:
        """The case of its row on this graph."""
        named = self.input_layer or not self.regularized
        return f"{graph} {self.model}{self.label}" if named else graph

    def sizes(self, widths: Sequence[int]) -> tuple[int, ...]:
        """The task's widths, or with its own hidden ones."""
        first, *hidden, last = widths
        if self.hidden is None:
            return tuple(widths)
        count = len(hidden) if self.layers is None else self.layers - 1
        return first, *[self.hidden] * count, last

    @property
    def variant(self) -> str:
        """The implementation without the flags of its process."""
        return self.impl.removesuffix(plan.FTZ)

    @property
    def regularized(self) -> bool:
        """Whether layer normalization and dropout follow the layers, as in the published script."""
        return self.regularize and self.model not in plan.EDGE_MODELS

    @property
    def oracle(self) -> Setting:
        """The setting of the gradients and results that this one's should be."""
        return dataclasses.replace(self, impl=ORACLE, dtype="float64", forward=False)

    @property
    def continuous(self) -> bool:
        """Whether close numbers have close gradients: MaxK and a maximum choose among them."""
        return self.k is None and self.model != "edgeconv"

    def tolerance(self, device: str) -> float:
        """Of a parameter's gradient, relative to its norm, and of the loss.

        TF32 products keep 11 bits, bfloat16 8. ReLU's slope jumps at 0: of ten million hidden
        values one or two are moved past it by rounding, and each is 3e-4 of a gradient's norm.
        Of models that are not continuous the gradients checked are those of float32 products. MaxK
        after normalization: two of close numbers change places, and the gradient goes to the other
        one. On 2 % of Reddit's shape, k = 32, JAX reference and kernels are both off by 2.6e-2.
        """
        if self.k is not None:
            return 5e-2
        if not self.continuous:
            return 2e-2
        if self.dtype == "bfloat16":
            return 0.2
        return 2e-2 if device == "gpu" else 1e-3


def layer_parameters(params: Arrays) -> list[Arrays]:
    """The parameters of each convolution, their names without its number."""
    layers: dict[str, Arrays] = {}
    for name, value in params.items():
        if name.startswith("convs."):
            _, layer, own = name.split(".", 2)
            layers.setdefault(layer, {})[own] = value
    return [layers[layer] for layer in sorted(layers, key=int)]
