"""The version of TensorFlow that a server has, which any server can be asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_VERSION = re.compile(r"for TensorFlow (\S+?)\.?\s")
"""How TensorFlow names itself where it refuses a graph of a later version."""


class VersionQuestion:
    """An op of the current graph to which a server answers with its version.

    A server refuses a graph of a later version, and says in which version that is.
    """

    def __init__(self) -> None:
        graph_def = tf.compat.v1.GraphDef()
        graph_def.versions.producer = 1
        graph_def.versions.min_consumer = 2**31 - 1
        self._op = tf.raw_ops.DatasetFromGraph(graph_def=graph_def.SerializeToString()).op

    def ask(self, run: Callable[[Any], Any]) -> str | None:
        """The version, such as ``"2.21.0"``; None where the server does not say it.

        Args:
            run: function that runs an op on the server.

        Raises:
            tf.errors.OpError: it does not answer.
        """
        try:
            run(self._op)
        except tf.errors.InvalidArgumentError as error:
            found = _VERSION.search(error.message + " ")
            return None if found is None else found[1]
        return None
