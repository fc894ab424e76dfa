"""An exported model, which tests copy."""

from pathlib import Path

import pytest

from jaxgnn import export
from tests.support.exports import COUNTS, a_model


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("export") / "model"
    export.save(a_model(model="sage"), directory, **COUNTS)
    return directory
