"""The `jaxgnn` command: its help, its errors, and its smoke tests on real data."""

import dataclasses
import json
import os
import re
import sys

import jax
import pytest

import jaxgnn
from jaxgnn.nn import MODELS
from jaxgnn.train import ConfigError, TrainConfig
from jaxgnn.train.runs.runner import describe_activation
from jaxgnn.train.settings.options import option
from jaxgnn_cli import main
from jaxgnn_cli.options import parse_train
from tests.support.processes import run_python, start
from tests.support.small_sets import small


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def error(capsys, *arguments: str) -> str:
    """The one line that a user's error gives."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("jaxgnn: ")
    return lines[0]


def test_help_and_version(capsys):
    assert main([]) == main(["--help"]) == 0
    assert "train [DATASET]" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxgnn {jaxgnn.__version__}\n"
    assert main(["info", "--help"]) == 0
    assert "digits" in capsys.readouterr().out


def test_help_of_train_explains_every_option_and_names_every_model(capsys):
    assert main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    names = [f.name for f in dataclasses.fields(TrainConfig) if f.name != "dataset"]
    assert all(option(name) in text for name in names)
    assert text.count("default:") >= len(names)
    described = text[text.index("--model") : text.index("--layers")]
    assert all(model in described for model in MODELS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model", "perceiver"],
            f"--model: expected one of {', '.join(sorted(MODELS))}, got 'perceiver'",
        ),
        (["no-such-set"], "no-such-set: no such file"),
        (["/dev/null"], "/dev/null"),
        (["--layers", "0"], "--layers: expected an integer from 1"),
        (["--layers", "two"], "--layers"),
        (["--hidden", "-4"], "--hidden: expected an integer from 1 to 2**20, got -4"),
        (["--dropout", "1"], "--dropout: expected a number from 0 to less than 1, got 1.0"),
        (["--learning-rate", "nan"], "--learning-rate: expected a finite number above 0, got nan"),
        (["--lr", "-1"], "--learning-rate: expected a finite number above 0, got -1.0"),
        (["--lr", "1e39"], "--learning-rate: expected a finite number above 0, got 1e+39"),
        (["--weight-decay", "-0.1"], "--weight-decay: expected"),
        (["--weight-decay", "1e300"], "--weight-decay: expected a finite number from 0, got"),
        (["--epochs", "9" * 400], "--epochs: expected a positive integer, got 9999"),
        (["--out-heads", "65536"], "--out-heads: expected an integer from 0 to 1024, got 65536"),
        (["--preset", "gpt"], "--preset: expected one of agnn, edgeconv, gat, gatv2, gcn"),
        (["x" * 300], "xxx: cannot be read: File name too long"),
        (["no\x1b[31m\udcff[/b].npz"], r"no\x1b[31m\xff[/b].npz: no such file"),
        (["--epochs", "0"], "--epochs: expected a positive integer, got 0"),
        (["--patience", "-1"], "--patience: expected"),
        (["--dtype", "int8"], "dtype"),
        (["--seed", "1e3"], "--seed"),
        (["--activation", "tanh"], "activation"),
        (["--activation", "maxk", "--k", "65"], "--k: expected at most --hidden, 64, got 65"),
        (["--activation", "maxk", "--k", "-1"], "--k: expected an integer from 1 to 4096 or auto"),
        (["--k", "16"], "--k: expected --activation maxk with it, got --activation relu"),
        (["--heads", "2"], "--heads: gcn has no attention heads, got 2"),
        (["--split", "99"], "--split: digits has 10 splits, numbered from 0, got 99"),
        (["--bogus", "3"], "--bogus"),
        (["--epochs"], "--epochs"),
        (["digits", "cora"], "cora"),
        (["--resume"], "--resume: expected the directory of a run, got none"),
        (["--resume", "nowhere"], "--resume: nowhere is no run directory"),
        (["--run-directory", "/proc/no"], "--run-directory: /proc/no: "),
        (["--run-directory", "/dev/null"], "--run-directory: /dev/null: "),
    ],
)
def test_a_bad_value_gives_one_line_and_status_2(capsys, arguments, message):
    assert message in error(capsys, "train", *arguments)


def test_bad_commands(capsys):
    assert (
        "expected train, info, evaluate, predict, compare, export, download, partition, plan "
        "or embed, got 'trian'" in error(capsys, "trian")
    )
    assert "info: expected one dataset" in error(capsys, "info", "a", "b")
    assert "--bogus" in error(capsys, "info", "--bogus", "3")
    assert "--k: expected at most --hidden" in error(
        capsys, "info", "--activation", "maxk", "--k", "80"
    )
    assert "no-such-set" in error(capsys, "info", "no-such-set")


@pytest.mark.parametrize("command", ["info", "plan"])
@pytest.mark.parametrize(
    "given", ["--folds", "--run-directory", "--profile", "--checkpoint-interval"]
)
def test_options_of_runs_are_not_ignored(capsys, command, given):
    found = error(capsys, command, "digits", given, "3")
    assert f"{given}: expected jaxgnn train with it, got jaxgnn {command}" in found


def test_help_is_wrapped_once_and_names_what_the_command_takes(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    texts = {}
    for command in ("train", "plan"):
        assert main([command, "--help"]) == 0
        texts[command] = capsys.readouterr().out
    lines = texts["train"].splitlines()
    first = next(i for i, line in enumerate(lines) if "--task {node,link,graph}" in line)
    paragraph = [line.strip("│ ") for line in lines[first + 1 : first + 6]]
    assert paragraph[0].startswith("node: classify the nodes. link: predict the edges")
    assert all(len(line) > 40 for line in paragraph[:-1]), paragraph
    for name in ("--resume", "--folds", "--task", "--edge-weights", "--checkpoint-interval"):
        begins = re.compile(rf"^\W*{name} ", re.MULTILINE)
        assert begins.search(texts["train"]) and not begins.search(texts["plan"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["block", "--passes", "3"], "--passes: expected --method stream with it, got --method b"),
        (["metis", "--passes", "3"], "--passes: expected --method stream with it, got --method m"),
        (["block", "--seed", "4"], "--seed: expected --method stream or metis with it, got --me"),
    ],
)
def test_options_of_other_methods_of_partition_are_not_ignored(capsys, arguments, message):
    assert message in error(capsys, "partition", "digits", "out", "--method", *arguments)
    assert not os.path.exists("out")


def test_an_activation_without_a_hidden_layer():
    """Of many graphs the readout takes its outputs."""
    config = TrainConfig(layers=1, activation="maxk", k=4, hidden=8)
    assert describe_activation(config) == "maxk: no hidden layer"
    for changes in ({"layers": 2}, {"jumping": "cat"}, {"task": "graph"}, {"model": "agnn"}):
        found = describe_activation(dataclasses.replace(config, **changes))
        assert found == "maxk: the 4 largest of 8"


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(TrainConfig)])
def test_values_of_wrong_types_are_errors_that_name_the_option(name):
    """Of Python's, which the command line does not give."""
    number = isinstance(getattr(TrainConfig, name), int | float)
    for value in ([1], b"x", *((None, "0.1", 0 + 1j) if number else (3,))):
        with pytest.raises(ConfigError, match=rf"^{option(name)}: expected .*, got "):
            dataclasses.replace(TrainConfig(), **{name: value}).check()
    if type(getattr(TrainConfig, name)) in (int, float):
        with pytest.raises(ConfigError, match=rf"^{option(name)}: expected .*, got True"):
            dataclasses.replace(TrainConfig(), **{name: True}).check()


