"""Steps of the papers' networks with parameter servers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

from benchmarks.figures.networks import PaperNetwork
from benchmarks.published_data import FIGURE_9_NETWORK
from caramel.analyzers.servers.makespan import makespan_s
from caramel.analyzers.servers.pull_orders import ORDERINGS, random_pulls
from caramel.analyzers.servers.pulls import ComputeOp, Pull, PullProblem
from caramel.analyzers.servers.served_step import channel_s, predict_served_step
from caramel.analyzers.servers.worker_step import Push, WorkerStep
from caramel.netmodel.messages import MessageCost, message_cost

ROUNDS = 20
"""Number of rounds in which random orders are drawn (our choice)."""


def homes(network: PaperNetwork, servers: int) -> list[int]:
    """The server of each layer's parameters: the largest first, each where least is so far.

    Args:
        network: the network.
        servers: number of servers.
    """
    loads, found = [0] * servers, [0] * len(network.layers)
    for position in sorted(range(len(found)), key=lambda n: (-network.layers[n].parameter_bytes, n)):
        found[position] = min(range(servers), key=lambda server: (loads[server], server))
        loads[found[position]] += network.layers[position].parameter_bytes
    return found


def worker_step(network: PaperNetwork, workers: int, servers: int, is_training: bool = True) -> WorkerStep:
    """One worker's part of a step: pulls, the forward pass, and if it trains the backward pass and pushes.

    Names of pulls say nothing about the order of the forward pass, as rules break ties by name.

    Args:
        network: the network.
        workers: number of workers.
        servers: number of servers.
        is_training: whether there is a backward pass.
    """
    cost, server_of = cost_of_message(workers), homes(network, servers)
    numbers = list(range(len(network.layers)))
    Random(0).shuffle(numbers)
    pulls, ops, pushes = [], [], []
    for n, layer in enumerate(network.layers):
        name = f"pull{numbers[n]:04d}"
        pulls.append(Pull(name, channel_s(layer.parameter_bytes, workers, servers, cost), server_of[n]))
        ops.append(ComputeOp(f"forward{n}", layer.forward_s, (name, *(f"forward{i}" for i in network.inputs[n]))))
    if is_training:
        users = network.users
        for n, layer in reversed(list(enumerate(network.layers))):
            needs = [f"backward{user}" for user in users[n]]
            if n in network.ends:
                needs += [f"forward{end}" for end in network.ends]
            ops.append(ComputeOp(f"backward{n}", layer.backward_s, (f"forward{n}", *needs)))
            pushes.append(Push(f"gradient{n}", (f"backward{n}",), server_of[n], layer.parameter_bytes))
    problem = PullProblem(tuple(ops), tuple(pulls))
    return WorkerStep(problem, {pull.name: pull.name for pull in pulls}, tuple(pushes))


def cost_of_message(workers: int) -> MessageCost:
    """The cost of a message on the network of all figures; adding up takes a server no time (TicTac, section 2.2)."""
    return replace(message_cost(FIGURE_9_NETWORK, workers), gamma_s_per_byte=0.0)


def orders(problem: PullProblem, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Orders of pulls by rule.

    Args:
        problem: one worker's step.
        names: of rules.
    """
    return {name: ORDERINGS[name](problem) for name in names}


def served_steps_s(
    network: PaperNetwork, workers: int, servers: int, names: Sequence[str], is_training: bool = True
) -> dict[str, float]:
    """Seconds of a step by rule, and with random orders (``"random"``).

    After the last forward op nothing depends on the order of the pulls, so a step is that long after the forward
    pass in any order. Without a rule each worker has an order of its own: a step of training ends with the last
    worker's, inference is each worker's own. Both are means over rounds.

    Args:
        network: the network.
        workers: number of workers.
        servers: number of servers.
        names: of rules.
        is_training: whether workers train; else they only compute the forward pass.
    """
    forward = worker_step(network, workers, servers, is_training=False).problem
    after_s = 0.0
    if is_training:
        after_s = _after_forward_s(network, workers, servers, forward)
    found = {name: makespan_s(forward, order) + after_s for name, order in orders(forward, names).items()}
    rounds = []
    for number in range(ROUNDS):
        own = [number * workers + worker for worker in range(workers if is_training else 1)]
        rounds.append(max(makespan_s(forward, random_pulls(forward, seed)) for seed in own))
    return {**found, "random": statistics.mean(rounds) + after_s}


def _after_forward_s(network: PaperNetwork, workers: int, servers: int, forward: PullProblem) -> float:
    step = worker_step(network, workers, servers)
    order = random_pulls(forward)
    cost = cost_of_message(workers)
    message_s = partial(channel_s, workers=workers, servers=servers, cost=cost)
    served = predict_served_step(step, order, workers, message_s, cost, {})
    return served.step_s - makespan_s(forward, order)
