"""Exchange: steps in which every worker trains by itself, and what brings their parameters together between steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caramel.analyzers.step.local_variables import exchangeable
from caramel.collectives.algorithms import Schedules
from caramel.collectives.emit import emit_all_reduce
from caramel.collectives.lower import Emitter, Request
from caramel.errors import InvariantError
from caramel.graph.devices import Device, host_of
from caramel.graph.graph import NodeDef
from caramel.graph.nodes import assign, constant, dtype_attribute, group, node, read, variable
from caramel.local_plan import Exchange, LocalSteps
from caramel.model import Model, Variable
from caramel.modifiers.aggregate import redirect_gradient
from caramel.modifiers.emission import Emission, Purpose, Role, SavedTensor, own_name, replica_name
from caramel.modifiers.save_restore import StateBuilder, read_checkpoint
from caramel.modifiers.weigh import replica_tensor
from caramel.plan import Plan

EXCHANGE = "caramel/exchange/done"
"""Op that exchanges the parameters of all workers."""

ANCHOR = "caramel/exchange/anchored"
"""Op that takes the parameters as they are for those after an exchange."""

BEGIN = "caramel/exchange/begun"
"""Op that does so, and forgets the momentum of the exchanges."""

RESTORE_MOMENTUM = "caramel/exchange/restored"
"""Op that reads the momentum of the exchanges from a checkpoint."""

_MOMENTUM, _ANCHOR = "momentum", "anchor"


def momentum_keys(model: Model, plan: Plan) -> dict[str, Variable]:
    """The keys under which checkpoints keep the momentum of exchanges, with the parameters that it is of."""
    return {} if plan.local is None else {_momentum_key(v): v for v in exchangeable(model)}


def _momentum_key(parameter: Variable) -> str:
    return f"caramel/exchange/{parameter.name}"


def train_alone(emission: Emission) -> Emission:
    """Let every worker update with its own gradients.

    The gradient of worker r is N times what it gives to that of the whole batch, so that their mean is that one: in a
    loss that is a mean, its own gradient (weighted by its share of the examples); in a sum, N times its own.

    Args:
        emission: the emission with weighed gradients.
    """
    model, plan = emission.model, emission.plan
    added: list[tuple[NodeDef, Role]] = []
    changed: dict[str, NodeDef] = {}
    for rank, device in enumerate(plan.devices):
        for number, gradient in enumerate(model.gradients):
            tensor = emission.gradients[rank, gradient.name]
            if plan.reduction == "sum" and plan.workers > 1:
                scope, kind = own_name(rank, f"alone_{number}"), dtype_attribute(gradient.dtype)
                workers = constant(f"{scope}/workers", plan.workers, gradient.dtype, device)
                tensor = f"{scope}/times"
                times = node(tensor, "Mul", [emission.gradients[rank, gradient.name], workers.name], device, T=kind)
                added += [(each, Role(Purpose.REPLICA, rank)) for each in (workers, times)]
            if tensor != replica_tensor(rank, gradient.tensor):
                redirect_gradient(emission, gradient, rank, gradient.tensor, tensor, changed)
    return emission.extended(added, changed)


def exchange(emission: Emission) -> Emission:
    """Add the exchange of all parameters, which runs between steps.

    Args:
        emission: the emission of steps in which every worker trains by itself.

    Returns:
        The emission with the op `EXCHANGE`, and with the momentum of the exchanges among what checkpoints keep.
    """
    schedules, done, nodes, saved = Schedules(), [], [], list(emission.saved)
    for bucket in _buckets(emission):
        nodes += bucket.emitted(schedules)
        done += bucket.done
        saved += [
            SavedTensor(_momentum_key(v), bucket.kept(0, position, _MOMENTUM, "saved"), v.dtype)
            for position, v in enumerate(bucket.variables)
        ]
        nodes += bucket.emitter.out.nodes
    nodes.append((group(EXCHANGE, done, str(host_of(Device.parse(emission.plan.devices[0])))), 0))
    return emission.extended([(each, Role(Purpose.STATE, rank)) for each, rank in nodes], saved=tuple(saved))


def _buckets(emission: Emission) -> Iterator[_Bucket]:
    """What travels together, in the order of the plan."""
    assert emission.plan.local is not None
    by_name = {v.plan_name: v for v in exchangeable(emission.model)}
    for number, each in enumerate(emission.plan.local.exchanges):
        yield _Bucket(emission.plan, emission.plan.local, number, each, [by_name[name] for name in each.parameters])


class _Bucket:
    """The parameters that travel together in an exchange.

    Args:
        plan: the plan.
        local: what it says of exchanges.
        number: number of the transfer.
        of: what the plan says of it.
        variables: the parameters.

    Attributes:
        variables: see the argument.
        emitter: has the nodes besides those of the all-reduce.
        done: names of the assignments.
    """

    def __init__(self, plan: Plan, local: LocalSteps, number: int, of: Exchange, variables: Sequence[Variable]) -> None:
        self._plan = plan
        self._local = local
        self._number = number
        self._of = of
        self.variables = variables
        self._ranks = range(plan.workers)
        self.emitter = Emitter(f"caramel/exchange/bucket_{number}", plan.devices, of.dtype)
        self.done: list[str] = []

    def handle(self, rank: int, position: int, what: str) -> str:
        """Node of a variable that a worker keeps of a parameter: its anchor or its momentum."""
        return f"{self.emitter.prefix}/{what}_{rank}_{position}"

    def kept(self, rank: int, position: int, what: str, reader: str) -> str:
        """The value of such a variable."""
        name = f"{self.handle(rank, position, what)}/{reader}"
        device = self._plan.devices[rank]
        self.emitter.out.nodes.append((read(name, self.handle(rank, position, what), self._of.dtype, device), rank))
        return name

    def emitted(self, schedules: Schedules) -> list[tuple[NodeDef, int]]:
        """Add the nodes, and return those of the all-reduce."""
        kind = dtype_attribute(self._of.dtype)
        anchors, sources = [], []
        for rank in self._ranks:
            device, parts = self._plan.devices[rank], []
            for position, v in enumerate(self.variables):
                for what in (_ANCHOR, _MOMENTUM):
                    kept = variable(self.handle(rank, position, what), v.dtype, v.shape, device)
                    self.emitter.out.nodes.append((kept, rank))
                name = f"{self.emitter.prefix}/own_{rank}_{position}"
                self.emitter.out.nodes.append((read(name, replica_name(rank, v.node), v.dtype, device), rank))
                anchors.append(self.kept(rank, position, _ANCHOR, "before"))
                difference = self.emitter.add(rank, f"difference_{rank}_{position}", "Sub", [anchors[-1], name], T=kind)
                parts.append(self.emitter.reshape(rank, f"flat_{rank}_{position}", difference, (v.size,)))
            sources.append(self.emitter.joined(rank, f"pack_{rank}", parts))
        request = Request(
            prefix=f"{self.emitter.prefix}/reduce",
            sources=sources,
            devices=self._plan.devices,
            dtype=self._of.dtype,
            size=self._of.elements,
            mean=True,
            wire=self._of.wire,
        )
        number = self._number
        lowered = emit_all_reduce(
            schedules, self._of.algorithm, self._of.depth, request, turn=number, instance=number + 1
        )
        for rank in self._ranks:
            sizes = [v.size for v in self.variables]
            means = self.emitter.parted(rank, f"unpack_{rank}", lowered.results[rank], sizes)
            for position, mean in enumerate(means):
                anchor = anchors[rank * len(sizes) + position]
                self._step(rank, position, mean, anchor)
        return list(lowered.nodes)

    def _step(self, rank: int, position: int, mean: str, anchor: str) -> None:
        """Nesterov's step with the mean of all workers' differences, and its assignments."""
        kind, of, local = dtype_attribute(self._of.dtype), self.variables[position], self._local
        place = f"{rank}_{position}"

        def times(name: str, tensor: str, factor: float) -> str:
            number = constant(f"{self.emitter.prefix}/{name}_{place}/by", factor, of.dtype, self._plan.devices[rank])
            self.emitter.out.nodes.append((number, rank))
            return self.emitter.add(rank, f"{name}_{place}", "Mul", [tensor, number.name], T=kind)

        def plus(name: str, one: str, other: str, op: str = "AddV2") -> str:
            return self.emitter.add(rank, f"{name}_{place}", op, [one, other], T=kind)

        mean = self.emitter.reshape(rank, f"mean_{place}", mean, of.shape)
        kept = times("kept", self.kept(rank, position, _MOMENTUM, "before"), local.momentum)
        momentum = plus("momentum_after", kept, mean)
        ahead = plus("ahead", times("further", momentum, local.momentum), mean)
        after = plus("after", anchor, times("step", ahead, local.learning_rate), "Sub")
        for name, handle, value in (
            ("keep_momentum", self.handle(rank, position, _MOMENTUM), momentum),
            ("keep_anchor", self.handle(rank, position, _ANCHOR), after),
            ("give", replica_name(rank, of.node), after),
        ):
            assignment = assign(
                f"{self.emitter.prefix}/{name}_{place}", handle, value, of.dtype, self._plan.devices[rank]
            )
            self.emitter.out.nodes.append((assignment, rank))
            self.done.append(assignment.name)


def add_exchange_state(emission: Emission) -> Emission:
    """Add the ops `ANCHOR`, `BEGIN` and `RESTORE_MOMENTUM`.

    Args:
        emission: the emission with the exchange, and with the state of variables.
    """
    model, plan = emission.model, emission.plan
    builder, host = StateBuilder([]), str(host_of(Device.parse(plan.devices[0])))
    found = {key: v.dtype for key, v in momentum_keys(model, plan).items()}
    momenta = read_checkpoint(builder, f"{RESTORE_MOMENTUM}_ops", found, host)
    anchored: list[str] = []
    zeroed: list[str] = []
    restored: list[str] = []
    for bucket in _buckets(emission):
        for position, v in enumerate(bucket.variables):
            kind, value = dtype_attribute(v.dtype), momenta[_momentum_key(v)]
            for rank, device in enumerate(plan.devices):
                scope = f"{bucket.emitter.prefix}/state_{rank}_{position}"
                own = builder.add(read(f"{scope}/own", replica_name(rank, v.node), v.dtype, device), rank)
                zeros = builder.add(node(f"{scope}/zeros", "ZerosLike", [own], device, T=kind), rank)
                value = builder.add(node(f"{scope}/passed", "Identity", [value], device, T=kind), rank)
                for names, what, given in (
                    (anchored, _ANCHOR, own),
                    (zeroed, _MOMENTUM, zeros),
                    (restored, _MOMENTUM, value),
                ):
                    name = f"{scope}/assign_{len(names)}_{what}_{given.rpartition('/')[2]}"
                    handle = bucket.handle(rank, position, what)
                    names.append(builder.add(assign(name, handle, given, v.dtype, device), rank))
    for name, names in ((ANCHOR, anchored), (BEGIN, [*anchored, *zeroed]), (RESTORE_MOMENTUM, restored)):
        builder.add(group(name, names, host), 0)
    return emission.extended(builder.nodes)


def verify_alone(emission: Emission) -> Emission:
    """No step has anything of another worker, unless its forward pass has sums over all of them.

    Args:
        emission: the emission with the exchange.

    Returns:
        The emission, unchanged.

    Raises:
        InvariantError: an edge breaks this.
    """
    graph, roles = emission.graph, emission.roles
    steps = [own_name(rank, "step") for rank in range(emission.plan.workers)]
    for name in () if emission.model.forward_sums else graph.ancestors(steps):
        other = next((s for s in graph.sources(name) if roles[s].rank != roles[name].rank), None)
        if other is not None:
            raise InvariantError(f"after exchange: node {name!r} of a step reads {other!r} of another worker")
    return emission
