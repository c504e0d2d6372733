"""Targets: what can be emitted, each a name and the modifiers that make it, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from caramel.errors import InvariantError
from caramel.graph.graph import Graph
from caramel.graph.verify import verify_nodes, verify_structure
from caramel.modifiers.aggregate import aggregate, verify_aggregated
from caramel.modifiers.cut import cut
from caramel.modifiers.divide_tables import divide_tables
from caramel.modifiers.emission import Emission, Modifier
from caramel.modifiers.evaluate import add_evaluation
from caramel.modifiers.exchange import add_exchange_state, exchange, train_alone, verify_alone
from caramel.modifiers.place_input import add_input_state, place_input, save_position
from caramel.modifiers.postpone import postpone, verify_postponed
from caramel.modifiers.replicate import replicate
from caramel.modifiers.save_restore import add_state
from caramel.modifiers.serialize import serialize
from caramel.modifiers.serve import serve
from caramel.modifiers.server_checks import verify_served
from caramel.modifiers.sum_forward import sum_forward
from caramel.modifiers.weigh import weigh
from caramel.util.gc_pause import paused_gc


@dataclass(frozen=True)
class Target:
    """What is emitted. A new one is a new tuple; it needs no edit of the others.

    Attributes:
        name: name for people.
        modifiers: the modifiers, in the order in which they run. Those named ``verify_...`` change nothing.
    """

    name: str
    modifiers: tuple[Modifier, ...]


ALL_REDUCE = Target(
    "all-reduce",
    (
        replicate,
        serialize,
        place_input,
        weigh,
        sum_forward,
        divide_tables,
        cut,
        postpone,
        aggregate,
        verify_aggregated,
        verify_postponed,
        save_position,
        add_state,
        add_input_state,
        add_evaluation,
    ),
)
"""Data-parallel training: every worker has all parameters, gradients are all-reduced."""

LOCAL_STEPS = Target(
    "local steps",
    (
        replicate,
        serialize,
        place_input,
        weigh,
        sum_forward,
        train_alone,
        exchange,
        verify_alone,
        save_position,
        add_state,
        add_input_state,
        add_exchange_state,
        add_evaluation,
    ),
)
"""Every worker trains by itself; an op of its own brings their parameters together."""

PARAMETER_SERVERS = Target(
    "parameter servers",
    (
        replicate,
        place_input,
        weigh,
        sum_forward,
        serve,
        verify_served,
        save_position,
        add_state,
        add_input_state,
        add_evaluation,
    ),
)
"""Data-parallel training: servers have the parameters, which workers pull, and to which they push gradients."""

COMPUTATION_ALONE = Target(
    "computation alone", (replicate, serialize, place_input, save_position, add_state, add_input_state)
)
"""What a host computes in a step: replicas that apply their own gradients, without communication."""

FORWARD_PASS = Target(
    "forward pass", (replicate, serialize, place_input, weigh, sum_forward, save_position, add_state, add_input_state)
)
"""What evaluates or predicts on the workers: replicas that train nothing, with the sums of their results."""


PULLED_FORWARD_PASS = Target(
    "pulled forward pass",
    (
        replicate,
        place_input,
        weigh,
        sum_forward,
        serve,
        verify_served,
        save_position,
        add_state,
        add_input_state,
    ),
)
"""What evaluates or predicts where servers have the parameters: workers pull them in every step, and push nothing."""


@paused_gc()
def emit(target: Target, emission: Emission) -> Emission:
    """Run a target's modifiers, and the verifier after each; it looks for cycles at the end, and if need be again.

    Args:
        target: the target to emit.
        emission: a fresh emission, on which no modifier has run; see `Emission.initial`.

    Returns:
        The finished emission.

    Raises:
        InvariantError: a modifier broke an invariant; the text names the modifier and the node.
    """
    try:
        emitted = _emitted(target, emission, verify_nodes)
        emitted.graph.order  # noqa: B018 - raises on a cycle
    except InvariantError:
        _emitted(target, emission, verify_structure)  # which modifier it was
        raise
    return emitted


def _emitted(target: Target, emission: Emission, verify: Callable[[Graph, str, Graph], None]) -> Emission:
    for modifier in target.modifiers:
        before, emission = emission, modifier(emission)
        verify(emission.graph, modifier.__name__, before.graph)
    return emission
