"""Analyzers: pure functions from a Model and other facts to one fact; policies are analyzers.

Import from here: ``from caramel.analyzers import analyse, automatic_analyzers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caramel.util.lazy_names import lazy_names

_PLACES = {
    "adaptive_depth": "policies.transfers",
    "analyse": "analyzer",
    "Analyzer": "analyzer",
    "as_they_are": "policies.transfers",
    "automatic_analyzers": "registry",
    "backward_only": "policies.packing",
    "best_order": "policies.best_order",
    "best_packing": "policies.best_packing",
    "boundaries": "step.boundaries",
    "Bounds": "cost.bounds",
    "bytescheduler": "policies.credit_packing",
    "dependencies": "step.dependencies",
    "enforced_order": "policies.control_edges",
    "find_boundaries": "step.boundaries",
    "find_dependencies": "step.dependencies",
    "fixed": "policies.batching",
    "given_trace": "step.op_times",
    "greedy_order": "policies.order",
    "known": "registry",
    "listed_analyzers": "registry",
    "lower_bounds": "cost.bounds",
    "mg_wfbp": "policies.batching",
    "Network": "cost.network",
    "no_serialization": "policies.control_edges",
    "optimal_buckets": "optimal.search",
    "optimal_packing": "optimal.search",
    "order_by_cost": "policies.order",
    "order_of": "policies.order",
    "ordered": "analyzer",
    "p3": "policies.credit_packing",
    "pack": "optimal.search",
    "Packing": "optimal.search",
    "paper_batching": "policies.batching",
    "paper_packing": "policies.packing",
    "POLICIES": "registry",
    "Policy": "automatic",
    "predict": "optimal.prediction",
    "priority": "policies.packing",
    "serialization": "policies.control_edges",
    "simulate_on": "cost.simulate",
    "single": "policies.batching",
    "unmeasured": "step.op_times",
    "WANTED": "automatic",
}

if TYPE_CHECKING:
    from caramel.analyzers.analyzer import Analyzer, analyse, ordered
    from caramel.analyzers.automatic import WANTED, Policy
    from caramel.analyzers.cost.bounds import Bounds, lower_bounds
    from caramel.analyzers.cost.network import Network
    from caramel.analyzers.cost.simulate import simulate_on
    from caramel.analyzers.optimal.prediction import predict
    from caramel.analyzers.optimal.search import Packing, optimal_buckets, optimal_packing, pack
    from caramel.analyzers.policies.batching import fixed, mg_wfbp, paper_batching, single
    from caramel.analyzers.policies.best_order import best_order
    from caramel.analyzers.policies.best_packing import best_packing
    from caramel.analyzers.policies.control_edges import enforced_order, no_serialization, serialization
    from caramel.analyzers.policies.credit_packing import bytescheduler, p3
    from caramel.analyzers.policies.order import greedy_order, order_by_cost, order_of
    from caramel.analyzers.policies.packing import backward_only, paper_packing, priority
    from caramel.analyzers.policies.transfers import adaptive_depth, as_they_are
    from caramel.analyzers.registry import POLICIES, automatic_analyzers, known, listed_analyzers
    from caramel.analyzers.step.boundaries import boundaries, find_boundaries
    from caramel.analyzers.step.dependencies import dependencies, find_dependencies
    from caramel.analyzers.step.op_times import given_trace, unmeasured

__all__ = [
    "adaptive_depth",
    "analyse",
    "Analyzer",
    "as_they_are",
    "automatic_analyzers",
    "backward_only",
    "best_order",
    "best_packing",
    "boundaries",
    "Bounds",
    "bytescheduler",
    "dependencies",
    "enforced_order",
    "find_boundaries",
    "find_dependencies",
    "fixed",
    "given_trace",
    "greedy_order",
    "known",
    "listed_analyzers",
    "lower_bounds",
    "mg_wfbp",
    "Network",
    "no_serialization",
    "optimal_buckets",
    "optimal_packing",
    "order_by_cost",
    "order_of",
    "ordered",
    "p3",
    "pack",
    "Packing",
    "paper_batching",
    "paper_packing",
    "POLICIES",
    "Policy",
    "predict",
    "priority",
    "serialization",
    "simulate_on",
    "single",
    "unmeasured",
    "WANTED",
]

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
