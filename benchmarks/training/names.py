"""Who takes part, by name; the order is that of tables and plots."""

from __future__ import annotations

from collections.abc import Mapping

COMPUTE = "compute"
COMPUTE_HOROVOD = "compute_horovod"
COMPUTE_IN_GRAPH = "compute_in_graph"

OURS = "caramel"

MIRRORED = "mwms"
MIRRORED_BEST = "mwms_best"
HOROVOD = "horovod"
HOROVOD_BEST = "horovod_best"

COMPUTATIONS: Mapping[str, str] = {
    COMPUTE: "computation alone",
    COMPUTE_HOROVOD: "computation alone, Horovod's TensorFlow",
    COMPUTE_IN_GRAPH: "computation alone, in one graph",
}
"""Training without any reduction: each worker on its own, so that its losses are not those of the others."""

PEERS: Mapping[str, str] = {
    MIRRORED: "MultiWorkerMirrored",
    MIRRORED_BEST: "MultiWorkerMirrored, swept",
    HOROVOD: "Horovod",
    HOROVOD_BEST: "Horovod, swept",
    "tf_collectives": "TensorFlow's all-reduces",
    "ps_all": "parameter servers on all hosts",
    "ps_half": "parameter servers on half of the hosts",
}

SWEPT: Mapping[str, str] = {MIRRORED_BEST: MIRRORED, HOROVOD_BEST: HOROVOD}
"""The peers with chosen settings: what each is with its defaults."""

ABLATIONS: Mapping[str, str] = {
    "caramel_paper": "the paper's policy",
    "caramel_no_order": "no order enforced",
    "caramel_no_buckets": "no buckets",
    "caramel_no_forward": "no forward window",
    "caramel_no_choice": "one kind of all-reduce",
    "caramel_nothing": "none of these",
}
"""This library without one of its optimisations, or with other ones."""

VARIANTS: Mapping[str, str] = {
    "caramel_rings": "rings only",
    "caramel_whole": "whole tables",
    "caramel_owners": "tables at their owners",
    "caramel_sharded": "tables at their owners, sharded updates",
}
"""More plans of this library: for predictions, not for what is gained."""

ON_REQUEST = frozenset({COMPUTE_IN_GRAPH, *VARIANTS})
"""Who takes part only if they are named."""

TITLES: Mapping[str, str] = {**COMPUTATIONS, **PEERS, OURS: "this library", **ABLATIONS, **VARIANTS}


def computation_of(name: str) -> str:
    """Which contender computes the same with the same TensorFlow, and sends nothing.

    >>> computation_of("caramel"), computation_of("horovod_best")
    ('compute', 'compute_horovod')
    """
    return COMPUTE_HOROVOD if name in (COMPUTE_HOROVOD, HOROVOD, HOROVOD_BEST) else COMPUTE
