"""The examples about MaxK, small."""

import json

import numpy as np
import pytest

from tests.support.large_sets import write_graphsaint, write_ogb, write_reddit
from tests.support.paths import load_example


@pytest.mark.system
def test_a_perceptron_with_maxk_fits_a_square(tmp_path, capsys):
    from PIL import Image

    plot = tmp_path / "plots" / "fit.png"
    command = f"--hidden 4 16 --steps 1500 --points 128 --seeds 5 --plot {plot}"
    fits = load_example("maxk_approximation")["main"](command.split())
    for name in ("maxk", "relu"):
        assert fits[name, 16].error < 0.6 * fits[name, 4].error
        assert fits[name, 16].error < 0.06 and fits[name, 16].curve.shape == (127,)
        assert np.isclose(np.median(fits[name, 16].errors), fits[name, 16].error)
    text = capsys.readouterr().out
    assert f"{fits['maxk', 16].error:.2e}" in text and str(plot) in text
    with Image.open(plot) as image:
        image.load()
        assert image.width > 1000 and len(set(image.convert("RGB").getdata())) > 100


@pytest.mark.system
def test_the_comparison_writes_its_table(tmp_path, capsys):
    example = load_example("maxk_accuracy")
    command = f"--datasets digits --models gcn --seeds 2 --epochs 15 --output {tmp_path / 'out'}"
    kinds = ["relu", "maxk/8", "packed/4", "annealed/8"]
    example["main"]([*command.split(), "--activations", *kinds])
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    (record,) = result["records"]
    assert list(record["results"]) == kinds
    options = ("activation", "k", "packed", "anneal_from", "anneal_epochs")
    settings = [r["settings"] for r in record["results"].values()]
    assert [tuple(s[name] for name in options) for s in settings[1:]] == [
        ("maxk", 8, False, 0, 100),
        ("maxk", 16, True, 0, 100),
        ("maxk", 8, False, 32, 7),
    ]
    for values in record["results"].values():
        assert len(values["scores"]) == 2 and values["settings"]["epochs"] == 15
        assert values["mean"] == pytest.approx(np.mean(values["scores"]), abs=1e-2)
    table = (tmp_path / "out" / "table.md").read_text()
    assert table in capsys.readouterr().out
    assert table.splitlines()[2].startswith("| digits | gcn | ")


def test_the_table_says_where_maxk_falls_behind():
    def record(relu, maxk):
        means = {"relu": relu, "maxk/8": 1.0, "maxk/4": maxk}
        results = {name: {"mean": mean, "deviation": 0.25} for name, mean in means.items()}
        own = {"dataset": "a", "model": "gcn", "change": "none"}
        return {**own, "metric": "roc_auc", "results": results}

    lines = load_example("maxk_accuracy")["markdown"]([record(80.0, 79.1), record(80.0, 78.5)])
    near, far = lines.splitlines()[2:]
    scores = "| 80.0 ± 0.2 | 1.0 ± 0.2 (-79.00) | 79.1 ± 0.2 (-0.90) |"
    assert near.endswith(scores) and "(ROC AUC)" in near
    assert far.endswith("| 78.5 ± 0.2 (-1.50: not within 1 point) |")
    wide = record(80.0, 80.5) | {"change": "hidden=256"}
    lines = load_example("maxk_accuracy")["markdown"]([record(80.0, 79.1), wide]).splitlines()
    assert lines[0].startswith("| data | model | changed | relu |")
    assert "| gcn | nothing | 80.0" in lines[2] and "| gcn | hidden=256 | 80.0" in lines[3]


def test_the_comparison_changes_settings_that_are_no_others():
    example = load_example("maxk_accuracy")
    config = example["SETTINGS"]["cora"]
    assert example["changed"](config, "none") == config
    wide = example["changed"](config, "hidden=256,norm=layer,learning_rate=0.003")
    assert (wide.hidden, wide.norm, wide.learning_rate) == (256, "layer", 0.003)
    assert example["variant"](wide, "maxk/8").k == 32
    for change in ("width=256", "hidden=wide", "hidden", ""):
        with pytest.raises(example["ConfigError"], match="--changes: expected none or NAME=VALUE"):
            example["changed"](config, change)


