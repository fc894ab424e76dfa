"""The tables in Markdown, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.experiments.maxk_paper import kernels, published, steps
from benchmarks.experiments.maxk_paper.store import Results

_CHECKPOINTS = (0.1, 0.25, 0.5, 1.0)  # shares of the epochs, of a curve's table


def report(results: Results, ks: Sequence[int], real: Sequence[str]) -> str:
    """All tables that there are results for. `real`: the sets whose files were given."""
    head = results.header
    parts = [
        f"Measured on {head['hardware']}, jaxlib {head['jaxlib']}, {head['date'][:10]}, scale "
        f"{head['scale']:g}; the paper's figures are of one A100 80 GB.",
        *_table_5(results, real),
        *_convergence(results),
        *_figure_8(results, ks),
        *_table_4(results),
        *_table_2(results),
    ]
    parts += [f"Left out: {e['what']}: {e['reason']}." for e in results.parts["left_out"]]
    if results.pending:
        parts.append("--budget is spent: the same command goes on with what is not there yet.")
    return "\n\n".join(parts)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; numbers with three digits, `None` as a dash."""
    lines = [f"**{title}**", "", "| " + " | ".join(columns) + " |"]
    lines.append("| --- |" + " ---: |" * (len(columns) - 1))
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) and value < 1e3 else str(value)


def _activation(k: int | None) -> str:
    return "ReLU" if k is None else f"MaxK {k}"


def _table_5(results: Results, real: Sequence[str]) -> list[str]:
    rows, sets = [], []
    for (dataset, model), entries in published.TABLE_5.items():
        ours = {entry["k"]: entry for entry in steps.compared(results, dataset, model)}
        for k, paper in entries.items():
            score = _score(results, dataset, model, k)
            entry = ours.get(k, {})
            if not entry and score is None:
                continue
            sets.append(dataset)
            rows.append(
                [f"{dataset} {model}, {_activation(k)}", score, _published(paper)]
                + [entry.get(name) for name in ("ms", "speedup", "limit")]
                + [paper.speedup, entry.get("over_best"), entry.get("limit_over_best")]
                + [entry.get("best")]
            )
    if not rows:
        return []
    columns = ["", "score, %", "paper's", "ms a step", "over our ReLU", "its limit", "paper's"]
    columns += ["over the best baseline", "its limit", "best baseline"]
    out = [table("Table 5", columns, rows)]
    shaped = [name for name in dict.fromkeys(sets) if name not in real]
    if shaped:
        out.append(
            f"{', '.join(shaped)}: without --data, random graphs of the sets' sizes, features and "
            "labels, of which time alone means something: no scores."
        )
    out.append(
        "A step is forward, softmax cross-entropy over all nodes, backward and Adam in float32 "
        "(TF32 products), with layer normalization and dropout of a half, in every implementation. "
        "A limit is the speed-up if the aggregations of ours with ReLU took no time."
    )
    return out


def _published(paper: published.Entry) -> float:
    return paper.score if paper.score > 1 else 100 * paper.score


def _score(results: Results, dataset: str, model: str, k: int | None) -> str | None:
    rows = results.find("scores", dataset=dataset, model=model, k=k)
    if not rows:
        return None
    epochs = max(row["epochs"] for row in rows)
    values = [100 * row["test_score"] for row in rows if row["epochs"] == epochs]
    spread = f" ± {np.std(values):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread} ({len(values)} seeds, {epochs} epochs)"


def _convergence(results: Results) -> list[str]:
    """Validation scores and seconds on the way: means over the seeds."""
    groups = dict.fromkeys(
        (row["dataset"], row["model"], row["k"], row["epochs"]) for row in results.parts["scores"]
    )
    rows = []
    for dataset, model, k, epochs in groups:
        own = {"dataset": dataset, "model": model, "k": k, "epochs": epochs}
        curves = [np.array(row["curve"], float) for row in results.find("scores", **own)]
        cells = []
        for share in _CHECKPOINTS:
            at = [curve[max(0, round(share * len(curve)) - 1)] for curve in curves]
            seconds, score = np.mean([point[[1, 3]] for point in at], axis=0)
            cells.append(f"{100 * score:.2f} ({seconds:.3g} s)")
        rows.append([f"{dataset} {model}, {_activation(k)}", epochs, *cells])
    if not rows:
        return ["Figures 9 and 10 (convergence): no set's files were given (--data), no curves."]
    columns = ["validation score, % (seconds)", "epochs"]
    columns += [f"{share:.0%} of the epochs" for share in _CHECKPOINTS]
    return [table("Figures 9 and 10: convergence", columns, rows)]


