"""Which ops of a dataset workers in other processes can run, and whether they see the same elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from caramel.data.serialise import Serialised
from caramel.errors import UnsupportedError
from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef, copied, node_of, parse_input
from caramel.graph.nodes import constant

_FILLING_OPS = frozenset({"AssignVariableOp", "LookupTableImportV2"})
"""Ops that give a copy of a variable or lookup table what is in the original."""

_OWN_RESOURCES = {"seed_generator": "DummySeedGenerator", "cache": "DummyMemoryCache"}
"""Op that makes a resource of the dataset's own, by the name of the input that takes the resource."""

_VALUE_DEPENDENT_OPS = frozenset(
    {
        "FilterDataset",
        "ParallelFilterDataset",
        "TakeWhileDataset",
        "GroupByWindowDataset",
        "GroupByReducerDataset",
        "UniqueDataset",
        "DirectedInterleaveDataset",
    }
)
"""Dataset ops for which the values of elements decide which elements there are."""

_NESTING_OPS = frozenset(
    {
        "FlatMapDataset",
        "InterleaveDataset",
        "ParallelInterleaveDataset",
        "ParallelInterleaveDatasetV2",
        "ParallelInterleaveDatasetV3",
        "ParallelInterleaveDatasetV4",
        "LegacyParallelInterleaveDatasetV2",
    }
)
"""Dataset ops whose function makes a dataset of each element."""

_PARALLEL_PREFIXES = ("Parallel", "MapAndBatch", "LegacyParallel")
"""Prefixes of dataset ops that call their function for several elements at the same time."""

_CSV_PREFIXES = ("CSVDataset",)
"""Prefixes of dataset ops whose restored iterators go on at another place than where their state was written.

With a header TensorFlow 2.21 counts bytes from after it, and goes on counting from the start of the file.
"""

_RACING_PREFIXES = ("ChooseFastest", "DataServiceDataset")
"""Prefixes of dataset ops that give the element that is ready first."""


def refuse_foreign(serialised: Serialised) -> None:
    """Refuse, by name, what cannot run in another process.

    Raises:
        UnsupportedError: for the first such op, with what to do instead.
    """
    handles, copies = resource_makers(serialised.graph), copied_resources(serialised.graph)
    for node, where in _everywhere(serialised.graph):
        if node.op in ops.PYTHON_OPS:
            raise UnsupportedError(
                f"op {node.name!r} ({node.op}){where} of the dataset runs Python (from_generator, py_function or "
                "numpy_function), which the workers' processes do not have. Write it with TensorFlow's ops, or feed "
                "the batches as arrays instead (Session.run(batches))"
            )
        if node.op in _OWN_RESOURCES.values() or node.name in handles or node.name in copies:
            continue
        makes = node.op == "Const" and node.attr["dtype"].type == ops.DT_RESOURCE
        if makes or _makes_resource(node):
            raise UnsupportedError(
                f"op {node.name!r} ({node.op}){where} of the dataset holds something of this process that cannot be "
                "sent to the workers (a resource other than a lookup table, a variable or a generator). Feed the "
                "batches as arrays instead (Session.run(batches))"
            )


def copied_resources(graph: Graph) -> Mapping[str, str]:
    """Op that fills it, by the name of each node that makes a copy of a lookup table or variable of this process.

    TensorFlow writes what is in them at present, as far as the dataset was made eagerly.
    """
    filled = {node_of(node.input[0]): node.name for node in graph if node.op in _FILLING_OPS}
    return {node.name: filled[node.name] for node in graph if _makes_resource(node) and node.name in filled}


def _makes_resource(node: NodeDef) -> bool:
    definition = ops.op_def(node.op)
    return bool(
        definition.is_stateful
        and any(a.type == ops.DT_RESOURCE or a.is_ref for a in definition.output_arg)
        and not definition.input_arg
    )


