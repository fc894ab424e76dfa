"""The embedded default: scikit-learn's handwritten digits as a nearest-neighbor graph."""

from __future__ import annotations

import importlib.util
import pathlib

import numpy as np

from jaxgnn.data.files.limits import DataError
from jaxgnn.data.generated.neighbors import knn
from jaxgnn.data.sets.dataset import Metadata, NodeDataset
from jaxgnn.data.sets.splits import per_class_splits


def digits(
    *,
    k: int = 10,
    labels_per_class: int = 5,
    validation_per_class: int = 5,
    seed: int = 0,
    num_splits: int = 10,
) -> NodeDataset:
    """1,797 images of 8 x 8 pixels, each joined with its `k` nearest, in 10 classes.

    Edges go both ways. Features are the pixels over 16. Of each class `labels_per_class` nodes
    are trained on; `validation_per_class` further ones serve early stopping and model
    selection, so that no test label is seen before the test; all the rest are tested
    (1,697 of 1,797).

    Args:
        k: neighbors of a node.
        labels_per_class, validation_per_class: sizes of the split.
        seed: the splits are drawn with the seeds `seed`, `seed + 1`, ...
        num_splits: how many splits.

    Raises:
        DataError: an option out of range, or scikit-learn is not installed.
    """
    pixels, labels = _images()
    return NodeDataset(
        name="digits",
        graph=knn(pixels, k, symmetrize=True).to_graph(),
        features=(pixels / 16).astype(np.float32),
        labels=labels,
        num_classes=10,
        splits=per_class_splits(
            labels, labels_per_class, validation_per_class, seed=seed, num_splits=num_splits
        ),
        metadata=Metadata(
            source="scikit-learn's load_digits",
            citation="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, "
            "UCI Machine Learning Repository, 1998",
            license="CC BY 4.0 (UCI)",
            notes=f"kNN graph of the pixels, k = {k}, symmetrized; {labels_per_class} training and "
            f"{validation_per_class} validation nodes a class, the rest tested",
            positions=True,
        ),
    )


def _images() -> tuple[np.ndarray, np.ndarray]:
    """Pixels from 0 to 16, and classes.

    From scikit-learn's file where it is: importing `sklearn.datasets` takes half a second.
    """
    package = importlib.util.find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = pathlib.Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            rows = np.loadtxt(file, delimiter=",")
            return rows[:, :-1], rows[:, -1].astype(np.int32)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("digits: needs scikit-learn (pip install 'jaxgnn[train]')") from error
    images, classes = load_digits(return_X_y=True)
    # Arrays already; scikit-learn's types allow pandas' frames too.
    return np.asarray(images), np.asarray(classes, np.int32)
