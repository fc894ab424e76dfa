"""Published accuracies, as means over ten seeds."""

import dataclasses

import pytest

from jaxgnn.train import TrainConfig, train_seeds
from jaxgnn.train.config import PUBLISHED

pytestmark = pytest.mark.usefixtures("optimized")


def test_gcn_on_cora_reaches_the_published_accuracy(data_directory):
    path = data_directory / "cora"
    if not path.exists():
        pytest.skip(f"no {path}")
    result = train_seeds(dataclasses.replace(PUBLISHED["pyg"], dataset=str(path)), range(10))
    print(result)
    assert 80.5 <= 100 * result.scores.mean() <= 82.5


def test_gcn_on_digits_with_five_labels_a_class():
    config = dataclasses.replace(TrainConfig.for_dataset("digits"), patience=0)
    result = train_seeds(config, range(10), splits=range(10))
    print(result)
    assert 100 * result.scores.mean() >= 92
