"""Small sets in the layouts of the large ones, as their publishers' tools write them."""

import gzip
import json

import numpy as np
import scipy.sparse


def random_edges(rng, nodes, count):
    """Each pair once, without self-loops."""
    pairs = rng.integers(nodes, size=(3 * count, 2))
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
    return rng.permutation(pairs)[:count]


def symmetric(edges, nodes):
    ones = np.ones(len(edges))
    matrix = scipy.sparse.coo_matrix((ones, edges.T), shape=(nodes, nodes))
    return matrix + matrix.T


def parts(rng, nodes):
    """Node ids by part."""
    order = rng.permutation(nodes)
    return np.split(order, [nodes // 2, 3 * nodes // 4])


def write_graphsaint(folder, *, nodes=40, features=5, classes=3, multilabel=False, seed=0):
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    matrix = symmetric(random_edges(rng, nodes, 3 * nodes), nodes)
    scipy.sparse.save_npz(folder / "adj_full.npz", matrix.tocsr())
    np.save(folder / "feats.npy", rng.normal(size=(nodes, features)))
    labels = rng.integers(classes, size=nodes).tolist()
    if multilabel:
        labels = rng.integers(2, size=(nodes, classes)).tolist()
    entries = {str(i): labels[i] for i in rng.permutation(nodes)}
    (folder / "class_map.json").write_text(json.dumps(entries))
    roles = dict(zip(("tr", "va", "te"), map(np.ndarray.tolist, parts(rng, nodes)), strict=True))
    (folder / "role.json").write_text(json.dumps(roles))
    return folder


def write_ogb_graphs(folder, *, tasks=1, seed=0):
    """Graphs of 0 to 8 nodes; missing targets where there are several."""
    rng = np.random.default_rng(seed)
    sizes = np.array([0, 1, 5, 8, 2, 7, 3, 6])
    counts = np.where(sizes > 1, 2 * sizes, 0)
    edges = [rng.integers(size, size=(count, 2)) for size, count in zip(sizes, counts, strict=True)]
    raw = folder / "raw"
    write_csv(raw / "num-node-list.csv.gz", sizes)
    write_csv(raw / "num-edge-list.csv.gz", counts)
    write_csv(raw / "edge.csv.gz", np.concatenate(edges))
    write_csv(raw / "node-feat.csv.gz", rng.integers(9, size=(sizes.sum(), 3)))
    write_csv(raw / "edge-feat.csv.gz", rng.integers(4, size=(counts.sum(), 2)))
    labels = rng.integers(2, size=(8, tasks)).astype(float)
    if tasks > 1:
        labels[3, 0] = np.nan
    write_csv(raw / "graph-label.csv.gz", labels if tasks > 1 else labels[:, 0].astype(int))
    for name, ids in zip(("train", "valid", "test"), parts(rng, 8), strict=True):
        write_csv(folder / "split" / "scaffold" / f"{name}.csv.gz", ids)
    return folder


def write_ppi(folder, *, nodes=20, features=5, classes=3, directed=True, seed=0):
    """As many nodes in each part, of two graphs; with self-loops and repeated edges."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for part in ("train", "valid", "test"):
        ends = rng.integers(nodes // 2, size=(2, 4 * nodes)) + nodes // 2 * rng.integers(
            2, size=4 * nodes
        )
        links = [{"source": int(a), "target": int(b)} for a, b in ends.T]
        entries = [{"test": False, "id": i, "val": False} for i in range(nodes)]
        graph = {"directed": directed, "graph": {}, "nodes": entries, "links": links}
        (folder / f"{part}_graph.json").write_text(json.dumps(graph))
        np.save(folder / f"{part}_feats.npy", rng.normal(size=(nodes, features)))
        np.save(folder / f"{part}_labels.npy", rng.integers(2, size=(nodes, classes)))
        np.save(folder / f"{part}_graph_id.npy", np.repeat([1, 2], nodes // 2))
    return folder


def write_reddit(folder, *, nodes=40, features=5, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    matrix = symmetric(random_edges(rng, nodes, 3 * nodes), nodes)
    scipy.sparse.save_npz(folder / "reddit_graph.npz", matrix.tocoo())
    roles = np.zeros(nodes, int)
    for role, ids in enumerate(parts(rng, nodes), start=1):
        roles[ids] = role
    np.savez(
        folder / "reddit_data.npz",
        feature=rng.normal(size=(nodes, features)),
        label=rng.integers(classes, size=nodes),
        node_ids=np.arange(nodes),
        node_types=roles,
    )
    return folder


def write_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(",".join(str(value) for value in np.atleast_1d(row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def write_ogb(folder, *, nodes=40, features=5, classes=3, tasks=1, seed=0):
    """With `features` 0 as ogbn-proteins: features of the edges, many tasks."""
    rng = np.random.default_rng(seed)
    edges = random_edges(rng, nodes, 3 * nodes)
    raw = folder / "raw"
    write_csv(raw / "num-node-list.csv.gz", [nodes])
    write_csv(raw / "num-edge-list.csv.gz", [len(edges)])
    write_csv(raw / "edge.csv.gz", edges)
    if features:
        write_csv(raw / "node-feat.csv.gz", rng.normal(size=(nodes, features)).round(3))
    else:
        write_csv(raw / "edge-feat.csv.gz", rng.random((len(edges), 8)).round(3))
    labels = (
        rng.integers(2, size=(nodes, tasks)) if tasks > 1 else rng.integers(classes, size=nodes)
    )
    write_csv(raw / "node-label.csv.gz", labels)
    for name, ids in zip(("train", "valid", "test"), parts(rng, nodes), strict=True):
        write_csv(folder / "split" / "some_rule" / f"{name}.csv.gz", ids)
    return folder


def write_ogb_arrays(folder, write=write_ogb, **options):
    """The set that `write` writes as text, in the layout of `data.npz`."""
    raw = write(folder, **options) / "raw"
    parts = {path.name.removesuffix(".csv.gz"): path for path in sorted(raw.iterdir())}
    tables = {name: np.loadtxt(path, delimiter=",", ndmin=2) for name, path in parts.items()}
    arrays = {
        "edge_index": tables.pop("edge").T.astype(np.int64),
        "num_nodes_list": tables.pop("num-node-list")[:, 0].astype(np.int64),
        "num_edges_list": tables.pop("num-edge-list")[:, 0].astype(np.int64),
    }
    for name, values in tables.items():
        key = name.replace("-", "_")
        if name.endswith("label"):
            np.savez_compressed(raw / f"{name}.npz", **{key: values.astype(np.float32)})
        else:
            arrays[key] = values.astype(np.float32)
    np.savez_compressed(raw / "data.npz", **arrays, node_year=np.zeros(1))
    for path in parts.values():
        path.unlink()
    return folder