def _everywhere(graph: Graph) -> Iterator[tuple[NodeDef, str]]:
    """Every node that is not a call of a function by name, with the function that it is in."""
    bodies = {f.signature.name for f in graph.library.function}
    for node in graph:
        yield node, ""
    for function in graph.library.function:
        for node in function.node_def:
            if node.op not in bodies:
                yield node, f" in function {function.signature.name!r}"


def resource_makers(nodes: Iterable[NodeDef]) -> Mapping[str, str]:
    """Op that makes a new resource, by the name of the constant that is a handle of a dataset's own resource."""
    all_nodes = list(nodes)
    handles = {n.name for n in all_nodes if n.op == "Const" and n.attr["dtype"].type == ops.DT_RESOURCE}
    maker_of_handle: dict[str, str] = {}
    foreign_handles: set[str] = set()
    for node in all_nodes:
        for name, text in _named_inputs(node):
            if text in handles:
                if name in _OWN_RESOURCES:
                    maker_of_handle[text] = _OWN_RESOURCES[name]
                else:
                    foreign_handles.add(text)
    return {name: op for name, op in maker_of_handle.items() if name not in foreign_handles}


def _named_inputs(node: NodeDef) -> Iterator[tuple[str, str]]:
    """(argument name, producer) of each data input of a node of a graph."""
    for (name, _), text in zip(ops.input_types(node), node.input):
        yield name, node_of(text)


def unset_seeds(graph: Graph, node: NodeDef) -> tuple[int, int] | None:
    """Positions of the inputs ``seed`` and ``seed2`` if both are the constant 0, so that seeds are left to chance."""
    positions = _seed_inputs(node)
    if positions is None:
        return None
    producers = [graph[parse_input(node.input[p])[0]] for p in positions]
    return positions if all(_is_zero(p) for p in producers) else None


def without_seeds(graph: Graph) -> Graph:
    """The graph with shuffles whose seeds are left open."""
    zero = "unset_seed"
    changed = {}
    for node in graph:
        positions = _seed_inputs(node)
        if positions is not None:
            changed[node.name] = copied(node)
            for position in positions:
                changed[node.name].input[position] = zero
    return graph.replaced(changed, [constant(zero, 0, "int64", "")])


def _seed_inputs(node: NodeDef) -> tuple[int, int] | None:
    if not {"seed", "seed2"} <= {a.name for a in ops.op_def(node.op).input_arg}:
        return None
    names = [name for name, _ in ops.input_types(node)]
    return names.index("seed"), names.index("seed2")


def _is_zero(node: NodeDef) -> bool:
    tensor = node.attr["value"].tensor if node.op == "Const" else None
    return tensor is not None and not any(tensor.int64_val) and not any(tensor.tensor_content)


def draws(serialised: Serialised) -> str:
    """How often one pass over a dataset draws seeds: ``"never"``, ``"once"`` or ``"often"``.

    A dataset that is iterated again and again draws another seed each time. ``"often"`` is all but once, when
    the pass begins: within the pass (it is repeated there, or comes late; a shuffle of a shuffle begins the latter
    with its first element), or in the first pass only (its elements are cached).
    """
    graph = serialised.graph
    drawing = _drawing(graph)
    if not drawing:
        return "never"
    if _draws_late(graph, drawing):
        return "often"
    for node in graph:
        begins_otherwise = [node.name] if "Repeat" in node.op or node.op.startswith("Cache") else []
        if node.op.startswith("Shuffle"):
            begins_otherwise += [node_of(text) for text in node.input]
        if drawing & graph.ancestors(begins_otherwise):
            return "often"
    return "once"


def draws_late(serialised: Serialised) -> bool:
    """Whether a seed may be drawn later than others, so that the state of an iterator may lack it."""
    return _draws_late(serialised.graph, _drawing(serialised.graph))


def _drawing(graph: Graph) -> set[str]:
    return {n.name for n in graph if _seed_inputs(n) is not None}


def _draws_late(graph: Graph, drawing: set[str]) -> bool:
    return any(drawing & graph.ancestors([later]) for node in graph for later in _iterated_later(node))


