"""What is switched on in this process that makes TensorFlow round otherwise than the graph says."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from tensorflow.python.training.experimental import mixed_precision_global_state

from caramel.errors import InputError

_MIXED_PRECISION_VARIABLES = ("TF_ENABLE_AUTO_MIXED_PRECISION", "TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE")
"""Environment variables with which TensorFlow computes parts of every graph in 16 bits."""

_AUTO_JIT = re.compile(r"--tf_xla_auto_jit=(?!0\b|-1\b)(\S+)")
"""Option with which XLA compiles parts of every graph, and adds in an order of its own."""


def rounding_rewrites(environment: Mapping[str, str] | None = None) -> list[str]:
    """What rewrites all graphs of this process so that results are rounded otherwise, as nouns for messages.

    Args:
        environment: environment variables; default: those of this process, which servers of its own inherit.
    """
    variables = os.environ if environment is None else environment
    found = [
        f"automatic mixed precision ({name}=1)" for name in _MIXED_PRECISION_VARIABLES if variables.get(name) == "1"
    ]
    if mixed_precision_global_state.is_mixed_precision_graph_rewrite_enabled():
        found.append("automatic mixed precision (enable_mixed_precision_graph_rewrite)")
    for option in _AUTO_JIT.finditer(variables.get("TF_XLA_FLAGS", "")):
        found.append(f"XLA (TF_XLA_FLAGS has {option.group(0)})")
    return found


def refuse_rounding_rewrites() -> None:
    """Refuse to train in deterministic mode where the bits of sums are not those that the graph says.

    Raises:
        InputError: something is switched on.
    """
    if found := rounding_rewrites():
        raise InputError(
            f"deterministic=True promises sums in rank order, bit for bit, but {' and '.join(found)} is switched on, "
            "which rounds otherwise: switch it off, or compile without deterministic=True"
        )
