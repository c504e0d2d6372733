"""Options with which TensorFlow runs a graph, in a session or in a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from caramel.runtime.host.environment import usable_cores

TRANSFER_THREADS = 6
"""Number of threads that a server has besides those that compute.

Sums and copies of a transfer are ops like all others: where every thread computes, they wait until an op of the
computation ends, and the network with them. Measured with two threads on a step with two ops at a time (VGG-like, 4
hosts, as much time on the network as computing): 1.06 s, and 0.80 s with two threads more. Where nothing is to be
computed, more threads cost nothing.
"""


@dataclass(frozen=True)
class RunOptions:
    """Options with which TensorFlow runs the graph.

    Attributes:
        optimize_graph: whether TensorFlow's graph optimizers (grappler) run.
        intra_op_threads: number of threads inside one op; 0 lets TensorFlow choose. A process has one pool of
            them, made when TensorFlow first runs something in it: for `InProcess` this comes too
            late where that was before.
        inter_op_threads: number of ops at the same time, in a pool of the session's own; 0 leaves it to TensorFlow
            and the one pool that a process has for all other sessions.
        transfer_threads: number of further threads that a server has; see `TRANSFER_THREADS`.

    Examples:
        >>> import caramel
        >>> caramel.RunOptions(optimize_graph=False).config().graph_options.rewrite_options.disable_meta_optimizer
        True
    """

    optimize_graph: bool = True
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    transfer_threads: int = TRANSFER_THREADS

    def config(self, cpu_devices: int = 1, group_leader: str = "") -> Any:
        """The ConfigProto.

        Args:
            cpu_devices: number of virtual CPU devices.
            group_leader: name of the task that coordinates TensorFlow's own collective ops, if there are any.
        """
        config = tf.compat.v1.ConfigProto(
            allow_soft_placement=True,
            device_count={"CPU": cpu_devices},
            intra_op_parallelism_threads=self.intra_op_threads,
            inter_op_parallelism_threads=self.inter_op_threads,
        )
        # The other settings stay TensorFlow's own, so that graphs are rewritten, and results rounded, as on one device.
        config.graph_options.rewrite_options.disable_meta_optimizer = not self.optimize_graph
        config.experimental.collective_group_leader = group_leader
        return config

    def server_config(self, cpu_devices: int = 1, group_leader: str = "") -> Any:
        """The ConfigProto of a server; see `config`."""
        config = self.config(cpu_devices, group_leader)
        config.inter_op_parallelism_threads = (self.inter_op_threads or usable_cores()) + self.transfer_threads
        return config
