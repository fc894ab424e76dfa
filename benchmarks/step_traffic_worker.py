"""The worker of `step_traffic`: `python -m benchmarks.step_traffic_worker TASK.json`.

Runs a training step of each setting once to compile and load it, and once more between two
markers, which alone the profiler around this process is to see.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

from benchmarks import graphs, process, training, training_jax, training_worker
from benchmarks.traffic_worker import Marker
from benchmarks.training import Setting


def main(task_file: str) -> int:
    task = json.loads(Path(task_file).read_text())
    process.limit_threads(task["device"], task["threads"])
    graph, workspace = graphs.load(Path(task["graph"])), Path(task["workspace"])
    features = training_worker.load_arrays(workspace / "features.npz")
    marker = Marker(task["profiler_calls"])
    for number, fields in enumerate(task["settings"]):
        process.send({"start": number})
        setting = Setting(**fields)
        parameters = training_worker.load_arrays(training.parameters_file(workspace, setting))
        widths = list(setting.sizes(task["widths"]))
        try:
            job = training_jax.job(
                setting, graph, features, parameters, widths, task["device"], alone=False
            )
            with marker.case(number):
                job.seconds(1)
            facts = {"loss": job.loss, "shape": training_worker.shape(setting, graph, widths)}
            process.send({"done": number, "facts": facts})
            del job
        except Exception as problem:
            reason = f"{type(problem).__name__}: {str(problem)[:300]}"
            process.send({"done": number, "failed": reason})
        gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
