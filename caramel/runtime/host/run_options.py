"""Options with which TensorFlow runs a graph, in a session or in a server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from caramel.plan import TRANSFER_THREADS
from caramel.runtime.host.environment import usable_cores


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
        transfer_threads: number of further threads that a server has; None for as many as the plan says, see
            `caramel.Plan.transfer_threads`, where a server is started for it, and else `TRANSFER_THREADS`.

    Examples:
        >>> import caramel
        >>> caramel.RunOptions(optimize_graph=False).config().graph_options.rewrite_options.disable_meta_optimizer
        True
    """

    optimize_graph: bool = True
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    transfer_threads: int | None = None

    @classmethod
    def with_threads(cls, threads: int | None) -> RunOptions:
        """The options of servers that run so many ops at once.

        Args:
            threads: number of threads; None for one for each core, and those for transfers.
        """
        return cls() if threads is None else cls(inter_op_threads=threads, transfer_threads=0)

    def as_written(self) -> RunOptions:
        """The same options for a graph that is to run as it is."""
        return replace(self, optimize_graph=False)

    def for_transfers(self, threads: int) -> RunOptions:
        """The same options with a number of further threads, if they have none.

        Args:
            threads: number of threads that a server has besides those that compute.
        """
        return replace(self, transfer_threads=threads) if self.transfer_threads is None else self

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
        further = TRANSFER_THREADS if self.transfer_threads is None else self.transfer_threads
        config.inter_op_parallelism_threads = (self.inter_op_threads or usable_cores()) + further
        return config
