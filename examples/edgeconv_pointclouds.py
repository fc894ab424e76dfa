"""Classifies point clouds with edge convolutions on graphs that follow the features.

    python examples/edgeconv_pointclouds.py
    python examples/edgeconv_pointclouds.py --data PATH/TO/modelnet10_voxel_points

The data are points on spheres, cubes, cylinders and tori, or those of `--data`: chairs and monitors
of ModelNet10 as voxels of their surfaces, in a file `points.npz`. The network is Dynamic Graph
CNN's (Wang et al., TOG 2019), small: in each layer the neighbors are found again in the layer's
features.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgnn.nn import MLP, DynamicEdgeConv

KINDS = ("sphere", "cube", "cylinder", "torus")


@dataclasses.dataclass(frozen=True)
class Options:
    """Trains on point clouds and prints the test accuracy."""

    data: Path | None = None
    """Directory with points.npz; synthetic shapes if not given."""
    shapes: int = 400
    """Synthetic shapes, of which a fifth is for the test."""
    points: int = 128
    """Points drawn of each shape."""
    k: int = 10
    """Neighbors of each point, itself among them."""
    hidden: int = 32
    """Width of the layers."""
    layers: int = 3
    """Number of edge convolutions."""
    epochs: int = 10
    """Passes over the shapes for training."""
    batch_size: int = 16
    """Shapes in a step."""
    learning_rate: float = 3e-3
    """Of Adam, at the first step; it falls to 0 as a cosine does."""
    seed: int = 0
    """Of the initial values, the order and the synthetic shapes."""


class Clouds(NamedTuple):
    """Point clouds of one size, centered and within the unit ball."""

    points: Float[np.ndarray, "clouds points 3"]
    labels: Int[np.ndarray, " clouds"]
    test: np.ndarray
    classes: tuple[str, ...]


class DGCNN(nnx.Module):
    """Edge convolutions, all layers' features concatenated, their maximum over the cloud."""

    def __init__(self, classes: int, options: Options, rngs: nnx.Rngs):
        hidden, widths = options.hidden, [3] + [options.hidden] * (options.layers - 1)
        self.convs = nnx.List(
            DynamicEdgeConv(before, hidden, options.k, rngs=rngs) for before in widths
        )
        self.norms = nnx.List(nnx.LayerNorm(hidden, rngs=rngs) for _ in widths)
        self.head = MLP([hidden * options.layers, 2 * hidden, classes], rngs=rngs)

    def __call__(self, points: Float[Array, "clouds points 3"]) -> Float[Array, "clouds classes"]:
        x, features = points, []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = jax.nn.leaky_relu(norm(conv(x)), 0.2)
            features.append(x)
        # Clouds of one size are an axis: their readout needs no graph.
        return self.head(jnp.max(jnp.concatenate(features, axis=-1), axis=1))


def normalized(points: Float[np.ndarray, "points 3"]) -> Float[np.ndarray, "points 3"]:
    """Moved to the origin and scaled into the unit ball."""
    points = points - points.mean(axis=0)
    return points / max(np.linalg.norm(points, axis=1).max(), 1e-9)


def surface(kind: str, count: int, rng: np.random.Generator) -> Float[np.ndarray, "count 3"]:
    """Points on a surface of random proportions in a random position."""
    angle, turn = rng.uniform(0, 2 * np.pi, (2, count))
    height = rng.uniform(-1, 1, count)
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if kind == "sphere":
        points = np.column_stack([ring * np.sqrt(1 - height**2)[:, None], height])
    elif kind == "cube":
        points = rng.uniform(-1, 1, (count, 3))
        points[np.arange(count), rng.integers(3, size=count)] = rng.choice([-1.0, 1.0], count)
    elif kind == "cylinder":
        points = np.column_stack([ring * rng.uniform(0.3, 0.7), height])
    else:
        thickness = rng.uniform(0.2, 0.4)
        points = np.column_stack(
            [ring * (1 + thickness * np.cos(turn))[:, None], thickness * np.sin(turn)]
        )
    rotation, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    return points @ rotation + rng.normal(size=(count, 3)) * 0.01