def _figure_8(results: Results, ks: Sequence[int]) -> list[str]:
    entries = [e for e in kernels.speedups(results, ks) if e["over_library"] or e["over_ours"]]
    if not entries:
        return []

    def row(name: str, degree: float | None, entry: dict[str, Any]) -> list[Any]:
        over = [entry[which].get(k) for which in ("over_library", "over_ours") for k in ks]
        return [f"{name}, {entry['pass']}", degree, *over]

    rows = [row(e["graph"], e["mean_degree"], e) for e in entries]
    for way, paper in published.FIGURE_8.items():
        dense = [e for e in entries if e["pass"] == way and e["mean_degree"] > 50]
        if not dense:
            continue
        means: dict[str, Any] = {"pass": way}
        for which in ("over_library", "over_ours"):
            values = {k: [e[which][k] for e in dense if k in e[which]] for k in ks}
            means[which] = {k: kernels.mean(values[k]) for k in ks}
        rows.append(row(f"mean of {len(dense)} above degree 50", None, means))
        beside = {"pass": way, "over_library": paper, "over_ours": {}}
        rows.append(row("the paper's mean of 24", None, beside))
    library = "cuSPARSE" if results.header["device"] == "gpu" else "torch.sparse"
    columns = ["times as fast", "mean degree"]
    columns += [f"{library}, k = {k}" for k in ks] + [f"our dense, k = {k}" for k in ks]
    out = [table("Figure 8: aggregation of k entries of 256", columns, rows)]
    out.append("Ours is the engine chosen by the estimate: rows, windows or the dense rows.")
    for way, paper in published.FASTER_UP_TO_128.items():
        own = [v for e in entries if e["pass"] == way for k, v in e["over_library"].items()
               if k <= 128]  # fmt: skip
        if own:
            most = max(k for k in ks if k <= 128)
            faster = 100 * sum(value > 1 for value in own) / len(own)
            out.append(
                f"{way}, k up to {most}: faster than {library} in {faster:.1f} % of {len(own)} "
                f"cases; the paper's {paper} %."
            )
    return out


def _table_4(results: Results) -> list[str]:
    rows = []
    for shape in dict.fromkeys(row["case"] for row in results.parts["operations"]):
        found = kernels.times(results, shape, kernels.SELECTION_K)
        own, select = found["forward"], found["select"]
        share = 100 * select / own if own and select else None
        rows.append(
            [shape]
            + [found[name] for name in ("dense", "ours dense", "forward", "backward", "select")]
            + [share]
        )
    if not rows:
        return []
    paper = published.TABLE_4
    share = 100 * paper["select"] / paper["forward"]
    own = [paper["dense"], None, paper["forward"], paper["backward"], paper["select"], share]
    rows.append(["the paper's reddit", *own])
    columns = ["ms, k = 32", "library's SpMM", "our SpMM", "SpGEMM", "SSpMM", "selection"]
    return [table("Table 4", [*columns, "selection over SpGEMM, %"], rows)]


def _table_2(results: Results) -> list[str]:
    rows = []
    fields = ("l2_gigabytes", "l1_hit_percent", "l2_hit_percent", "hbm_gigabytes", "ms")
    for row in results.parts["counters"]:
        rows.append([f"{row['case']}, {row['column']}", *(row[name] for name in fields)])
    if not rows:
        return []
    for name, paper in published.TABLE_2.items():
        rows.append([f"the paper's reddit, {name}", *paper, None, None])
    columns = ["k = 32", "L2, GB", "L1 hits, %", "L2 hits, %", "HBM, GB", "ms"]
    return [table("Table 2", columns, rows)]
