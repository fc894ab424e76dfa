"""The steps of the suite `scale`: on one device, a device's share of several, and on all."""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.harness import graphs, plan, timing
from benchmarks.harness.jax_programs import call_seconds, program_bytes, pullback, repeat
from benchmarks.harness.setting import Arrays, Setting
from benchmarks.ours import models, scale
from jaxgnn import spmm
from jaxgnn.data import NodeDataset, Split
from jaxgnn.distributed import Partition, ShardedGraph, partition, shard
from jaxgnn.distributed._choose_partition import choose_partition
from jaxgnn.train import TrainConfig
from jaxgnn.train import plan as plan_devices

# LLVM's part alone: the collectives stay what they are.
_UNOPTIMIZED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
_REPEATS = 8


class Piece(NamedTuple):
    """Something that a step does several times, timed by itself.

    Attributes:
        function: of rows and a graph.
        graph: of a part.
        rows: their shape and dtype.
        times: how often a step does so.
        sent: bytes that travel each time.
    """

    function: Any
    graph: Any
    rows: jax.ShapeDtypeStruct
    times: int
    sent: float = 0.0

    def both_ways_ms(self, device: str) -> list[float]:
        """Of the function, and of its gradient where there is one.

        Several follow each other in one program: in a step no call waits for the host, either.
        """
        x = jnp.ones(self.rows.shape, self.rows.dtype)
        runs = [(self.function, x)]
        if jnp.issubdtype(x.dtype, jnp.floating):
            out = jax.eval_shape(self.function, x, self.graph)
            back = pullback(self.function, lambda _: jnp.zeros(x.shape, x.dtype))
            runs.append((back, jnp.ones(out.shape, out.dtype)))
        found = []
        for function, operand in runs:
            program = jax.jit(repeat(function, _REPEATS)).lower(operand, self.graph).compile()
            call = functools.partial(program, operand, self.graph)
            seconds = functools.partial(call_seconds, call, device=device)
            found.append(timing.measure(seconds, 3, batch_seconds=0.01).ms / _REPEATS)
        return found


