"""One worker's part of a step: what it pulls, what it computes of that, and when it can push what."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from caramel.analyzers.servers.placement import gradient_servers, pulled_reads
from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem
from caramel.analyzers.servers.split import Split, split_step
from caramel.graph import ops
from caramel.graph.graph import node_of
from caramel.model import Gradient, Model
from caramel.server_plan import Home


@dataclass(frozen=True)
class Push:
    """A gradient, or a part of it, that a worker sends to a server.

    Attributes:
        gradient: name of the gradient.
        after: names of the ops that make it.
        channel: number of the server.
        size_bytes: bytes that are sent.
    """

    gradient: str
    after: tuple[str, ...]
    channel: int
    size_bytes: float


@dataclass(frozen=True)
class WorkerStep:
    """What one worker does in a step.

    Attributes:
        problem: what it computes and pulls.
        parameter_of: name of the parameter of each pull, by the pull's name.
        pushes: what it pushes.
    """

    problem: PullProblem
    parameter_of: Mapping[str, str]
    pushes: tuple[Push, ...]

    def parameters(self, order: Sequence[str]) -> tuple[str, ...]:
        """The parameters of pulls in an order; one that comes in parts counts when its first part does.

        Args:
            order: names of pulls.
        """
        return tuple(dict.fromkeys(self.parameter_of[name] for name in order))

    def pulls(self, parameters: Sequence[str]) -> tuple[str, ...]:
        """The pulls of parameters in an order; see `parameters`.

        Args:
            parameters: names of all parameters that are pulled.
        """
        return tuple(
            p.name for parameter in parameters for p in self.problem.pulls if self.parameter_of[p.name] == parameter
        )


def worker_step(
    model: Model, homes: Collection[Home], op_s: Mapping[str, float], pull_s: Callable[[float], float]
) -> WorkerStep:
    """One worker's part of a step whose variables are on servers.

    Args:
        model: the single-device step.
        homes: servers of the variables.
        op_s: seconds of each op, by name; 0 where it is not there.
        pull_s: function from the bytes of a pull to its seconds on its channel.

    Source:
        TicTac, section 3.1.
    """
    split, graph = split_step(model), model.graph
    by_name = {name: home for home in homes for name in home.variables}
    pulls: dict[str, Pull] = {}
    parameter_of: dict[str, str] = {}
    sources: dict[str, tuple[str, ...]] = {}  # pulls by the op of servers that reads the variable
    for name in pulled_reads(model):
        variable = split.variables[node_of(graph[name].input[0])]
        names = []
        for part in by_name[variable.plan_name].parts:
            elements = variable.size if part.elements is None else part.elements
            pull = Pull(
                f"pull of {variable.plan_name} from {part.server}", pull_s(elements * variable.item_bytes), part.server
            )
            pulls.setdefault(pull.name, pull)
            parameter_of[pull.name] = variable.plan_name
            names.append(pull.name)
            if part.elements is None:
                break
        sources[name] = tuple(names)
    computed = tuple(_ops(model, split, op_s, sources))
    return WorkerStep(PullProblem(computed, tuple(pulls.values())), parameter_of, tuple(_pushes(model, by_name)))


def _ops(
    model: Model, split: Split, op_s: Mapping[str, float], sources: Mapping[str, tuple[str, ...]]
) -> Iterator[ComputeOp]:
    """The worker's ops, producers first; pulls stand for what servers read.

    An op that only prepares parameters (casts one, or joins several) counts as a part of the first op that uses what it
    gives: nothing is gained by receiving these parameters before that op can run.
    """
    prepared: dict[str, dict[str, None]] = {}  # pulls that a preparing op needs, by its name
    preparing_s: dict[str, float] = {}  # of those whose time no op has yet
    examples: set[str] = set()  # ops that need examples
    pushed = {node_of(t) for g in model.gradients for t in (g.tensor, g.indices) if t is not None}
    for name in model.graph.order:
        if name in split.only_there:
            continue
        inputs: dict[str, None] = {}
        own_s = op_s.get(name, 0.0)
        is_of_examples = model.graph[name].op in ops.PLACEHOLDERS
        for source, index in model.graph.parsed_inputs(name):
            if source in sources:
                inputs.update(dict.fromkeys(sources[source] if index >= 0 else ()))
            elif source in prepared:
                inputs.update(prepared[source])
                own_s += preparing_s.pop(source, 0.0)
            elif source not in split.only_there:
                inputs[source] = None
                is_of_examples = is_of_examples or source in examples
        if is_of_examples:
            examples.add(name)
        has_pulls = any(each not in model.graph for each in inputs)
        if has_pulls and not is_of_examples and name not in pushed:
            prepared[name], preparing_s[name] = inputs, own_s
        else:
            yield ComputeOp(name, own_s, tuple(inputs))


def _pushes(model: Model, homes: Mapping[str, Home]) -> Iterator[Push]:
    for gradient in model.gradients:
        after = tuple(dict.fromkeys(node_of(t) for t in (gradient.tensor, gradient.indices) if t is not None))
        home = homes.get(model.variable_by_name[gradient.parameter].plan_name)
        if home is not None and home.is_divided:
            for part in home.parts:  # of rows nothing is known
                yield Push(gradient.name, after, part.server, (part.elements or 0) * gradient.item_bytes)
        else:
            server = gradient_servers(model, gradient, homes)[0]
            yield Push(gradient.name, after, server, _pushed_bytes(gradient))


def _pushed_bytes(gradient: Gradient) -> float:
    """Bytes of a gradient; of a sparse one nothing is known."""
    return 0.0 if gradient.is_sparse else gradient.size_bytes
