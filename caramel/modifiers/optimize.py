"""Optimize: TensorFlow's graph optimizers, run once on what the steps of all workers have in common.

TensorFlow itself would optimise the graph of all workers, when it first runs a step: N times the same work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from caramel.errors import InvariantError, in_one_line
from caramel.graph import ops
from caramel.graph.devices import Device
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef, copied, data_texts, format_input, node_of, parse_input, tensor_name
from caramel.graph.nodes import colocated, dtype_attribute, node, shape_attribute, variable
from caramel.graph.shapes import SHAPES_ATTRIBUTE, Shape, sizes
from caramel.graph.verify import verify_structure
from caramel.modifiers.emission import Emission, Purpose, Role, own_name, replica_name
from caramel.signature import Signature
from caramel.util.gc_pause import paused_gc

_REPLICA, _OWN, _NEW, _OUTSIDE = "replica/", "own/", "new/", "outside/"
"""Beginnings of the names of a step that stands for those of all workers."""

_HERE = "/job:localhost/replica:0/task:0/device:CPU:0"
"""The device of a step that stands for those of all workers."""

_MOST_LEFT = 0.2
"""Part of a worker's nodes that may stay as they are."""


@paused_gc()
def optimize(emission: Emission, signature: Signature) -> Emission | None:
    """Optimise the nodes that the steps of all workers have in common, as TensorFlow would before the first run.

    What workers do differently, the transfers between them and what is fed stay as they are; what reads these is
    optimised without knowing their values.

    Args:
        emission: a finished emission.
        signature: its signature.

    Returns:
        The emission with fewer nodes, which TensorFlow is to run as they are; None where workers have so much of their
        own that TensorFlow should optimise all of it.

    Raises:
        InvariantError: the optimised graph is not what it should be.
    """
    common = _Common(emission, signature)
    if not common.is_most:
        return None
    optimized = common.put_back(_optimized(common.graph_def(), common.kept))
    verify_structure(optimized.graph, "optimize", emission.graph)
    for runs in (signature.step, signature.flush):
        before, after = (_writes(e.graph, runs) for e in (emission, optimized))
        if before != after:
            raise InvariantError(f"after optimize: other ops write when {runs[0]!r} runs: {sorted(before ^ after)[:3]}")
    return optimized


def is_optimizable(emission: Emission) -> bool:
    """Whether `optimize` does what TensorFlow would do: nothing asks for a GPU, and nothing is on servers only."""
    if emission.plan.servers is not None:
        return False
    devices = {node.device for node in emission.graph}
    return all(Device.parse(text).type in (None, "CPU") for text in devices)


def _optimized(graph_def: Any, kept: Collection[str]) -> Any:
    """What TensorFlow's optimizers make of a graph in which some nodes must keep their names and values."""
    from tensorflow.core.protobuf import config_pb2, device_properties_pb2, meta_graph_pb2, rewriter_config_pb2
    from tensorflow.python.grappler import cluster, tf_optimizer

    meta_graph = meta_graph_pb2.MetaGraphDef()
    meta_graph.graph_def.CopyFrom(graph_def)
    meta_graph.collection_def["train_op"].node_list.value.extend(sorted(kept))
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    # Loops and branches stay ops with functions, which TensorFlow takes apart when the graph runs: as nodes, a loop is
    # a cycle, and has a name that may come once only.
    config.graph_options.rewrite_options.function_optimization = rewriter_config_pb2.RewriterConfig.OFF
    # A machine that is only described: to look at the real one makes the process's threads, with options of its own.
    properties = device_properties_pb2.DeviceProperties(type="CPU", num_cores=1)
    machine = cluster.Cluster(devices=[device_properties_pb2.NamedDevice(name=_HERE, properties=properties)])
    try:
        return tf_optimizer.OptimizeGraph(config, meta_graph, verbose=False, cluster=machine)
    except Exception as error:  # it is no public function, and promises nothing
        raise InvariantError(f"after optimize: {in_one_line(error)}") from error
    finally:
        machine.Shutdown()