def test_resume_of_something_else(capsys, tmp_path):
    (tmp_path / "run").mkdir()
    settings = TrainConfig(epochs=3).settings()
    damaged = [
        {key: value for key, value in settings.items() if key != "layers"},
        settings | {"layers": "many"},
        settings | {"hue": 3},
        settings | {"epochs": 10**400},
        settings | {"dataset": "a\0b"},
        {},
    ]
    contents = [json.dumps({"settings": values}) for values in damaged]
    for content in ("", "[]", "[" * 100_000, "\0", *contents):
        (tmp_path / "run" / "config.json").write_text(content)
        message = error(capsys, "train", "--resume", "run")
        assert "config.json" in message or "--epochs: expected" in message
        assert len(message) < 400
    (tmp_path / "run" / "config.json").write_text(json.dumps({"settings": settings}))
    message = error(capsys, "train", "--resume", "run", "--hidden", "16")
    assert "its own settings, got --hidden 16 (the run's: 64)" in message
    message = error(capsys, "train", "--resume", "run", "--run-directory", "other")
    assert "--run-directory: a run continues in its own directory, got other" in message
    assert "the data are not those of run" in error(capsys, "train", "--resume", "run")
    for arguments in (["--run-directory", "run", "--resume"], ["--resume", "run", "--plain"]):
        config = parse_train(arguments)
        assert config is not None
        assert (config.resume, config.epochs) == ("run", 3)


