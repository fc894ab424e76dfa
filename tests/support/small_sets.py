"""A small data set in a file."""

import numpy as np


def small(path, nodes: int = 200) -> None:
    """Writes a data set in the layout of the heterophilous sets."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, nodes)
    part = np.tile(np.arange(nodes) % 4, (10, 1))
    np.savez(
        path,
        node_features=(np.eye(3)[labels] + rng.normal(size=(nodes, 3))).astype(np.float32),
        node_labels=labels,
        edges=rng.integers(0, nodes, (4 * nodes, 2)),
        train_masks=part == 0,
        val_masks=part == 1,
        test_masks=part >= 2,
    )
