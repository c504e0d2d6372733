"""Which values differ between workers, and so which class each variable has.

A forward pass over the step's graph marks every node whose value differs between workers: it comes
from a split input, from a random op, or from a variable that is itself different on each worker.
Aggregated gradients are equal everywhere, so the mark ends there. A parameter whose update still
carries the mark would drift apart on the workers; such a program is refused. The result of a loop or
function is taken to depend on all its inputs. A node in a branch (between Switch and Merge) that writes
also depends on the condition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caramel.errors import UnsupportedError, listed
from caramel.frontend.attributes import OVER_WORKERS_ATTRIBUTE, PART_ATTRIBUTE
from caramel.frontend.captured import RawVariable
from caramel.frontend.roles.divergence import random_draws
from caramel.graph import ops
from caramel.graph.functions import Library
from caramel.graph.graph import Graph, NodeDef, node_of, parse_input
from caramel.graph.guards import Guards, guards_of
from caramel.model import Gradient, Input, VariableClass


@dataclass(frozen=True)
class Roles:
    """Classes of a program's variables.

    Attributes:
        kinds: class of each variable, by its handle node.
        writes: names of the ops that write each variable, by its handle node, in graph order.
        notes: notes for the user.
        origins: source, by node, of the node's difference between workers; None where it does not differ.
    """

    kinds: Mapping[str, VariableClass]
    writes: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]
    origins: Mapping[str, str | None]


class _State:
    """Facts about each node in one pass."""

    def __init__(self, guards: Guards) -> None:
        self.origin: dict[str, str | None] = {}  # source of a node's difference, None if equal
        self.gradients: dict[str, int] = {}  # bit set of the gradients on which a node depends
        self._guards = guards

    def condition_origin(self, name: str) -> str | None:
        """The source of a difference between workers in whether a node runs; None if there is no difference."""
        return next((o for c, _ in sorted(self._guards.by_node[name]) if (o := self.origin[c]) is not None), None)


def classify(
    graph: Graph,
    library: Library,
    variables: Sequence[RawVariable],
    gradients: Sequence[Gradient],
    inputs: Sequence[Input],
    accumulators: frozenset[str] = frozenset(),
    *,
    refuses: bool = True,
) -> Roles:
    """Give every variable its class.

    Args:
        graph: nodes of the step.
        library: functions that the nodes call.
        variables: variables of the program.
        gradients: gradients to aggregate; ``parameter`` is the variable's name.
        inputs: inputs of the program.
        accumulators: handle nodes of the variables in which each worker adds up its own gradients.
        refuses: whether to refuse a program whose replicas would drift apart.

    Raises:
        UnsupportedError: a parameter's update uses a value that differs between workers.
    """
    handles = {v.node: v for v in variables if v.node in graph}
    writes = _writes(graph, handles, library)
    differentiated = {g.parameter for g in gradients}
    random_state = _random_states(graph, handles, writes, library)
    drawn = random_draws(graph, library)
    guards = guards_of(graph)
    local: dict[str, str] = {node: f"random state {handles[node].name!r}" for node in sorted(random_state)}
    bits: dict[str, int] = {}
    while True:
        state = _propagate(graph, handles, gradients, inputs, local, bits, drawn, guards)
        before = (dict(local), dict(bits))
        for node, writers in writes.items():
            for writer in writers:
                bits[node] = bits.get(node, 0) | state.gradients[writer]
                origin = state.origin[writer] or state.condition_origin(writer)
                if origin is not None and node not in local and handles[node].name not in differentiated:
                    local[node] = f"variable {handles[node].name!r}, written from {origin}"
        if before == (local, bits):
            break
    kinds = {
        v.node: VariableClass.ACCUMULATOR
        if v.node in accumulators
        else _kind(v, writes, differentiated, random_state, local, bits, handles)
        for v in variables
    }
    if refuses:
        _refuse_local_branches(gradients, state)
        _refuse_local_accumulation(handles, writes, accumulators, state)
        _refuse_divergence(handles, writes, kinds, state)
    return Roles(kinds, writes, (*_same_draws(graph, state), *_candidates(graph)), state.origin)


def _candidates(graph: Graph) -> tuple[str, ...]:
    """A note on candidate samplers, of which each worker draws other classes than one device would."""
    samplers = [node.name for node in graph if node.op.endswith("CandidateSampler")]
    if not samplers:
        return ()
    return (f"with several workers each draws candidates of its own ({listed(samplers, 3)}): losses are their mean",)


def _same_draws(graph: Graph, state: _State) -> tuple[str, ...]:
    """A note on random ops that draw the same numbers on every worker, because their seed is the same."""
    same_seeded = []
    for node in graph:
        if ops.is_stateless_random(node):
            names = [name for name, _ in ops.input_types(node)]
            seeds = [p for name, (p, _) in zip(names, ops.data_inputs(node)) if name == "seed"]
            if seeds and all(state.origin[p] is None for p in seeds):
                same_seeded.append(node.name)
    if not same_seeded:
        return ()
    return (
        f"random ops draw the same numbers on every worker, because their seed is the same ({listed(same_seeded, 3)})",
    )


def _writes(graph: Graph, handles: Mapping[str, RawVariable], library: Library) -> dict[str, tuple[str, ...]]:
    writers: dict[str, list[str]] = {}
    for node in graph:
        for producer in library.written(node):
            if producer in handles:
                writers.setdefault(producer, []).append(node.name)
    return {handle: tuple(writers[handle]) for handle in handles if handle in writers}


def _random_states(
    graph: Graph, handles: Mapping[str, RawVariable], writes: Mapping[str, tuple[str, ...]], library: Library
) -> set[str]:
    """Variables of `tf.random.Generator`, and seeds of stateless random ops that the step advances."""
    states: set[str] = set()
    seeds: list[str] = []
    for node in graph:
        producers = [p for p, _ in ops.data_inputs(node)]
        if ops.is_generator_op(node):
            states.update(p for p in producers if p in handles)
        elif ops.is_stateless_random(node):
            names = [name for name, _ in ops.input_types(node)]
            seeds.extend(p for name, p in zip(names, producers) if name in ("seed", "key", "counter"))
        for _, inner in library.inner_nodes(node):
            if ops.is_generator_op(inner) or ops.is_stateless_random(inner):
                seeds.extend(p for p in producers if p in handles)
    behind = graph.ancestors(seeds, control=False)
    for handle, variable in handles.items():
        is_seed = variable.shape in ((2,), (3,)) and variable.dtype.startswith(("int", "uint"))
        if is_seed and handle in behind and handle in writes and not _counts_otherwise(graph, handle, writes, library):
            states.add(handle)
    return states


def _counts_otherwise(graph: Graph, handle: str, writes: Mapping[str, tuple[str, ...]], library: Library) -> bool:
    """Whether other variables follow from a variable that is a seed, too, otherwise than by what is drawn with it.

    A number of steps may be both: workers that had others for their seeds would train otherwise with it.
    """
    own = writes[handle]
    others = {writer for other, writers in writes.items() if other != handle for writer in writers}
    waiting, seen = [handle], {handle}
    while waiting:
        for reader, position in graph.consumers[waiting.pop()]:
            if reader in seen or reader in own or _draws_by(graph[reader], position, library):
                continue
            if reader in others:
                return True
            seen.add(reader)
            waiting.append(reader)
    return False


def _draws_by(node: NodeDef, position: int, library: Library) -> bool:
    """Whether an op only draws by one of its inputs."""
    if ops.is_stateless_random(node):
        names = [name for name, _ in ops.input_types(node)]
        return position >= len(names) or names[position] in ("seed", "key", "counter")
    inner = [inner for _, inner in library.inner_nodes(node)]
    return any(ops.is_generator_op(each) or ops.is_stateless_random(each) for each in inner)


def _propagate(
    graph: Graph,
    handles: Mapping[str, RawVariable],
    gradients: Sequence[Gradient],
    inputs: Sequence[Input],
    local: Mapping[str, str],
    bits: Mapping[str, int],
    drawn: Mapping[str, str],
    guards: Guards,
) -> _State:
    split = {i.node for i in inputs if i.split}
    results: dict[tuple[str, int], list[tuple[int, Gradient]]] = {}
    for number, gradient in enumerate(gradients):
        for tensor in (gradient.tensor, gradient.indices):
            if tensor is not None:
                results.setdefault(parse_input(tensor), []).append((number, gradient))
    state = _State(guards)
    for name in graph.order:
        node = graph[name]
        origin = f"input {name!r}" if name in split else drawn.get(name)
        if origin is None and PART_ATTRIBUTE in node.attr:
            origin = f"{name!r}, the number of examples of a worker"
        mask = 0
        for producer, index in ops.data_inputs(node):
            aggregated = [n for n, g in results.get((producer, index), ()) if not g.consumers or name in g.consumers]
            if aggregated:
                mask |= sum(1 << n for n in aggregated)
            elif producer in handles:
                origin = origin or local.get(producer)
                mask |= bits.get(producer, 0)
            else:
                origin = origin or state.origin[producer]
                mask |= state.gradients[producer]
        state.gradients[name] = mask
        if OVER_WORKERS_ATTRIBUTE in node.attr:
            state.origin[name] = None
            continue
        state.origin[name] = origin or next(
            (o for c in guards.decided[name] if (o := state.origin[c]) is not None), None
        )
    return state


def _kind(
    variable: RawVariable,
    writes: Mapping[str, Sequence[str]],
    differentiated: set[str],
    random_state: set[str],
    local: Mapping[str, str],
    bits: Mapping[str, int],
    handles: Mapping[str, RawVariable],
) -> VariableClass:
    if variable.node in random_state:
        return VariableClass.RANDOM_STATE
    if variable.name in differentiated:
        return VariableClass.PARAMETER
    floating = variable.dtype.startswith(("float", "bfloat", "complex"))
    follows_gradient = bits.get(variable.node, 0) != 0
    if variable.trainable and floating and (follows_gradient or variable.node not in writes):
        return VariableClass.PARAMETER
    if variable.node in local:
        return VariableClass.STATISTICS
    if _shares_update(variable.node, writes, differentiated, handles):
        return VariableClass.SLOT
    if follows_gradient and (variable.shape != () or bits[variable.node].bit_count() == 1):
        return VariableClass.SLOT
    return VariableClass.HYPERPARAMETER


def _shares_update(
    handle: str, writes: Mapping[str, Sequence[str]], differentiated: set[str], handles: Mapping[str, RawVariable]
) -> bool:
    """Whether one op writes this variable and a parameter (the Apply ops of TF1 optimizers)."""
    own_writers = set(writes.get(handle, ()))
    return any(
        other != handle and handles[other].name in differentiated and not own_writers.isdisjoint(writers)
        for other, writers in writes.items()
    )


def _refuse_divergence(
    handles: Mapping[str, RawVariable],
    writes: Mapping[str, tuple[str, ...]],
    kinds: Mapping[str, VariableClass],
    state: _State,
) -> None:
    for handle, writers in writes.items():
        if kinds[handle] is not VariableClass.PARAMETER:
            continue
        for writer in writers:
            origin = state.origin[writer] or state.condition_origin(writer)
            if origin is not None:
                raise UnsupportedError(
                    f"op {writer!r} updates parameter {handles[handle].name!r} with a value that differs between "
                    f"workers: it comes from {origin} and does not pass through a gradient of the "
                    "loss, so the replicas would drift apart. Compute it from the gradients (tf.gradients, "
                    "GradientTape.gradient), from other variables, or from an input listed in replicated=. "
                    "(Statistics, of which each worker may have its own, are variables with trainable=False)"
                )


def _refuse_local_branches(gradients: Sequence[Gradient], state: _State) -> None:
    """Refuse a gradient that exists on some workers only: it cannot be aggregated."""
    for gradient in gradients:
        names = [node_of(tensor) for tensor in (gradient.tensor, *(source for source, _ in gradient.sources))]
        origin = next((o for name in names if (o := state.condition_origin(name)) is not None), None)
        if origin is not None:
            raise UnsupportedError(
                f"the gradient of {gradient.parameter!r} is computed in a branch whose condition differs between "
                f"workers: it comes from {origin}. Differentiate outside the branch, and choose between values there"
            )


def _refuse_local_accumulation(
    handles: Mapping[str, RawVariable],
    writes: Mapping[str, tuple[str, ...]],
    accumulators: frozenset[str],
    state: _State,
) -> None:
    """Refuse accumulation in steps that differ between workers: their sums are aggregated as one of all."""
    for handle in handles:
        if handle not in accumulators:
            continue
        for writer in writes[handle]:
            origin = state.condition_origin(writer)
            if origin is not None:
                raise UnsupportedError(
                    f"op {writer!r} adds to, or empties, the gradient accumulator {handles[handle].name!r} in a branch "
                    f"whose condition differs between workers: it comes from {origin}. One device decides for the "
                    "whole batch; decide from variables (the step count, for one), from the gradients, or from an "
                    "input listed in replicated="
                )