def test_a_run_is_made_longer_but_not_shorter(capsys, tmp_path):
    (tmp_path / "run").mkdir()
    settings = TrainConfig(epochs=3, patience=7).settings()
    (tmp_path / "run" / "config.json").write_text(json.dumps({"settings": settings}))
    for epochs, patience in ((9, 7), (9, 8), (3, 0)):
        given = ["--resume", "run", "--epochs", str(epochs), "--patience", str(patience)]
        config = parse_train(given)
        assert config is not None
        assert (config.epochs, config.patience) == (epochs, patience)
    message = error(capsys, "train", "--resume", "run", "--patience", "6")
    assert "--patience: expected 0 or at least the run's, 7, got 6" in message
    message = error(capsys, "train", "--resume", "run", "--preset", "gat")
    assert "--preset: a run continues with its own settings, got 'gat'" in message


def test_presets():
    from jaxgnn.train import PRESETS

    assert set(MODELS) <= set(PRESETS)
    for name, config in PRESETS.items():
        assert config.model == name.partition("-")[0]
        assert parse_train(["--preset", name]) == config.check()
    given = parse_train(["somewhere", "--preset", "gat", "--heads", "4"])
    assert given is not None
    assert (given.dataset, given.heads, given.dropout) == ("somewhere", 4, 0.6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "x"], "--split: expected an integer, got 'x' (see jaxgnn train --help)"),
        (["--hidden", "1.5"], "--hidden: expected an integer, got '1.5' (see jaxgnn train --help)"),
        (["--lr", ""], "--lr/--learning-rate: expected a number, got '' (see jaxgnn train --help)"),
    ],
)
def test_errors_of_texts_that_are_no_numbers(arguments, message, capsys):
    assert main(["train", *arguments]) == 2
    assert capsys.readouterr().err == f"jaxgnn: {message}\n"


def test_options_reach_the_configuration():
    config = parse_train(["--dataset", "somewhere", "--lr", "0.5", "--residual"])
    assert config is not None
    assert (config.dataset, config.learning_rate, config.residual) == ("somewhere", 0.5, True)
    assert (config.norm, config.weight_decay) == ("none", 5e-4)
    assert parse_train(["--dataset=x"]).dataset == parse_train(["x"]).dataset == "x"
    digits = parse_train(["--hidden", "7"])
    assert (digits.dataset, digits.norm, digits.hidden) == ("digits", "layer", 7)
    assert parse_train(["--norm", "none"]).norm == "none"


@pytest.mark.few(1)
@pytest.mark.parametrize("package", ["tyro", "rich", "orbax.checkpoint", "matplotlib", "optax"])
def test_without_the_extra_one_line_names_it(package):
    code = (
        f"import sys; sys.modules[{package!r}] = None; import jaxgnn_cli as c; sys.exit(c.main())"
    )
    stderr = run_python("-c", code, "train", status=2).stderr
    assert stderr == f"jaxgnn: train needs {package.split('.')[0]}: pip install 'jaxgnn[train]'\n"


def test_the_command_starts_before_jax_is_imported():
    code = "import jaxgnn_cli, sys; jaxgnn_cli.main(['--help']); print('\\n', *sys.modules)"
    loaded = set(run_python("-c", code).stdout.splitlines()[-1].split())
    assert "jaxgnn_cli.interrupts" in loaded and not {"jax", "jaxgnn", "numpy"} & loaded