def _writes(graph: Graph, roots: Sequence[str]) -> set[str]:
    """The ops that write variables when some ops run."""
    return {name for name in graph.ancestors(roots) if ops.is_variable_write(graph[name])}


class _Common:
    """The nodes that the steps of all workers have in common, under names that are the same for all of them.

    Args:
        emission: a finished emission.
        signature: its signature.
    """

    def __init__(self, emission: Emission, signature: Signature) -> None:
        self._emission, self._graph = emission, emission.graph
        self._library = Library(emission.graph)
        self._ranks = range(len(emission.plan.devices))
        self._results = [*signature.step, *signature.losses, *(t for _, tensors in signature.outputs for t in tensors)]
        fed = {name for feed in signature.feeds for name in feed.placeholders}
        self._fed = {node_of(name) for name in (*fed, *signature.weights)}
        by_rank = self._nodes_by_rank()
        names = [name for name in by_rank[0] if _is_everywhere(name, by_rank)]
        self._own = [{name: nodes[name] for name in names} for nodes in by_rank]  # of each worker, by shared names
        self._shared = [{node.name: name for name, node in own.items()} for own in self._own]  # the other way round
        self._left = [node for name, node in by_rank[0].items() if name not in self._own[0]]
        apart = {update.gradient for update in emission.plan.sharded}  # whose updates have a part
        self._gradient_shapes = {
            g.tensor: g.shape for g in emission.model.gradients if not g.is_sparse and g.name not in apart
        }
        self._outside: dict[tuple[str, ...], str] = {}  # stand-in for what each worker has elsewhere, by its inputs
        self._stand_ins: list[NodeDef] = []

    def _nodes_by_rank(self) -> list[dict[str, NodeDef]]:
        """For each worker the nodes of its step, in the order of the graph, by the names that all workers share."""
        needed = self._graph.ancestors(map(node_of, self._results), stop=self._fed.__contains__)
        by_rank: list[dict[str, NodeDef]] = [{} for _ in self._ranks]
        for name, each in self._graph.nodes.items():
            role = self._emission.roles[name]
            if name in needed and role.purpose is Purpose.REPLICA and name not in self._fed:
                shared = _shared_name(role.rank, name)
                if shared is not None:
                    by_rank[role.rank][shared] = each
        return by_rank

    @property
    def is_most(self) -> bool:
        """Whether it is all of a step but some ops without functions, which would stay as they are."""
        calls = any(map(self._calls_functions, self._left))
        return not calls and len(self._left) <= _MOST_LEFT * (len(self._left) + len(self._own[0]))

    def graph_def(self) -> Any:
        """The GraphDef of the nodes, and of stand-ins for what they read elsewhere."""
        nodes = []
        for name, first in self._own[0].items():
            inputs = zip(*(own[name].input for own in self._own))
            each = copied(first, [self._read(name, position, texts) for position, texts in enumerate(inputs)])
            each.name = name
            each.attr.pop("_class", None)
            each.attr.pop(SHAPES_ATTRIBUTE, None)
            nodes.append(each)
        graph_def = Graph([*self._stand_ins, *nodes], self._graph.library, self._graph.versions).to_graph_def()
        for each in graph_def.node:
            each.device = _HERE
        return graph_def

    def _read(self, reader: str, position: int, texts: tuple[str, ...]) -> str:
        """An input under the names that all workers share, from the input as each worker has it."""
        parsed = [parse_input(text) for text in texts]
        shared = {(own.get(name), index) for own, (name, index) in zip(self._shared, parsed)}
        name, index = shared.pop()
        if not shared and name is not None:
            return format_input(name, index)
        if texts not in self._outside:
            self._outside[texts] = f"{_OUTSIDE}{len(self._outside)}"
            self._stand_ins += _stand_in(self._outside[texts], *self._type(reader, position, texts[0]))
        return format_input(self._outside[texts], min(index, 0))

    def _type(self, reader: str, position: int, text: str) -> tuple[str, Shape | None]:
        """Element type and shape of what a node reads elsewhere, as far as they are known."""
        producer, index = parse_input(text)
        if index < 0:  # it is only waited for: any value will do
            return "float32", ()
        dtype = ops.dtype_name(ops.output_types(self._graph[producer])[index])
        model, name = self._emission.model, reader.removeprefix(_REPLICA)
        if producer in self._fed or name not in model.graph:
            return dtype, None
        original = model.graph[name]
        if original.op == "Placeholder":  # which reads an element now
            return dtype, sizes(original.attr["shape"].shape)
        texts = original.input
        return dtype, self._gradient_shapes.get(tensor_name(texts[position])) if position < len(texts) else None

    @cached_property
    def kept(self) -> frozenset[str]:
        """The nodes that others read or wait for, or that give results, and the stand-ins."""
        read = {*map(node_of, self._results)}
        for each in self._others:
            read.update(map(node_of, each.input))
            read.update(colocated(each))
        shared = {own[name] for own in self._shared for name in read.intersection(own)}
        return frozenset({*shared, *self._results_of_calls, *self._outside.values()})

    @property
    def _results_of_calls(self) -> Iterator[str]:
        """The nodes that read a result of a branch or loop.

        An effect of a function, such as an assertion, may have nothing but a result that waits for it. Whoever waits
        for the reader of that result must not wait for the call instead: TensorFlow would drop the effect.
        """
        calls = {each.name for each in self._own[0].values() if self._calls_functions(each)}
        for name, each in self._own[0].items():
            if any(node_of(text) in calls for text in data_texts(each)):
                yield name

    def _calls_functions(self, node: NodeDef) -> bool:
        return node.op in self._library or ops.calls_functions(node.op)

    @cached_property
    def _others(self) -> tuple[NodeDef, ...]:
        """The nodes that stay as they are."""
        return tuple(each for name, each in self._graph.nodes.items() if not any(name in own for own in self._shared))

    def put_back(self, graph_def: Any) -> Emission:
        """The emission in which each worker has the nodes of a graph in place of its own.

        Args:
            graph_def: GraphDef that the optimizers made of `graph_def`.

        Raises:
            InvariantError: something is missing.
        """
        missing = self.kept.difference(each.name for each in graph_def.node)
        if missing:
            raise InvariantError(f"after optimize: {sorted(missing)[0]!r} is gone")
        new = [each for each in graph_def.node if not each.name.startswith(_OUTSIDE)]
        for each in new:
            each.attr.pop(SHAPES_ATTRIBUTE, None)
        inputs = [[parse_input(text) for text in each.input] for each in new]
        nodes = [*self._others]
        roles = {each.name: self._emission.roles[each.name] for each in nodes}
        for rank, text in enumerate(self._emission.plan.devices):
            device = str(Device.parse(text))
            names = {each.name: _own_name(rank, each.name) for each in new}
            elsewhere = {name: parse_input(texts[rank]) for texts, name in self._outside.items()}
            own = [
                self._copy(each, rank, device, names[each.name], _own_inputs(read, names, elsewhere))
                for each, read in zip(new, inputs)
            ]
            nodes += own
            roles.update(dict.fromkeys(names.values(), Role(Purpose.REPLICA, rank)))
        library = _with_functions(self._graph.library, graph_def.library)
        return replace(self._emission, graph=Graph(nodes, library, self._graph.versions), roles=roles)

    def _copy(self, shared: NodeDef, rank: int, device: str, name: str, inputs: Sequence[str]) -> NodeDef:
        """A worker's copy of an optimised node."""
        own = copied(shared, inputs)
        own.name, own.device = name, device
        original = self._own[rank].get(shared.name)
        if original is not None:
            own.device = original.device
            if "shared_name" in original.attr:
                own.attr["shared_name"].CopyFrom(original.attr["shared_name"])
        return own