@dataclasses.dataclass
class Share:
    """A step, prepared.

    Attributes:
        step: compiled for one device.
        arguments: of parts of different work, by number.
        state: what the step starts from.
        whole: the step that is not compiled, and the graph over all devices.
        packing: what packs rows, and puts those that arrive where the aggregation reads them.
        meanwhile: what is aggregated while rows travel.
        sent: `scale.sent_bytes` of the program of all devices.
        formula_bytes: what the exchange should send, padding included.
        padding: that, by what is needed.
        dense_bytes: what it would send of dense rows; of a step without MaxK the same.
    """

    step: Any
    arguments: list[tuple[Any, ...]]
    state: Any
    whole: tuple[Any, ShardedGraph] | None = None
    packing: list[Piece] = dataclasses.field(default_factory=list)
    meanwhile: list[Piece] = dataclasses.field(default_factory=list)
    sent: dict[str, Any] = dataclasses.field(default_factory=dict)
    formula_bytes: float = 0.0
    padding: float = 1.0
    dense_bytes: float = 1.0

    @property
    def parts(self) -> int:
        return len(self.arguments)

    def seconds(self, part: int, count: int, device: str) -> float:
        """The time of so many steps of a part."""
        return step_seconds(self.step, self.state, self.arguments[part], count, device)

    def peak_bytes(self) -> int | None:
        """Of each part, as XLA accounts for it."""
        return program_bytes(self.step)

    def packing_ms(self, device: str) -> float:
        """Packing and unpacking of a step, each kind timed by itself, forward and backward."""
        return sum(piece.times * sum(piece.both_ways_ms(device)) for piece in self.packing)

    def hidden_ms(self, device: str, bandwidth: float) -> float:
        """The exchange that owned edges, timed by themselves, are aggregated meanwhile."""
        hidden = 0.0
        for piece in self.meanwhile:
            exchange = 1e3 * piece.sent / bandwidth
            hidden += piece.times * sum(min(ms, exchange) for ms in piece.both_ways_ms(device))
        return hidden

    def measured_ms(self, device: str) -> float | None:
        """The step on all devices, where there are as many."""
        if self.whole is None or len(jax.devices()) < self.whole[1].parts:
            return None
        state, arguments = self.on_all_devices()
        seconds = functools.partial(step_seconds, self.whole[0], state, arguments, device=device)
        return timing.measure(seconds, 10, batch_seconds=0.1).ms

    def on_all_devices(self) -> tuple[Any, tuple[Any, ...]]:
        """The state, and what the step of all devices takes besides."""
        assert self.whole is not None, "a step of one device"
        _, sharded = self.whole
        mesh = scale.mesh_of(jax.devices()[: sharded.parts])

        def put(leaf: Any) -> Any:
            shards = sorted(leaf.addressable_shards, key=lambda own: own.device.id)
            pairs = zip(shards, mesh.devices.flat, strict=True)
            data = [jax.device_put(np.asarray(own.data), there) for own, there in pairs]
            sharding = NamedSharding(mesh, leaf.sharding.spec)
            return jax.make_array_from_single_device_arrays(leaf.shape, sharding, data)

        graph = dataclasses.replace(jax.tree.map(put, sharded), mesh=mesh)
        _, x, labels, _, key = self.arguments[0]
        rows = -(-graph.num_senders // x.shape[0])
        nodes = NamedSharding(mesh, PartitionSpec(scale.AXIS))
        alone = NamedSharding(mesh, PartitionSpec())

        def tiled(values: Any) -> Any:
            repeated = np.concatenate([np.asarray(values)] * rows)[: graph.num_senders]
            return jax.device_put(repeated, nodes)

        state = jax.device_put(self.state, alone)
        return state, (graph, tiled(x), tiled(labels), graph.node_mask, jax.device_put(key, alone))


def step_seconds(
    step: Any, state: Any, arguments: tuple[Any, ...], count: int, device: str
) -> float:
    current = [jax.tree.map(jnp.copy, state)]  # the step takes its state's buffers

    def call() -> Any:
        current[0], loss = step(current[0], *arguments)
        return loss

    jax.block_until_ready(current)
    return call_seconds(call, count, device)


class Steps:
    """The steps of one graph, with what they share: graphs, partitions and parts on the device.

    Args:
        folder: of the stored graph.
        windows: whether a step with MaxK is among them.
        tiles: whether one over tiles is.
    """

    def __init__(self, folder: Path, windows: bool, tiles: bool = False):
        stored = graphs.load(folder)
        with jax.default_device(jax.devices("cpu")[0]):
            # One graph for all steps: the order of the rows is ReLU's, the windows are MaxK's.
            graph = stored.to_graph().with_row_schedule()
            self._hosts = {"rows": graph}
            if windows:
                self._hosts["windows"] = graph.with_windows()
            if tiles:
                self._hosts["tiles"] = graph.with_tiles()
        # An array that stands twice stays one.
        own = {id(leaf): leaf for leaf in jax.tree.leaves(self._hosts)}
        there = {key: jax.device_put(leaf, jax.devices()[0]) for key, leaf in own.items()}
        self._graphs = jax.tree.map(lambda leaf: there[id(leaf)], self._hosts)
        self.name, self.num_nodes, self.num_edges = (
            stored.facts["name"],
            stored.num_nodes,
            stored.num_edges,
        )
        self._split = functools.cache(self._partition)
        self._sharded = functools.cache(self._shard)
        self._parts = functools.cache(self._device_parts)
        self._compiler = concurrent.futures.ThreadPoolExecutor(1)

    def planned_ms(
        self, setting: Setting, widths: list[int], counts: tuple[int, ...], layouts: tuple[str, ...]
    ) -> dict[str, float]:
        """What `jaxgnn plan` says of the same step, by layout and number of devices."""
        rng = np.random.default_rng(5)
        engine = "rows" if setting.k is None else "windows"  # `plan` makes tiles itself
        everyone, nobody = (np.full(self.num_nodes, known) for known in (True, False))
        dataset = NodeDataset(
            self.name,
            self._graphs[engine],
            rng.random((self.num_nodes, widths[0]), np.float32),
            rng.integers(0, widths[-1], self.num_nodes).astype(np.int32),
            widths[-1],
            {"all": Split(everyone, nobody, nobody)},
        )
        options: dict[str, Any] = {"layers": len(widths) - 1}
        if setting.input_layer:
            options = {"layers": len(widths) - 3, "input_layer": True, "jumping": "last"}
        if setting.k is not None:
            options |= {"activation": "maxk", "k": setting.k}
        options |= {"hidden": widths[1], "norm": "layer", "dropout": 0.5, "dtype": setting.dtype}
        config = TrainConfig(self.name, model="sage", **options)
        partitions = [self._split(count, engine) for count in counts] if "rows" in layouts else []
        plans = plan_devices(
            config, counts, dataset=dataset, layouts=layouts, partitions=partitions
        )
        return {f"{each.layout} {each.devices}": 1e3 * each.step_seconds for each in plans}

    def _partition(self, count: int, engine: str) -> Partition:
        """By stream, or for MaxK the one that `shard` chooses. The slowest part sets the time, and
        on a graph of many edges a close balance needs no more halo; tiny graphs cannot be balanced
        as closely."""
        if engine == "windows":
            return choose_partition(self._hosts[engine], count)
        for balance in (1.01, 1.05, 1.2, 2.0):
            try:
                return partition(self._hosts["rows"], count, edge_balance=balance)
            except ValueError:
                continue
        raise RuntimeError(f"no partition into {count} parts")

    def _shard(self, layout: str, count: int, engine: str) -> ShardedGraph:
        """Over simulated devices; where overlap is chosen as the models need it."""
        graph, mesh = self._hosts[engine], scale.mesh_of(jax.devices("cpu")[:count])
        if layout == "features":
            return shard(graph, mesh, features=scale.AXIS)
        split = self._split(count, engine)
        return shard(graph, mesh, rows=scale.AXIS, partition=split).without_joint_graph()

    def _device_parts(self, layout: str, count: int, engine: str) -> list[Any]:
        sharded, device = self._sharded(layout, count, engine), jax.devices()[0]
        if layout == "rows":
            return [scale.part_by_rows(sharded, part, device) for part in range(count)]
        whole = jax.tree.map(
            lambda leaf: jax.device_put(np.asarray(leaf.addressable_shards[0].data), device),
            sharded.graph,
        )
        return [scale.ShareOfColumns.of(whole, count, self.num_nodes)]

    def prepare(
        self,
        setting: Setting,
        widths: list[int],
        features: Arrays,
        layout: str,
        count: int,
        *,
        sent: bool = True,
    ) -> Share:
        """A step on one device, or the shares of several; `sent`: with what a device sends, which
        takes the compilation of the program of all."""
        parameters = models.initial_parameters(setting, widths)
        step, state = training_step(setting, widths, parameters, self.num_nodes)
        key = jax.random.key(0)
        x = features["x"].astype(jnp.dtype(setting.dtype))
        labels = features["labels"]
        engine = _engine(setting)
        if layout == "one":
            graph = self._graphs[engine]
            mask = jnp.ones(self.num_nodes, bool)
            arguments = (graph, jnp.asarray(x), jnp.asarray(labels), mask, key)
            return Share(step.lower(state, *arguments).compile(), [arguments], state)
        sharded = self._sharded(layout, count, engine)
        # That of all devices is compiled for the CPU meanwhile, and never run.
        compiling = None
        if sent:
            lowered = _lowered(step, state, sharded, x, labels, key)
            compiling = self._compiler.submit(lowered.compile, _UNOPTIMIZED)
        device = jax.devices()[0]
        own = [
            jax.device_put(
                np.resize(values, (sharded.num_senders // count, *values.shape[1:])), device
            )
            for values in (x, labels)
        ]
        parts = self._parts(layout, count, engine)
        arguments = [(part, *own, part.node_mask, key) for part in parts]
        itemsize = jnp.dtype(setting.dtype).itemsize
        aggregated = aggregated_widths(setting, widths)
        formula, needed = _formula(sharded, setting.k, itemsize, aggregated)
        return Share(
            step.lower(state, *arguments[0]).compile(),
            arguments,
            state,
            (step, sharded),
            _packing(sharded, parts[0], own[0].shape[0], setting, aggregated),
            _meanwhile(sharded, parts[0], own[0].shape[0], setting, aggregated),
            scale.sent_bytes(compiling.result(), count, itemsize) if compiling else {},
            formula_bytes=formula,
            padding=formula / needed if needed else 1.0,
            dense_bytes=_formula(sharded, None, itemsize, aggregated)[0],
        )


def _engine(setting: Setting) -> str:
    """What the graph of a step has beside its rows: `"windows"`, `"tiles"`, or `"rows"` alone."""
    if setting.impl == plan.ESTIMATED:
        return "tiles"
    return "rows" if setting.k is None else "windows"


def _packing(
    sharded: ShardedGraph, part: Any, rows: int, setting: Setting, widths: tuple[int, ...]
) -> list[Piece]:
    """`Share.packing`."""
    columns: Any = scale.pack_columns
    if sharded.layout == "features":
        graph = None
        packs = [(functools.partial(_turned, sharded.parts), setting.dtype)]
    elif sharded.sends is None:
        graph, columns = None, functools.partial(scale.repeat_rows, sharded.parts)
        packs = [(columns, setting.dtype)]
    else:
        graph = jax.tree.map(lambda leaf: leaf[0], part.sends)
        # With overlap the halo has a graph of its own.
        pack = scale.pack_halo if sharded.graph is None else scale.pack_rows
        packs = [(pack, setting.dtype)]
    times = collections.Counter(widths)
    if setting.k is not None:
        packs.append((columns, "uint8"))
        times = collections.Counter({setting.k: len(widths)})
    return [
        Piece(function, graph, jax.ShapeDtypeStruct((rows, width), dtype), number)
        for function, dtype in packs
        for width, number in times.items()
    ]


def _meanwhile(
    sharded: ShardedGraph, part: Any, rows: int, setting: Setting, widths: tuple[int, ...]
) -> list[Piece]:
    """`Share.meanwhile`."""
    if sharded.kinds is None:
        return []
    owned = jax.tree.map(lambda leaf: leaf[0], part.kinds.owned)
    dtype = jnp.dtype(setting.dtype)
    sent = sharded.pair_rows * (sharded.parts - 1) * dtype.itemsize
    return [
        Piece(_aggregated, owned, jax.ShapeDtypeStruct((rows, width), dtype), times, sent * width)
        for width, times in collections.Counter(widths).items()
    ]


def _aggregated(x: Any, graph: Any) -> Any:
    return spmm(graph, x)


def _turned(count: int, x: Any, _: Any) -> Any:
    return scale.to_rows(scale.to_columns(x, count), count)


def aggregated_widths(setting: Setting, widths: list[int]) -> tuple[int, ...]:
    """Of the rows that the layers aggregate: the narrower of their sides, or MaxK's."""
    pairs = itertools.pairwise(widths[1:-1] if setting.input_layer else widths)
    return tuple(before if setting.k is not None else min(before, after) for before, after in pairs)


def _formula(
    sharded: ShardedGraph, k: int | None, itemsize: int, widths: tuple[int, ...]
) -> tuple[float, float]:
    """Bytes that a device sends in a step, with padding and as needed: each layer both ways."""
    parts, nodes = sharded.parts, sharded.num_nodes
    padded = needed = 0.0
    for width in widths:
        if sharded.layout == "features":
            columns = -(-width // parts) * parts
            share = 2 * 2 * itemsize * (parts - 1) / parts**2
            padded += share * sharded.num_senders * columns
            needed += share * nodes * width
            continue
        # MaxK: values and a byte for each one's column forward, values back.
        row = 2 * width * itemsize if k is None else k * (2 * itemsize + (1 if width <= 256 else 2))
        padded += sharded.pair_rows * (parts - 1) * row
        needed += sharded.halo / parts * row
    return padded, needed


def training_step(setting: Setting, widths: list[int], parameters: Arrays, num_nodes: int) -> Any:
    """The jitted step, and the state it starts from."""
    apply = models.model_of(setting, widths)
    optimizer = optax.adam(1e-3)

    def loss_of(params: Any, graph: Any, x: Any, labels: Any, mask: Any, key: Any) -> Any:
        logits = apply(params, graph, x, key).astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.sum(jnp.where(mask, losses, 0)) / num_nodes

    def step(state: Any, graph: Any, x: Any, labels: Any, mask: Any, key: Any) -> Any:
        params, moments, done = state
        key = jax.random.fold_in(key, done)
        loss, gradients = jax.value_and_grad(loss_of)(params, graph, x, labels, mask, key)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments, done + 1), loss

    params = jax.tree.map(jnp.asarray, parameters)
    return jax.jit(step, donate_argnums=0), (params, optimizer.init(params), jnp.int32(0))


def _lowered(step: Any, state: Any, graph: ShardedGraph, x: Any, labels: Any, key: Any) -> Any:
    """The program of all devices, for simulated ones of the CPU: what it sends is the same."""
    alone = NamedSharding(graph.mesh, PartitionSpec())
    nodes = NamedSharding(graph.mesh, PartitionSpec(scale.AXIS))

    def shape_of(leaf: Any, sharding: Any = None) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding or leaf.sharding)

    def places(values: Any) -> Any:
        shape = (graph.num_senders, *values.shape[1:])
        return jax.ShapeDtypeStruct(shape, values.dtype, sharding=nodes)

    replicated = functools.partial(shape_of, sharding=alone)
    arguments = (
        jax.tree.map(shape_of, graph),
        places(x),
        places(labels),
        shape_of(graph.node_mask),
        replicated(key),
    )
    return step.lower(jax.tree.map(replicated, state), *arguments)