def _iterated_later(node: NodeDef) -> list[str]:
    """Producers of the datasets that a dataset begins to iterate over some time after itself."""
    if node.op == "ConcatenateDataset":
        return [node_of(node.input[1])]
    return [producer for name, producer in _named_inputs(node) if name.endswith("other_arguments")]


def random_op(serialised: Serialised) -> str | None:
    """The first random op whose numbers differ from process to process, and why, for messages."""
    for node in serialised.graph:
        for function, inner, why in _by_chance(serialised.library, node):
            return f"op {inner.name!r} ({inner.op}) in function {function!r} {why}"
    return None


def has_seeded_random(serialised: Serialised) -> bool:
    """Whether a random op draws the same numbers in every process: one after the other, from its seed on."""
    library = serialised.library
    for node in serialised.graph:
        chance = {(function, inner.name) for function, inner, _ in _by_chance(library, node)}
        if any((function, inner.name) not in chance for function, inner in _random_ops(library, node)):
            return True
    return False


def _random_ops(library: Library, node: NodeDef) -> Iterator[tuple[str, NodeDef]]:
    """(function, op) for the ops inside a dataset op that draw from a hidden generator."""
    for function, inner in library.inner_nodes(node):
        if inner.op not in library and ops.is_seeded_random(inner):
            yield function, inner


def _by_chance(library: Library, node: NodeDef) -> Iterator[tuple[str, NodeDef, str]]:
    """(function, op, why) for the random ops inside a dataset op whose numbers are left to chance."""
    for function, inner in _random_ops(library, node):
        if inner.attr["seed"].i == 0 and inner.attr["seed2"].i == 0:
            yield function, inner, "has no seed"
    callers = [node, *(inner for _, inner in library.inner_nodes(node))]
    for caller in callers:
        if caller.op.startswith(_PARALLEL_PREFIXES):
            for function, inner in _random_ops(library, caller):
                yield function, inner, "is called in any order (num_parallel_calls)"


def why_different(serialised: Serialised) -> str | None:
    """Why two processes that run the dataset may see other elements, in another order; None if they do not.

    Values that random ops compute by chance may differ, as long as they decide nothing.
    """
    graph, library = serialised.graph, serialised.library
    random = {n.name for n in graph if any(_by_chance(library, n))}
    for node in graph:
        if node.op in _VALUE_DEPENDENT_OPS and random & graph.ancestors([node.name]):
            return _decides(node)
        if node.name in random and (node.op in _NESTING_OPS or _decides_inside(library, node)):
            return _decides(node)
        if node.op.startswith(_RACING_PREFIXES):
            return f"{node.name!r} ({node.op}) gives what is ready first"
        if node.op in ("CacheDataset", "CacheDatasetV2") and not _is_empty_text(graph[node_of(node.input[1])]):
            return (
                f"{node.name!r} ({node.op}) caches in a file, which several workers on one file system would write at "
                "once: cache in memory, or give each worker a file of its own"
            )
        for function, inner in library.inner_nodes(node):
            if unset_seeds(library.body(function).graph, inner) is not None:
                return (
                    f"op {inner.name!r} ({inner.op}) in function {function!r} has no seed: give it one, as in "
                    "dataset.shuffle(1000, seed=1)"
                )
    return None


def reads_csv(serialised: Serialised) -> bool:
    """Whether an op reads CSV files, whose position TensorFlow does not restore."""
    return any(node.op.startswith(_CSV_PREFIXES) for node, _ in _everywhere(serialised.graph))


def _decides_inside(library: Library, node: NodeDef) -> bool:
    return any(inner.op in _VALUE_DEPENDENT_OPS for _, inner in library.inner_nodes(node))


def _decides(node: NodeDef) -> str:
    return (
        f"which elements {node.name!r} ({node.op}) gives depends on random numbers that are drawn without a seed, or "
        "in any order: give the random op a seed, and its map no num_parallel_calls"
    )


def _is_empty_text(node: NodeDef) -> bool:
    tensor = node.attr["value"].tensor
    return node.op == "Const" and not tensor.tensor_content and not any(tensor.string_val)
