"""Proof: what is checked of the emitted graph as a whole, and goes into the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from caramel.errors import PlanError
from caramel.graph.graph import Graph
from caramel.local_plan import LocalSteps
from caramel.modifiers.emission import Emission, Purpose, Role
from caramel.modifiers.update_shards import divided_tables
from caramel.server_plan import ParameterServers


def prove(emission: Emission) -> tuple[str, ...]:
    """Check the properties of the whole graph, which no single modifier can guarantee.

    Args:
        emission: a finished emission, which has passed the verifier after each modifier.

    Returns:
        The statements that hold, in words.

    Raises:
        PlanError: the transfers have no common order.
    """
    plan = emission.plan
    if plan.local is not None:
        return _of_local_steps(emission, plan.local)
    if plan.servers is not None:
        return _of_servers(emission, plan.servers)
    first_gradients = [transfer.gradients[0] for transfer in plan.transfers]
    edges = agreed_order(emission.graph, emission.roles, first_gradients)
    nodes = len(emission.graph)
    gradients = len(plan.pieces)
    postponed, divided = plan.postponed, len(divided_tables(emission.model, plan))
    statements = [
        f"no cycle among {nodes:,} nodes",
        f"one order of transfers on all {plan.workers} workers: whatever waits for a transfer waits for one with a "
        f"smaller number ({edges:,} such pairs), so no two workers can wait for each other",
        f"the updates of all {gradients} gradients use aggregated values only, each of every worker's elements once",
    ]
    if plan.sharded:
        statements.append(
            f"each element of {len(plan.sharded)} sharded updates is updated on the one worker that completes its sum"
        )
    if divided:
        statements.append(
            f"each row of {divided} embedding tables is on one worker, which all lookups ask before it updates the row"
        )
    if postponed:
        statements.append(
            f"{len(postponed)} postponed updates use nothing of the step they run in but what was kept for them"
        )
    return tuple(statements)


def _of_local_steps(emission: Emission, local: LocalSteps) -> tuple[str, ...]:
    sums = len(emission.model.forward_sums)
    own = f"besides {sums} sums of the forward pass no step has anything" if sums else "no step has anything"
    parameters = sum(len(exchange.parameters) for exchange in local.exchanges)
    return (
        f"no cycle among {len(emission.graph):,} nodes",
        f"{own} of another worker",
        f"each of {parameters} parameters is in one of {len(local.exchanges)} transfers of an exchange",
    )


def _of_servers(emission: Emission, servers: ParameterServers) -> tuple[str, ...]:
    return (
        f"no cycle among {len(emission.graph):,} nodes",
        f"each of {len(servers.home_by_variable)} variables is written on servers only, and no worker reads another's",
        f"the updates use all {len(emission.model.gradients)} gradients of all {emission.plan.workers} workers",
        "a write of a variable and any other access of it are in the order that the program gives them",
    )


def agreed_order(graph: Graph, roles: Mapping[str, Role], first_gradients: Sequence[str]) -> int:
    """Check that the order of transfers is one that every worker can keep; the number of ordered pairs.

    Each transfer counts as one event that begins when all of its workers can begin it. If a transfer follows only
    from transfers with smaller numbers, by any path and on any worker, they can run in the order of their numbers.

    Args:
        graph: graph of all workers.
        roles: role of each node.
        first_gradients: for each transfer, by its number, the name of one of its gradients.

    Raises:
        PlanError: a transfer waits for one with a larger number.
    """
    transfers_before: dict[str, int] = {}
    follows = [0] * len(first_gradients)
    for name in graph.order:
        mask = 0
        for source in graph.sources(name):
            mask |= transfers_before[source]
        role = roles[name]
        if role.purpose is Purpose.COLLECTIVE and role.transfer is not None:
            follows[role.transfer] |= mask & ~(1 << role.transfer)
            mask |= 1 << role.transfer
        transfers_before[name] = mask
    for number, mask in enumerate(follows):
        if mask >> number:
            later = number + (mask >> number).bit_length() - 1
            mine, other = first_gradients[number], first_gradients[later]
            raise PlanError(
                f"transfer {number} ({mine!r}, ...) cannot begin before transfer {later} ({other!r}, ...) is done: put "
                "that one in front, and do not send gradients together that wait for each other"
            )
    return sum(bin(mask).count("1") for mask in follows)
