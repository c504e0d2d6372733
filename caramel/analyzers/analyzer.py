"""Static analysis: which analyzers run, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from caramel.analyzers.fact_checks import fact_error
from caramel.errors import AnalysisError, CaramelError, InputError, listed


@dataclass(frozen=True)
class Analyzer:
    """Something that makes one fact from others. A policy is an analyzer.

    Attributes:
        name: name of the analyzer, for people.
        requires: types of the facts that it needs; ``run`` gets them in this order.
        provides: type of the fact that it makes.
        run: function from the required facts to the new fact; a pure one, measurements apart.

    Examples:
        >>> import caramel
        >>> from caramel.analyzers import analyse
        >>> from caramel.facts import Boundaries, Boundary, Buckets
        >>> def in_pairs(boundaries):
        ...     names = [gradient.name for gradient in boundaries.gradients]
        ...     pairs = tuple(tuple(names[n : n + 2]) for n in range(0, len(names), 2))
        ...     return Buckets(pairs, ("two at a time",) * len(pairs))
        >>> policy = caramel.Analyzer("in pairs", (Boundaries,), Buckets, in_pairs)
        >>> gradients = tuple(Boundary(name, "float32", 1, 4.0, ready_s=1.0, read_s=0.0) for name in "abc")
        >>> analyse([policy], [Boundaries(gradients, compute_s=1.0)], [Buckets])[Buckets].buckets
        (('a', 'b'), ('c',))
    """

    name: str
    requires: tuple[type, ...]
    provides: type
    run: Callable[..., Any] = field(repr=False)


def ordered(
    analyzers: Sequence[Analyzer], given: Sequence[type] = (), wanted: Sequence[type] = ()
) -> tuple[Analyzer, ...]:
    """The order in which analyzers run: each after those whose facts it needs; ties keep the order of the list.

    Args:
        analyzers: the analyzers.
        given: types of facts that are there already.
        wanted: types of facts that must be there at the end.

    Raises:
        InputError: something is not an analyzer, two provide one fact, nobody provides one that is needed, or
            analyzers need each other's facts in a circle.

    Source:
        Caramel, section 5 (static analysis).
    """
    _check(analyzers)
    providers: dict[type, Analyzer] = {}
    for analyzer in analyzers:
        if analyzer.provides in given:
            raise InputError(
                f"{_fact_name(analyzer.provides)} is given, but analyzer {analyzer.name!r} provides it, too"
            )
        if analyzer.provides in providers:
            other = providers[analyzer.provides]
            raise InputError(
                f"analyzers {other.name!r} and {analyzer.name!r} both provide {_fact_name(analyzer.provides)}: "
                "leave one out"
            )
        providers[analyzer.provides] = analyzer
    available = {*given, *providers}
    for consumer, needs in [*((f"analyzer {a.name!r}", a.requires) for a in analyzers), ("the plan", tuple(wanted))]:
        for fact in needs:
            if fact not in available:
                raise InputError(
                    f"{consumer} needs {_fact_name(fact)}, which no analyzer of the list provides: add one that does "
                    f"(the list has {listed([a.name for a in analyzers], 12) or 'none'})"
                )
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(analyzers)))
    number = {analyzer.provides: n for n, analyzer in enumerate(analyzers)}
    graph.add_edges_from((number[fact], n) for n, a in enumerate(analyzers) for fact in a.requires if fact in number)
    try:
        return tuple(analyzers[n] for n in nx.lexicographical_topological_sort(graph))
    except nx.NetworkXUnfeasible:
        circle = [analyzers[n] for n, _ in nx.find_cycle(graph.reverse())]
    text = " needs ".join(f"{a.name!r} ({_fact_name(a.provides)})" for a in [*circle, circle[0]])
    raise InputError(f"analyzers need each other's facts in a circle: {text}")


def _check(analyzers: Sequence[Analyzer]) -> None:
    for analyzer in analyzers:
        if not isinstance(analyzer, Analyzer):
            raise InputError(f"analyzers= takes caramel.Analyzer objects, got {analyzer!r}")
        if not isinstance(analyzer.provides, type) or not all(isinstance(fact, type) for fact in analyzer.requires):
            raise InputError(
                f"analyzer {analyzer.name!r} must name the facts that it requires and provides by their types"
            )


def analyse(analyzers: Sequence[Analyzer], given: Sequence[Any], wanted: Sequence[type]) -> Mapping[type, Any]:
    """Run analyzers, each once.

    Args:
        analyzers: the analyzers, in any order.
        given: facts that are there already.
        wanted: types of facts that must be there at the end.

    Returns:
        All facts by type.

    Raises:
        InputError: the list does not fit together; see `ordered`.
        AnalysisError: an analyzer failed, or provided something else than it said, or for other gradients; with
            its name.
    """
    facts: dict[type, Any] = {type(fact): fact for fact in given}
    for analyzer in ordered(analyzers, list(facts), wanted):
        try:
            fact = analyzer.run(*(facts[required] for required in analyzer.requires))
        except CaramelError:
            raise
        except Exception as error:
            raise AnalysisError(
                f"analyzer {analyzer.name!r} failed: {type(error).__name__}: {error}; nothing was planned"
            ) from error
        if not isinstance(fact, analyzer.provides):
            raise AnalysisError(
                f"analyzer {analyzer.name!r} says that it provides {_fact_name(analyzer.provides)}, "
                f"but returned {type(fact).__name__}"
            )
        if error_text := fact_error(fact, facts):
            raise AnalysisError(
                f"what analyzer {analyzer.name!r} provided is no {_fact_name(analyzer.provides)} of this program: "
                f"{error_text}"
            )
        facts[analyzer.provides] = fact
    return facts


def _fact_name(fact: type) -> str:
    return fact.__name__
