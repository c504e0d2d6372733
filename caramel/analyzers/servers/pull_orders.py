"""The orders of pulls by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Protocol

from caramel.analyzers.servers.best_pulls import best_pulls
from caramel.analyzers.servers.first_read import first_read
from caramel.analyzers.servers.pulls import PullProblem
from caramel.analyzers.servers.tac import tac
from caramel.analyzers.servers.tao import tao
from caramel.analyzers.servers.tic import tic
from caramel.analyzers.servers.tio import tio
from caramel.util.arguments import one_of


class Ordering(Protocol):
    """A rule for orders of pulls."""

    def __call__(self, problem: PullProblem, seed: int = 0) -> tuple[str, ...]:
        """Names of all pulls, first the one to send first; the seed is of random numbers, if there are any."""
        ...


def random_pulls(problem: PullProblem, seed: int = 0) -> tuple[str, ...]:
    """Any order, as workers have it on which none is enforced; the same one for the same names and seed.

    Args:
        problem: one worker's step.
        seed: seed of the random numbers.
    """
    names = sorted(problem.position_of)
    Random(seed).shuffle(names)
    return tuple(names)


def reversed_pulls(problem: PullProblem) -> tuple[str, ...]:
    """A bad order: that of TAC from the last to the first.

    Args:
        problem: one worker's step.
    """
    return tac(problem)[::-1]


def _always(rule: Callable[[PullProblem], tuple[str, ...]]) -> Ordering:
    """A rule without random numbers, whatever the seed."""

    def ordering(problem: PullProblem, seed: int = 0) -> tuple[str, ...]:
        return rule(problem)

    return ordering


NO_ORDER = "none"
"""Name of the option in which no order is enforced."""

ORDERINGS: Mapping[str, Ordering] = MappingProxyType(
    {
        "tac": _always(tac),
        "tic": _always(tic),
        "tao": _always(tao),
        "tio": _always(tio),
        "best": _always(best_pulls),
        "read": _always(first_read),
        "random": random_pulls,
        "reverse": _always(reversed_pulls),
    }
)
"""Rules by name. `NO_ORDER` is no rule; its step is predicted as the median of random orders."""


def pull_order(name: str, problem: PullProblem, seed: int = 0) -> tuple[str, ...]:
    """The order of a step's pulls by a rule.

    Args:
        name: of the rule, one of `ORDERINGS`.
        problem: one worker's step.
        seed: seed of ``"random"``.

    Returns:
        Names of all pulls, first the one to send first.

    Raises:
        InputError: there is no such rule.

    >>> from caramel.analyzers.servers.pulls import ComputeOp, Pull
    >>> ops = ComputeOp("op1", 1.0, ("recv1",)), ComputeOp("op2", 1.0, ("op1", "recv2"))
    >>> pull_order("tac", PullProblem(ops, (Pull("recv2", 1.0), Pull("recv1", 1.0))))
    ('recv1', 'recv2')
    """
    return ORDERINGS[one_of(name, ORDERINGS, "order of pulls")](problem, seed)
