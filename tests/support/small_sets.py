"""Small data sets in files."""

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


def weighted_tables(folder, nodes: int, *, labels: bool = True) -> None:
    """Writes `nodes.csv` and `edges.csv`, whose edges have weights: repeated ones and self-loops,
    too."""
    rng = np.random.default_rng(0)
    of_node = [f",{'ab'[i % 2]},{('train', 'val')[i % 3 == 0]}" * labels for i in range(nodes)]
    rows = [f"{i},{i % 5}.5{more}" for i, more in enumerate(of_node)]
    rows = ["id,x" + ",label,split" * labels, *rows]
    ends, weights = rng.integers(0, nodes, (6 * nodes, 2)), rng.exponential(size=6 * nodes)
    edges = [f"{s},{r},{w:.3f}" for (s, r), w in zip(ends, weights, strict=True)]
    (folder / "nodes.csv").write_text("\n".join(rows) + "\n")
    (folder / "edges.csv").write_text("\n".join(["source,target,weight", *edges]) + "\n")
