"""Datasets on generated graphs: for trying a model out and for tests, not for comparisons."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from jaxgnn.data.files.limits import DataError
from jaxgnn.data.generated.generators import (
    chung_lu,
    power_law_weights,
    random_sizes,
    rmat,
    stochastic_block_model,
)
from jaxgnn.data.sets.csr import CSR
from jaxgnn.data.sets.dataset import Metadata, NodeDataset
from jaxgnn.data.sets.splits import fraction_splits


def sbm_dataset(
    *,
    classes: int = 4,
    nodes_per_class: int = 250,
    p_in: float = 0.05,
    p_out: float = 0.005,
    features: int = 16,
    noise: float = 2.0,
    seed: int = 0,
    num_splits: int = 10,
) -> NodeDataset:
    """Classes are the blocks of a stochastic block model; features are noisy class means.

    Args:
        classes, nodes_per_class: the blocks.
        p_in, p_out: probability of an edge within a block and between two.
        features: number of features.
        noise: standard deviation about the class mean, which is standard normal.
        seed: of the graph and the features; the splits take `seed`, `seed + 1`, ...
        num_splits: how many splits, each of 50 % training, 25 % validation and 25 % test.
    """
    _positive(classes=classes, nodes_per_class=nodes_per_class, features=features)
    p = np.full((classes, classes), float(p_out))
    np.fill_diagonal(p, p_in)
    csr, labels = stochastic_block_model(np.full(classes, nodes_per_class), p, seed=seed)
    x = _noisy_means(labels, classes, features, noise, seed)
    return _dataset("sbm", csr, x, labels, classes, seed, num_splits)


def chung_lu_dataset(
    *,
    num_nodes: int = 10_000,
    num_edges: int = 200_000,
    classes: int = 10,
    intra_share: float = 0.6,
    features: int = 16,
    noise: float = 2.0,
    seed: int = 0,
    num_splits: int = 10,
) -> NodeDataset:
    """Classes are the communities of a Chung-Lu graph of power-law degrees, up to 60 x the mean.

    Features, noise, seed and splits are those of `sbm_dataset`.
    """
    _positive(num_nodes=num_nodes, classes=classes, features=features)
    weights = power_law_weights(num_nodes, exponent=0.55, low_exponent=0.9, max_to_mean=60)
    rng = np.random.default_rng(seed)
    csr, labels = chung_lu(
        rng.permutation(weights),
        num_edges,
        community_sizes=random_sizes(num_nodes, classes, rng),
        intra_share=intra_share,
        shuffle=True,
        seed=seed,
    )
    x = _noisy_means(labels, classes, features, noise, seed)
    return _dataset("chung_lu", csr, x, labels, classes, seed, num_splits)


def rmat_dataset(
    *,
    scale: int = 12,
    edge_factor: float = 16.0,
    classes: int = 4,
    features: int = 16,
    seed: int = 0,
    num_splits: int = 10,
) -> NodeDataset:
    r"""An undirected R-MAT graph, which has no classes: a random one-layer network assigns them.

    $y_i = argmax_c (W^T (x_i / \sqrt{d_i + 1} + \sum_j x_j / (d_i + 1)))_c$ with standard normal
    features and $W$, so that neighbors are needed to predict a class.
    """
    _positive(classes=classes, features=features)
    csr = rmat(scale, edge_factor, undirected=True, seed=seed)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((csr.num_nodes, features), np.float32)
    degree = csr.degrees[:, None] + 1.0
    mixed = x / np.sqrt(degree) + csr.to_scipy().T @ x / degree
    labels = (mixed @ rng.standard_normal((features, classes))).argmax(axis=1).astype(np.int32)
    return _dataset("rmat", csr, x, labels, classes, seed, num_splits)


def _noisy_means(
    labels: Int[np.ndarray, " num_nodes"], classes: int, features: int, noise: float, seed: int
) -> Float[np.ndarray, "num_nodes features"]:
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((classes, features), np.float32)
    return means[labels] + np.float32(noise) * rng.standard_normal(
        (labels.size, features), np.float32
    )


def _dataset(
    name: str, csr: CSR, x: np.ndarray, labels: np.ndarray, classes: int, seed: int, num_splits: int
) -> NodeDataset:
    return NodeDataset(
        name=name,
        graph=csr.to_graph(),
        features=x,
        labels=labels,
        num_classes=classes,
        splits=fraction_splits(csr.num_nodes, 0.5, 0.25, seed=seed, num_splits=num_splits),
        metadata=Metadata(
            source=f"jaxgnn.data.{name}", license="none needed", notes=f"synthetic, seed {seed}"
        ),
    )


def _positive(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise DataError(f"{name}: expected at least 1, got {count}")