@pytest.mark.parametrize("package", ["jaxgnn", "jaxgnn_cli"])
def test_both_packages_run_as_the_command(package):
    wrong = run_python("-m", package, "train", "--layers", "0", status=2)
    assert wrong.stderr == "jaxgnn: --layers: expected an integer from 1 to 1000, got 0\n"


@pytest.mark.parametrize(
    ("redirection", "status", "message"),
    [
        ("> /dev/full", 1, "jaxgnn: standard output: No space left on device\n"),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("> /dev/full 2> /dev/full", 1, ""),
        ("| true", 141, ""),
    ],
)
def test_output_that_is_full_or_closed(redirection, status, message):
    # A pipe's reader that is gone for certain, and the status of what is before it.
    pipe = redirection.startswith("|")
    command = f"(sleep 0.5; exec {sys.executable} -m jaxgnn_cli --help) {redirection}"
    script = f"set -o pipefail; {command}" if pipe else command.replace("sleep 0.5; ", "")
    process = start("bash", "-c", script)
    assert process.communicate()[1] == message
    assert process.returncode == status


def test_info(capsys):
    assert main(["info", "digits"]) == 0
    text = capsys.readouterr().out
    assert "CPU kernels" in text and "1,797" in text and jaxgnn.build_info().jaxlib in text
    assert "homophily" in text


@pytest.mark.system
def test_info_says_which_kernels_a_model_runs(capsys):
    from jaxgnn._core.platform import kernels_available

    command = "info digits --model gcn --activation maxk --k 16 --input-layer"
    assert main(command.split()) == 0
    # Without the table's lines: a cell may be broken anywhere.
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "maxk: the 16 largest of 64" in text and "gcn on digits" in text and "1,797" in text
    if kernels_available("jaxgnn_maxk", "jaxgnn_maxk_spmm"):
        # On a GPU the graph has windows, as it has in training.
        name = "maxk_spmm" if jax.default_backend() == "cpu" else "maxk_spmm_windows"
        assert f"{name} (sparse features, " in text and " spmm (" not in text
    else:
        assert "JAX reference" in text
    assert main(["info", "--model", "sage"]) == 0
    text = capsys.readouterr().out
    assert "sage on digits" in text and "relu" in text and "maxk" not in text
    assert "homophily" not in text  # no dataset was named


def test_diverged_training_gives_one_line_and_status_1(capsys, tmp_path):
    small(tmp_path / "small.npz")
    assert main(["train", "small.npz", "--lr", "1e30", "--epochs", "20"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "try a lower --learning-rate" in line


@pytest.mark.parametrize("plain", [False, True])
def test_a_terminal_gets_a_live_display(tmp_path, plain):
    import io

    from rich.console import Console

    from jaxgnn.train import run

    small(tmp_path / "small.npz")
    config = parse_train(["small.npz", "--epochs", "25", "--residual"] + ["--plain"] * plain)
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    assert config is not None
    summary = run(config, console)
    text = console.file.getvalue()
    assert ("\x1b[2K" in text) == (not plain)
    assert ("epoch  1/25  loss" in text) == plain
    assert "25/25" in text and "epochs/s" in text and "loss" in text
    # Of the settings those that say something of this run.
    assert (
        "gcn: task node, layers 2, hidden 64, activation relu, dropout 0.5, residual True" in text
    )
    assert "heads" not in text and "; else the defaults" in text
    assert f"{100 * summary['test_score']:.2f} %" in text
    assert os.path.basename(summary["run_directory"]).startswith("small-gcn-")


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["cora", "amazon_photo", "dblp", "minesweeper"])
def test_the_real_sets_train(name, data_directory, capsys):
    path = data_directory / name
    if not path.exists():
        pytest.skip(f"no {path}")
    arguments = ["train", str(path), "--epochs", "2", "--hidden", "8", "--run-directory", "run"]
    assert main(arguments) == 0
    metric = "ROC AUC" if name == "minesweeper" else "accuracy"
    out = capsys.readouterr().out
    assert f"test {metric}" in out and "run directory: run" in out
    with open("run/config.json") as file:
        settings = json.load(file)["settings"]
    assert settings["dataset"] == str(path)
