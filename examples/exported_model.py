"""An exported model against the model of its run: how far apart, and how fast.

python examples/exported_model.py RUN [--portable]

Exports the run for its own graph into a temporary directory, and times calls of both, one after
the other in turns: the ratio is that of the medians.
"""

import argparse
import statistics
import sys
import tempfile
import time

import jax
import numpy as np

from jaxgnn import export
from jaxgnn.data import DataError
from jaxgnn.train import CheckpointError, ConfigError, RunError, load_run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--portable", action="store_true")
    parser.add_argument("--calls", type=int, default=200)
    options = parser.parse_args()
    if options.calls < 1:
        sys.exit(f"--calls: expected at least 1, got {options.calls}")
    try:
        run = load_run(options.run)
        data = run.own_data()
        weights = run.edge_weights(data)  # None of a run without --edge-weights
    except (CheckpointError, ConfigError, DataError, RunError) as error:
        sys.exit(str(error))
    graph, x = data.graph, jax.numpy.asarray(data.features, run.config.dtype)
    with tempfile.TemporaryDirectory() as directory:
        export.save(
            run.model,
            directory,
            num_nodes=data.num_nodes,
            num_edges=graph.num_edges,
            num_features=data.num_features,
            edge_weights=weights is not None,
            dtype=run.config.dtype,
            platforms=["cuda" if jax.default_backend() == "gpu" else "cpu"],
            portable=options.portable,
        )
        exported = export.load(directory)
    calls = {
        "run": lambda: run.logits(graph, x, weights),
        "exported": lambda: exported(graph, x, weights),
    }
    outputs = {name: np.asarray(call(), np.float64) for name, call in calls.items()}
    times = {name: [] for name in calls}
    for _ in range(options.calls):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    difference = np.abs(outputs["run"] - outputs["exported"]).max(initial=0)
    print(f"{run.config.model} on {data.name}, {graph}, {jax.devices()[0].device_kind}")
    print(f"largest difference of a logit: {difference:.2e}")
    print(f"run {1e3 * medians['run']:.3f} ms, exported {1e3 * medians['exported']:.3f} ms")
    print(f"ratio exported / run: {medians['exported'] / medians['run']:.3f}")


if __name__ == "__main__":
    main()
