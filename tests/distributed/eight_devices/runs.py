"""`jaxgnn plan`, `jaxgnn train` and the page's snippet."""

import dataclasses
import json
import re
import tempfile

import numpy as np
import pytest

from jaxgnn.data import partition_arrays
from jaxgnn.distributed import partition
from jaxgnn.train import ConfigError, TrainConfig, plan, run
from tests.support.paths import ROOT
from tests.support.sharded_steps import sent_in_a_step
from tests.support.training import toy


def check_plan():
    """The layout of both axes sends what `jaxgnn plan` says."""
    dataset = toy()
    for model in ("sage", "gat", "gatv2", "transformer"):
        config = TrainConfig(model=model, hidden=8, heads=4 if model != "sage" else 1, layers=2)
        _, found = plan(config, [8], dataset=dataset, layouts=["both"], limit=1 << 30)
        assert (found.layout, found.column_devices, found.reason) == ("both", 4, "")
        assert found.exchange_bytes - found.reduce_bytes == sent_in_a_step(config, dataset, found)


def check_run():
    """`jaxgnn train --shard both`: by rows of a folder's parts, of which two devices share columns;
    continued on another number of devices."""
    dataset = toy()
    split = partition(dataset.graph, 4, edge_balance=2)
    arrays, _, data = partition_arrays(dataset)
    with tempfile.TemporaryDirectory() as folder:
        split.save(f"{folder}/parts", dataset.graph, arrays, data=data)
        three = partition(dataset.graph, 3, edge_balance=2)
        three.save(f"{folder}/three", dataset.graph, arrays, data=data)
        config = TrainConfig(
            f"{folder}/parts", model="sage", hidden=8, patience=0, dropout=0.0, features="raw"
        )
        one, two = (
            dataclasses.replace(config, run_directory=f"{folder}/{name}") for name in ("one", "two")
        )
        run(dataclasses.replace(one, epochs=4))
        found = run(dataclasses.replace(two, epochs=2, devices="4", shard="both"))
        assert (found["devices"], found["shard"]) == (4, "both")
        more = {"resume": two.run_directory, "epochs": 4, "devices": "8", "shard": "both"}
        assert run(dataclasses.replace(two, **more))["devices"] == 8
        rows = []
        for each in (one, two):
            with open(f"{each.run_directory}/metrics.jsonl") as file:
                rows.append([json.loads(line) for line in file])
        for name in ("loss", "val_loss"):
            got, want = ([row[name] for row in each] for each in reversed(rows))
            np.testing.assert_allclose(got, want, rtol=1e-5)
        for options, text in (
            ({"devices": "3"}, "--shard: expected rows or features over 3 devices, got both"),
            ({"devices": "4", "dataset": f"{folder}/three"}, "--shard: both .* 3 parts, got 2"),
            ({"devices": "4", "model": "agnn"}, "--devices: .* heads that 2 devices divide"),
        ):
            with pytest.raises(ConfigError, match=text):
                run(dataclasses.replace(config, epochs=1, shard="both", **options))


def check_page():
    """The page's snippet."""
    text = (ROOT / "docs" / "distributed.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict = {}
    exec(compile(snippet, "docs/distributed.md", "exec"), names)
    assert names["outputs"].shape == (100, 4) and np.isfinite(names["outputs"]).all()