@pytest.mark.parametrize("name", ["flickr", "yelp", "reddit", "ogbn-products", "ogbn-proteins"])
def test_the_paper_s_settings_are_taken(name):
    example = load_example("maxk_paper")
    experiment, options = example["EXPERIMENTS"][name], example["Options"](dataset=name, slice=200)
    config, part = example["configuration"](options), example["read"](options)
    assert (config.layers, config.hidden) == (experiment.layers, experiment.hidden)
    assert (config.epochs, config.dropout) == (experiment.epochs, experiment.dropout)
    assert part.features.shape == (200, experiment.features)
    assert (part.num_classes, part.metric) == (experiment.classes, experiment.metric)


@pytest.mark.few(1)
# Each model, metric and number of layers: a deep program takes seconds to compile.
@pytest.mark.parametrize(
    ("name", "model"),
    [("yelp", "gcn"), ("ogbn-products", "gin"), ("ogbn-proteins", "sage")],
)
def test_the_paper_s_settings_run_on_a_slice(tmp_path, name, model, capsys):
    example = load_example("maxk_paper")
    directory = tmp_path / "run"
    command = f"{name} --model {model} --slice 200 --epochs 3 --run-directory {directory}"
    summary = example["main"](command.split())
    experiment = example["EXPERIMENTS"][name]
    saved = json.loads((directory / "config.json").read_text())["settings"]
    assert (saved["layers"], saved["hidden"]) == (experiment.layers, experiment.hidden)
    assert (saved["activation"], saved["k"], saved["norm"]) == ("maxk", 32, "layer")
    assert summary["metric"] == experiment.metric and 0 <= summary["test_score"] <= 1
    assert f"maxk: the 32 largest of {experiment.hidden}" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    ("name", "write", "options"),
    [
        ("flickr", write_graphsaint, {}),
        ("yelp", write_graphsaint, {"multilabel": True}),
        ("reddit", write_reddit, {}),
        ("ogbn-products", write_ogb, {}),
        ("ogbn-proteins", write_ogb, {"features": 0, "tasks": 4}),
    ],
)
def test_the_paper_s_files_are_read(tmp_path, name, write, options):
    example = load_example("maxk_paper")
    folder = write(tmp_path / name, nodes=60, **options)
    parse = example["Options"]
    whole = example["read"](parse(dataset=name, data=folder, model="gcn"))
    loops = np.asarray(whole.graph.self_loops)
    assert set(loops) == {int(name != "ogbn-proteins")}
    part = example["read"](parse(dataset=name, data=folder, slice=25))
    assert part.num_nodes == 25 and part.split().train.any()
    # Every edge of the slice is one between two nodes of the same features in the whole.
    place = [np.flatnonzero((whole.features == row).all(axis=1)) for row in part.features]
    assert all(len(found) == 1 for found in place)
    place = np.concatenate(place)
    edges = {*zip(np.asarray(whole.graph.senders), np.asarray(whole.graph.receivers), strict=True)}
    inside = {*zip(place[np.asarray(part.graph.senders)], place[np.asarray(part.graph.receivers)],
                   strict=True)}  # fmt: skip
    every = {(a, b) for a, b in edges if a in set(place) and b in set(place) and a != b}
    assert {(a, b) for a, b in inside if a != b} == every
    np.testing.assert_array_equal(part.labels, whole.labels[place])


@pytest.mark.system
def test_the_paper_s_run_on_files_resumes(tmp_path, capsys):
    example = load_example("maxk_paper")
    folder = write_graphsaint(tmp_path / "flickr", nodes=60)
    command = f"flickr --data {folder} --k 8 --epochs 2 --run-directory {tmp_path / 'run'}".split()
    first = example["main"](command)
    again = example["main"]([*command, "--resume"])
    assert again["test_score"] == first["test_score"] and again["dataset"] == "flickr"
    assert "continuing after epoch 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("reddit", "--data: expected the directory of the files (or --slice), got none"),
        ("reddit --data nowhere", "nowhere: no such file or directory"),
        ("reddit --slice 50 --k 300", "--k: expected at most --hidden, 256, got 300"),
        ("reddit --slice -5", "--slice: expected at least 1, got -5"),
        ("reddit --slice 50 --resume", "--resume: expected --run-directory with it, got none"),
    ],
)
def test_bad_options_of_the_paper_s_script(command, message):
    with pytest.raises(SystemExit) as stop:
        load_example("maxk_paper")["main"](command.split())
    assert message in str(stop.value)