def _own_inputs(
    read: Sequence[tuple[str, int]], names: Mapping[str, str], elsewhere: Mapping[str, tuple[str, int]]
) -> list[str]:
    """A worker's inputs of an optimised node.

    Args:
        read: the inputs under the names that all workers share.
        names: the worker's names of optimised nodes.
        elsewhere: what stand-ins stand for.
    """
    inputs = []
    for name, index in read:
        if name in elsewhere:
            name, own_index = elsewhere[name]
            inputs.append(format_input(name, -1 if index < 0 else own_index))
        else:
            inputs.append(format_input(names[name], index))
    return inputs


def _is_everywhere(name: str, by_rank: Sequence[Mapping[str, NodeDef]]) -> bool:
    """Whether all workers have a node, which differs in nothing but its inputs."""
    return len({_kind(rank, nodes.get(name)) for rank, nodes in enumerate(by_rank)}) == 1


def _shared_name(rank: int, name: str) -> str | None:
    """The name of a worker's node that is the same for all workers; None for other nodes."""
    for start, shared in ((replica_name(rank, ""), _REPLICA), (own_name(rank, ""), _OWN)):
        if name.startswith(start):
            return shared + name.removeprefix(start)
    return None


def _own_name(rank: int, name: str) -> str:
    """A worker's name for a node that all workers have; the inverse of `_shared_name`."""
    if name.startswith(_REPLICA):
        return replica_name(rank, name.removeprefix(_REPLICA))
    return own_name(rank, name.removeprefix(_OWN) if name.startswith(_OWN) else _NEW + name)


