"""How well a perceptron with MaxK fits x²: the error by hidden units, beside ReLU's.

    python examples/maxk_approximation.py --plot maxk_approximation.png

One hidden layer of h units, of which MaxK keeps a quarter. MaxK-GNN (Peng et al., ASPLOS 2024,
section 3) shows that such networks approximate any continuous function, and tries it on y = x².
"""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import nnx
from jaxtyping import Array, Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from jaxgnn.nn import MLP, MaxK


@dataclasses.dataclass(frozen=True)
class Options:
    """Fits x² on [-1, 1]."""

    hidden: tuple[int, ...] = (4, 8, 16, 32, 64, 128)
    """Hidden units."""
    steps: int = 3000
    """Steps of Adam on all points."""
    points: int = 256
    """Points to fit; as many between them are tested."""
    seeds: int = 5
    """Networks for each width; the median error counts."""
    learning_rate: float = 0.01
    """At the first step; it falls to 0 as a cosine does."""
    plot: Path = Path("maxk_approximation.png")
    """Where to write the plot."""


class Fit(NamedTuple):
    """Networks of one width.

    Attributes:
        errors: each one's root mean square error between the points that it was fitted on.
        curve: values of the one of the median error.
    """

    errors: Float[np.ndarray, " seeds"]
    curve: Float[np.ndarray, " points"]

    @property
    def error(self) -> float:
        """The median."""
        return float(np.median(self.errors))


def kept(hidden: int) -> int:
    """The k for a number of hidden units: a quarter of them."""
    return math.ceil(hidden / 4)


def fit(hidden: int, activation: str, options: Options) -> Fit:
    """Trains one network a seed, all at once."""
    sigma = MaxK(kept(hidden)) if activation == "maxk" else jax.nn.relu
    x, between = grids(options.points)
    schedule = optax.cosine_decay_schedule(options.learning_rate, options.steps)
    optimizer = optax.adam(schedule)

    def build(seed: Array) -> MLP:
        return MLP([1, hidden, 1], activation=sigma, rngs=nnx.Rngs(seed))

    graphdef = nnx.split(nnx.eval_shape(lambda: build(jax.random.key(0))))[0]

    def train(seed: Array) -> Float[Array, " points"]:
        params = nnx.state(build(seed))

        def loss(params: nnx.State) -> Array:
            return jnp.mean((nnx.merge(graphdef, params)(x) - x**2) ** 2)

        def step(carry: tuple, _: None) -> tuple:
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params), state)
            return (optax.apply_updates(params, updates), state), None

        carry = params, optimizer.init(params)
        (params, _), _ = jax.lax.scan(step, carry, length=options.steps)
        return nnx.merge(graphdef, params)(between)[:, 0]

    curves = np.asarray(
        jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), options.seeds))
    )
    errors = np.sqrt(np.mean((curves - np.asarray(between[:, 0]) ** 2) ** 2, axis=1))
    return Fit(errors, curves[np.argsort(errors)[len(errors) // 2]])


def grids(points: int) -> tuple[Float[Array, "points 1"], Float[Array, "points 1"]]:
    """The points to fit, and those midway between them to test (one fewer)."""
    x = jnp.linspace(-1, 1, points)[:, None]
    return x, (x[1:] + x[:-1]) / 2


def save_plot(path: Path, fits: dict[tuple[str, int], Fit], options: Options) -> None:
    """Curves of the networks with MaxK, and both errors by the number of hidden units."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    x = np.asarray(grids(options.points)[1][:, 0])
    left.plot(x, x**2, color="black", linewidth=3, alpha=0.3, label="x²")
    for hidden in options.hidden:
        label = f"{hidden} units, k = {kept(hidden)}"
        left.plot(x, fits["maxk", hidden].curve, linewidth=1, label=label)
    left.set(title="Perceptrons with MaxK", xlabel="x")
    left.legend(fontsize="small")
    for activation, name in (("maxk", "MaxK, k = h / 4"), ("relu", "ReLU")):
        errors = np.stack([fits[activation, hidden].errors for hidden in options.hidden])
        (line,) = right.plot(options.hidden, np.median(errors, axis=1), "o-", label=name)
        right.fill_between(
            options.hidden,
            errors.min(axis=1),
            errors.max(axis=1),
            alpha=0.2,
            color=line.get_color(),
        )
    right.set(
        xscale="log", yscale="log", xlabel="hidden units h", ylabel="root mean square error",
        title=f"Median and range of {options.seeds} networks",
    )  # fmt: skip
    right.set_xticks(options.hidden, [str(hidden) for hidden in options.hidden])
    right.minorticks_off()
    right.legend()
    figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> dict[tuple[str, int], Fit]:
    """Fits, prints a table, saves the plot, and returns the fits by activation and width."""
    options = tyro.cli(Options, args=arguments)
    for name, least in (("steps", 1), ("points", 2), ("seeds", 1)):
        if getattr(options, name) < least:
            sys.exit(f"--{name}: expected at least {least}, got {getattr(options, name)}")
    if min(options.hidden, default=0) < 1:
        sys.exit("--hidden: expected numbers of at least 1")
    try:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"--plot: {error}")
    pairs = [(name, hidden) for hidden in options.hidden for name in ("maxk", "relu")]
    fits = {(name, hidden): fit(hidden, name, options) for name, hidden in pairs}
    table = Table(title="Root mean square error of a fit of x²", title_justify="left")
    for name in ("hidden units", "k", "MaxK", "ReLU"):
        table.add_column(name, justify="right")
    for hidden in options.hidden:
        errors = [f"{fits[name, hidden].error:.2e}" for name in ("maxk", "relu")]
        table.add_row(str(hidden), str(kept(hidden)), *errors)
    Console().print(table)
    save_plot(options.plot, fits, options)
    print(f"plot: {options.plot}")
    return fits


if __name__ == "__main__":
    main()
