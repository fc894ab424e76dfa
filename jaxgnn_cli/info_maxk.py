"""What `jaxgnn info` says of MaxK: which engines it runs, and where its rows stay sparse."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from jaxgnn_cli.output import duration

if TYPE_CHECKING:
    from jax.stages import Lowered
    from rich.table import Table

    from jaxgnn import Graph
    from jaxgnn.train import TrainConfig
    from jaxgnn.train.steps.step import Program

_LAYER = re.compile(r"layer_(\d+)_(\w+)")
_SPARSE, _DENSE = "jaxgnn.maxk_spmm", "jaxgnn.cbsr_to_dense"


def aggregates_maxk(program: Program, step: Lowered) -> bool:
    """Whether a step aggregates MaxK's rows of the graph itself, by any engine; a mini-batch has
    another graph in each step."""
    return program.batches is None and _SPARSE in step.as_text(debug_info=True)


def add_engines(table: Table, graph: Graph, config: TrainConfig) -> None:
    """What `maxk_spmm` and its gradient would run on a GPU: see `jaxgnn.config.maxk_engine`."""
    from jaxgnn import build_info
    from jaxgnn.graph._layouts.windows import MAX_WIDTH
    from jaxgnn.ops._maxk import choice

    if not build_info().cpu or graph.num_edges >= 1 << 31:
        return
    if graph.windows is None and config.hidden <= MAX_WIDTH:
        graph = graph.with_windows(width=config.hidden)
    moved = config.k if config.anneal_stages else config.anneal_from or config.k
    operations: dict[str, choice.Operation] = {"maxk_spmm": "spgemm", "its gradient": "sspmm"}
    case = choice.of_graph(graph, config.hidden, moved, config.dtype)
    case = case._replace(weighted=config.edge_weights)
    for name, operation in operations.items():
        seconds = choice.estimate(case, operation)
        text = ", ".join(f"{engine} {duration(value)}" for engine, value in seconds.items())
        fastest = choice.choose(case, operation)
        table.add_row(f"{name}, H200 (estimate)", f"{text}: {fastest}")


def rows(step: Lowered) -> str:
    """Where a step aggregates MaxK's rows as they are, and where it makes their dense form.

    A layer aggregates them as they are where its module has `accepts_sparse`. The scopes of the
    traced step say what was done, in each layer and around the layers.
    """
    sparse: dict[str, set[int]] = defaultdict(set)
    dense: dict[str, set[int]] = defaultdict(set)
    around = False
    for name in set(re.findall(r'loc\("([^"]*)"', step.as_text(debug_info=True))):
        for scope, layers in ((_SPARSE, sparse), (_DENSE, dense)):
            if scope in name:
                layer = _LAYER.search(name)
                if layer is not None:
                    layers[layer[2]].add(int(layer[1]) + 1)
                elif scope == _DENSE:
                    around = True
    own = {name: found & sparse[name] for name, found in dense.items() if found & sparse[name]}
    given = {name: found - sparse[name] for name, found in dense.items() if found - sparse[name]}
    kept = {name: found for name, found in sparse.items() if found}
    parts = [f"sparse sums in {_layers(kept)}"] if kept else ["no sparse sums"]
    if own:
        parts.append(f"dense for a node's own row in {_layers(own)}")
    if given:
        parts.append(f"dense for all of {_layers(given)}")
    if around:
        parts.append("dense around the layers")
    return "; ".join(parts)


def _layers(found: dict[str, set[int]]) -> str:
    """Such as "layers 2, 3 (SAGEConv)"."""
    texts = []
    for name, numbers in sorted(found.items()):
        plural = "s" * (len(numbers) > 1)
        texts.append(f"layer{plural} {', '.join(map(str, sorted(numbers)))} ({name})")
    return ", ".join(texts)


def head_rows(config: TrainConfig) -> str:
    """Where an attention averages what `--head-k` keeps of each head as sparse rows."""
    from jaxgnn.ops._attention import sparse_pair_rule, sparse_rule

    width = config.hidden // config.heads
    rule = sparse_rule if config.model == "gat" else sparse_pair_rule
    shares = {"forward": rule.FORWARD_SHARE, "backward": rule.BACKWARD_SHARE}
    if rule is sparse_pair_rule and config.dtype in ("bfloat16", "float16"):
        shares["backward"] = sparse_pair_rule.BACKWARD_SHARE_16_BITS

    def engine(share: float) -> str:
        dense = sparse_rule.takes_dense_rows(config.head_k, width, config.dtype, share)
        return "dense" if dense else "sparse"

    on_gpu = ", ".join(f"{engine(share)} {way}" for way, share in shares.items())
    return f"{config.head_k} of {width}: sparse on a CPU; on a GPU {on_gpu}"
