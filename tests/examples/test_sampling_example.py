"""What sampling costs in accuracy: the example, small."""

import json

import numpy as np
import pytest

from tests.support.paths import load_example


@pytest.mark.system
def test_a_trial_measures_all_kinds_and_goes_on(tmp_path, capsys):
    example = load_example("sampling_accuracy")
    output = tmp_path / "out" / "results.json"
    command = ["--quick", "--datasets", "community", "--output", str(output)]
    example["main"]([*command, "--models", "sage"])
    result = json.loads(output.read_text())
    rows = result["records"]
    assert all(len(row["scores"]) == 2 and row["edge_share"] <= 1 for row in rows)
    kinds = {(row["trained"], row["strategy"]) for row in rows}
    trained = {("all", "all"), ("fixed", "all"), ("fresh", "all"), ("mini-batches", "all")}
    assert trained | {("fixed", "stride"), ("all", "bucket")} <= kinds
    settings = {row["trained"]: row["settings"] for row in rows if "settings" in row}
    assert settings["fixed"]["fixed_sample"] and settings["fixed"]["sample_size"] == 32
    assert not settings["fresh"]["fixed_sample"] and settings["all"]["sample_size"] == 0
    assert settings["mini-batches"]["num_neighbors"] == "15,10"
    printed = capsys.readouterr().out
    for name, table in example["tables"](rows).items():
        assert f"{name}\n\n{table}" in printed and "| community | sage |" in table
    # What the file has is not measured again.
    example["main"]([*command, "--models", "sage"])
    assert json.loads(output.read_text()) == result
    example["main"](["--tables", str(output)])
    first, second = capsys.readouterr().out.split("least")[1:]
    assert first.strip() == second.strip()


def test_the_tables_compare_with_all_edges():
    def row(strategy="all", size=None, *scores, trained="all", **more):
        fields = {"dataset": "cora", "model": "gcn", "mean_degree": 4.0, "drop_rate": None}
        sample = {"strategy": strategy, "sample_size": size, "edge_share": 0.5}
        return fields | {"trained": trained} | sample | {"scores": list(scores)} | more

    batches = {"settings": {"num_neighbors": "5,5", "batch_size": 9}}
    rows = [
        row("all", None, 80.0, 82.0),
        row("stride", 2, 80.5, 80.5),  # within a point, but the next larger one is not
        row("stride", 4, 79.0, 80.0),
        row("stride", 8, 80.0, 80.0),
        row("bucket", 2, 70.0, 70.0),
        row("dropedge", None, 80.0, 80.0) | {"drop_rate": 0.4},
        row("all", None, 78.0, 80.0, trained="mini-batches", **batches),
    ]
    example = load_example("sampling_accuracy")
    assert example["least_size"](rows, "stride") is rows[3]
    assert example["least_size"](rows, "bucket") is None
    tables = example["tables"](rows)
    assert "| cora | gcn | 4.0 | > 2 | – | 8 (50 %) |" in tables["least"]
    assert "| stride | 81.0 ± 1.0 | -0.5 | -1.5 | -1.0 | – |" in tables["inference"]
    assert "80.0 ± 0.0 (-1.0) |" in tables["dropped"]
    assert r"| 5,5 × 9 | 81.0 ± 1.0 | 79.0 ± 1.0 (-2.0) \* |" in tables["mini-batches"]


def test_data_that_are_not_there_end_with_one_line(tmp_path):
    command = ["--data", str(tmp_path / "none"), "--output", str(tmp_path / "o.json")]
    with pytest.raises(SystemExit, match="no such file or directory"):
        load_example("sampling_accuracy")["main"](command)


def test_samples_that_leave_out_edges_are_measured():
    example = load_example("sampling_accuracy")
    degrees = np.array([1, 2, 300])
    found = example["samples"](degrees)
    assert len(found) == 3 * 8 + 4 and sum(sample.draws for sample in found) == 4
    assert len(example["samples"](np.array([8] * 5))) == 3 * 2 + 4