def _kind(rank: int, original: NodeDef | None) -> bytes:
    """All of a node but its name, its device, and what it reads."""
    if original is None:
        return b""
    each = copied(original, [("^" if text.startswith("^") else "") for text in original.input])
    each.name = each.device = ""
    each.attr.pop("_class", None)
    if "shared_name" in each.attr:
        each.attr["shared_name"].s = each.attr["shared_name"].s.removeprefix(replica_name(rank, "").encode())
    return each.SerializeToString(deterministic=True)  # type: ignore[no-any-return]


def _stand_in(name: str, dtype: str, shape: Shape | None) -> list[NodeDef]:
    """Nodes for a value of which only type and shape are known: TensorFlow takes what a variable has for unknown."""
    if dtype in ("resource", "variant"):
        attributes = {"dtype": dtype_attribute(dtype), "shape": shape_attribute(())}
        return [node(name, "Placeholder", (), _HERE, **attributes)]
    handle = variable(f"{name}/variable", dtype, (), _HERE, name)
    handle.attr["shape"].CopyFrom(shape_attribute(None if shape is None else [-1 if s is None else s for s in shape]))
    return [handle, node(name, "ReadVariableOp", [handle.name], _HERE, dtype=dtype_attribute(dtype))]


def _may_lose_effects(function: Any, known: Collection[str]) -> bool:
    """Whether effects of calls inside a function have nothing but a result that waits for them.

    See `_Common._results_of_calls`; functions of TensorFlow 2 say themselves which effects they have.
    """
    calls = any(node.op in known or ops.calls_functions(node.op) for node in function.node_def)
    return calls and not function.control_ret


def _with_functions(library: Any, optimized: Any) -> Any:
    """A library with the functions that the optimizers made or changed, and with those that they dropped."""
    if library is None or not library.function:
        return library
    known = {function.signature.name: function for function in library.function}
    as_before = {name for name, function in known.items() if _may_lose_effects(function, known)}
    union = type(library)()
    union.function.extend(f for f in optimized.function if f.signature.name not in as_before)
    names = {function.signature.name for function in union.function}
    union.function.extend(f for f in library.function if f.signature.name not in names)
    union.gradient.extend(optimized.gradient)
    union.gradient.extend(g for g in library.gradient if g not in union.gradient)
    return union