def synthetic(options: Options) -> Clouds:
    """Shapes of the kinds in turn; every fifth round is for the test."""
    rng, index = np.random.default_rng(options.seed), np.arange(options.shapes)
    labels = index % len(KINDS)
    points = [normalized(surface(KINDS[label], options.points, rng)) for label in labels]
    test = index // len(KINDS) % 5 == 4
    return Clouds(np.stack(points).astype(np.float32), labels, test, KINDS)


def read(path: Path, options: Options) -> Clouds:
    """The file's shapes, of each as many points as asked for, and its own split.

    Voxels lie on a grid where many distances are equal: noise below their size parts them.
    """
    rng = np.random.default_rng(options.seed)
    with np.load(path) as file:
        coords, ptr, labels = file["coords"], file["ptr"], file["label"]
        test, names = file["test_mask"], tuple(map(str, file["class_names"]))
    clouds = []
    for first, last in itertools.pairwise(ptr):
        drawn = rng.choice(last - first, options.points, replace=last - first < options.points)
        voxels = coords[first + drawn].astype(np.float64)
        clouds.append(normalized(voxels + rng.uniform(-0.25, 0.25, voxels.shape)))
    return Clouds(np.stack(clouds).astype(np.float32), labels.astype(np.int64), test, names)


@nnx.jit
def train_step(model: DGCNN, optimizer: nnx.Optimizer, points: Array, labels: Array) -> Array:
    def loss_fn(model: DGCNN) -> Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(model(points), labels)
        return jnp.mean(losses)

    loss, gradients = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, gradients)
    return loss


@nnx.jit
def predict(model: DGCNN, points: Array) -> Array:
    return model(points).argmax(axis=-1)


def accuracy(model: DGCNN, clouds: Clouds, size: int) -> float:
    """Share of the test's shapes that are told; the last batch is filled up to one size."""
    chosen = np.flatnonzero(clouds.test)
    filled = np.resize(chosen, -(-len(chosen) // size) * size).reshape(-1, size)
    told = np.concatenate([predict(model, clouds.points[part]) for part in filled])
    return float(np.mean(told[: len(chosen)] == clouds.labels[chosen]))


def main(arguments: list[str] | None = None) -> float:
    """Trains, prints, and returns the test accuracy of the last epoch."""
    options = tyro.cli(Options, args=arguments)
    least = {"shapes": 5 * len(KINDS), "points": 1, "k": 1, "hidden": 1, "layers": 1}
    least |= {"epochs": 1, "batch_size": 1}
    for name, value in least.items():  # the fifth shape of a kind is its first for the test
        if getattr(options, name) < value:
            option = name.replace("_", "-")
            sys.exit(f"--{option}: expected at least {value}, got {getattr(options, name)}")
    path = options.data and options.data / "points.npz"
    if path and not path.is_file():
        sys.exit(f"--data: expected a directory with points.npz, got {options.data}")
    clouds = read(path, options) if path else synthetic(options)
    train = np.flatnonzero(~clouds.test)
    size = min(options.batch_size, len(train))
    print(
        f"{f'shapes of {path}' if path else 'synthetic shapes'}: "
        f"{', '.join(clouds.classes)}; {len(train)} for training, {clouds.test.sum()} for the test"
    )
    steps = len(train) // size
    schedule = optax.cosine_decay_schedule(options.learning_rate, options.epochs * steps)
    model = DGCNN(len(clouds.classes), options, nnx.Rngs(options.seed))
    optimizer = nnx.Optimizer(model, optax.adam(schedule), wrt=nnx.Param)
    rng, test = np.random.default_rng(options.seed), 0.0
    for epoch in range(1, options.epochs + 1):
        start, losses = time.perf_counter(), []
        order = rng.permutation(train)[: steps * size].reshape(steps, size)
        for part in order:
            losses.append(train_step(model, optimizer, clouds.points[part], clouds.labels[part]))
        loss, seconds = np.mean(losses), time.perf_counter() - start
        test = accuracy(model, clouds, size)
        print(f"epoch {epoch}: loss {loss:.4f}, test {test:.3f}, {seconds:.1f} s")
    print(f"test accuracy {test:.3f} on {jax.devices()[0].platform}")
    return test


if __name__ == "__main__":
    main()
