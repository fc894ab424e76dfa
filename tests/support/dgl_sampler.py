"""DGL's neighbor sampling, for a Python that has DGL: `python dgl_sampler.py TASK.npz RESULT.npz`.

The task is that of `test_parity_neighbors.py`, the result its `Draws` as an archive.
"""

import sys

import dgl
import numpy as np
import torch


def main(task_file, result_file):
    with np.load(task_file) as archive:
        task = dict(archive)
    offsets, senders = (torch.from_numpy(task[n]).long() for n in ("row_offsets", "senders"))
    graph = dgl.graph(("csc", (offsets, senders, [])), num_nodes=len(offsets) - 1)
    graph.edata["weight"] = torch.from_numpy(task["weights"])
    dgl.seed(0)
    sampler = dgl.dataloading.NeighborSampler(task["sizes"][::-1].tolist())
    seeds = torch.from_numpy(task["seeds"]).long()
    result = {"hops": [_hops(sampler.sample(graph, seeds)[2]) for _ in range(task["batches"])]}
    for name in task["kinds"]:
        options = {"replace": "replace" in name, "prob": "weight" if "weighted" in name else None}
        for node in task["nodes"]:
            result[f"{name} {node}"] = [
                dgl.sampling.sample_neighbors(graph, [node], int(task["size"]), **options)
                .edata[dgl.EID]
                .numpy()
                for _ in range(task["times"])
            ]
    np.savez(result_file, **result)


def _hops(blocks):
    """Edges and new nodes of each hop. Each hop draws for the nodes of all earlier ones again,
    unlike here and in PyG: these draws are left out."""
    counts, known = [], 0
    for block in blocks[::-1]:
        senders, receivers = (ends.numpy() for ends in block.edges())
        own = receivers >= known
        known = block.num_dst_nodes()
        counts += [own.sum(), np.unique(senders[own & (senders >= known)]).size]
    return counts


if __name__ == "__main__":
    main(*sys.argv[1:])
