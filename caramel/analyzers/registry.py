"""Analyzers and policies by the names that plans print and options take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from caramel.analyzers.analyzer import Analyzer
from caramel.analyzers.automatic import Policy, choose_analyzers
from caramel.analyzers.cost.network import Network
from caramel.analyzers.optimal.search import optimal_buckets, optimal_packing
from caramel.analyzers.policies.batching import fixed, mg_wfbp, paper_batching, single
from caramel.analyzers.policies.best_order import best_order
from caramel.analyzers.policies.best_packing import best_packing
from caramel.analyzers.policies.control_edges import enforced_order, no_serialization, serialization
from caramel.analyzers.policies.credit_packing import bytescheduler, p3
from caramel.analyzers.policies.order import greedy_order
from caramel.analyzers.policies.packing import backward_only, paper_packing, priority
from caramel.analyzers.policies.transfers import adaptive_depth, as_they_are
from caramel.analyzers.step.boundaries import boundaries
from caramel.analyzers.step.dependencies import dependencies
from caramel.analyzers.step.op_times import given_trace, unmeasured
from caramel.errors import InputError, in_one_line
from caramel.facts import Trace
from caramel.netmodel.choice import CollectiveOptions
from caramel.util.arguments import one_of
from caramel.util.python_files import executed_module


def _paper_collectives(options: CollectiveOptions) -> CollectiveOptions:
    """Shuffles, as deep as the threshold says (Caramel, section 4.4)."""
    return replace(options, algorithm=options.algorithm or "shuffle", depth_by_threshold=True)


POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("optimal", "as well as can be", optimal_buckets, paper_packing, best_order, best_packing),
        Policy(
            "paper",
            "by Caramel's own rules",
            paper_batching,
            paper_packing,
            edges=lambda: enforced_order("total"),
            uses_least_times=True,
            has_threshold=True,
            collectives=_paper_collectives,
        ),
        Policy("bytescheduler", "pieces by priority within a credit of bytes", single, bytescheduler),
        Policy("p3", "small pieces by priority, one at a time", single, p3),
    )
}
"""The policies by the names that ``policy=`` and ``--policy`` take; the first is the default."""

_ANALYZERS: tuple[Callable[[], Analyzer], ...] = (
    dependencies,
    unmeasured,
    greedy_order,
    best_order,
    serialization,
    lambda: enforced_order("total"),
    lambda: enforced_order("updates"),
    no_serialization,
    boundaries,
    single,
    fixed,
    paper_batching,
    mg_wfbp,
    optimal_buckets,
    as_they_are,
    backward_only,
    paper_packing,
    priority,
    optimal_packing,
    best_packing,
    adaptive_depth,
)
"""Factories of the analyzers whose names ``--analyzers`` takes, besides those of the policies."""


def automatic_analyzers(
    network: Network,
    trace: Trace | None = None,
    *,
    serialize: bool = True,
    batching: bool = True,
    scheduling: bool = True,
    policy: str = "optimal",
    postponed: Sequence[str] = (),
) -> tuple[list[Analyzer], list[str]]:
    """The analyzers that ARModel takes if none are given.

    Args:
        network: network as planners see it.
        trace: measured times; None without any.
        serialize: whether one order of computation is enforced.
        batching: whether small gradients travel together.
        scheduling: whether the forward window is used, too.
        policy: name of one of `POLICIES`: ``"optimal"``, ``"paper"`` for the rules of Caramel, sections 4.1 to 4.3,
            ``"bytescheduler"`` or ``"p3"``.
        postponed: names of gradients to postpone by hand, instead of scheduling.

    Returns:
        The list, to change as one likes, and notes about what had to be left out.

    Raises:
        InputError: no such policy.
    """
    return choose_analyzers(
        policy_named(policy),
        network,
        trace,
        serialize=serialize,
        batching=batching,
        scheduling=scheduling,
        postponed=postponed,
    )


def policy_named(name: str) -> Policy:
    """The policy of a name.

    Args:
        name: name as ``policy=`` takes it.

    Raises:
        InputError: no such policy.
    """
    return POLICIES[one_of(name, POLICIES, "policy")]


def known(trace: Trace | None = None) -> Mapping[str, Analyzer]:
    """The library's analyzers with their own settings, by name.

    Args:
        trace: trace that the analyzer ``"trace"`` provides; without one there is no such analyzer.
    """
    parts = [part for policy in POLICIES.values() for part in (policy.buckets, policy.windows, policy.packing)]
    factories = [*_ANALYZERS, *(part for part in parts if part is not None)]
    analyzers = [factory() for factory in factories] + ([] if trace is None else [given_trace(trace)])
    return {analyzer.name: analyzer for analyzer in analyzers}


def listed_analyzers(text: str, trace: Trace | None = None) -> list[Analyzer]:
    """The analyzers of a list with commas.

    Args:
        text: names as plans print them; or FILE.py:NAME, an Analyzer, or a function without arguments that
            makes one, of a Python file.
        trace: trace that the analyzer ``"trace"`` provides.

    Raises:
        InputError: no such analyzer.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise InputError("the list of analyzers is empty")
    by_name = known(trace)
    modules: dict[Path, ModuleType] = {}  # each file once, or the facts of two of its analyzers are not the same
    return [_own_analyzer(name, modules) if _is_file(name) else _known(name, by_name) for name in names]


def _known(name: str, by_name: Mapping[str, Analyzer]) -> Analyzer:
    if name not in by_name:
        raise InputError(
            f"there is no analyzer {name!r}; there are {', '.join(by_name)}, and FILE.py:NAME for your own"
        )
    return by_name[name]


def _is_file(name: str) -> bool:
    return name.rpartition(":")[0].endswith(".py")


def _own_analyzer(spec: str, modules: dict[Path, ModuleType]) -> Analyzer:
    """An analyzer of a Python file."""
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"there is no Python file {file!r} with an analyzer")
    try:
        named = getattr(_module(path.resolve(), modules), name)
        analyzer = named if isinstance(named, Analyzer) else named()
    except Exception as error:  # whatever the user's file raises
        raise InputError(
            f"the analyzer {spec!r} cannot be made: {type(error).__name__}: {in_one_line(error)}"
        ) from error
    if not isinstance(analyzer, Analyzer):
        raise InputError(f"{spec!r} is no caramel.Analyzer, but {type(analyzer).__name__}")
    return analyzer


def _module(path: Path, modules: dict[Path, ModuleType]) -> ModuleType:
    """The module of a file that ends in .py."""
    if path not in modules:
        module = executed_module(path, f"caramel_own_{path.stem}")
        assert module is not None  # the name's end says that it is one
        modules[path] = module
    return modules[path]
