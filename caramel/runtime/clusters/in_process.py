"""Workers as virtual devices of this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from caramel.errors import InputError
from caramel.graph.devices import Device, InProcessPlacement, in_process_mapping, task_name
from caramel.runtime.clusters.base import Cluster, check_cluster, has_gpu, with_options
from caramel.runtime.executor import Executor, SessionExecutor, has_native_collectives
from caramel.runtime.host.local_gpus import LocalGpus
from caramel.runtime.host.run_options import RunOptions


@dataclass(frozen=True)
class InProcess(Cluster):
    """All workers are virtual devices of this process: no socket, no other process.

    Attributes:
        options: options with which TensorFlow runs the graph.

    Examples:
        >>> import caramel
        >>> caramel.InProcess(caramel.RunOptions(inter_op_threads=2)).options.inter_op_threads
        2
    """

    options: RunOptions = field(default_factory=RunOptions)
    is_elsewhere = False

    def start(self, graph_def: Any, devices: tuple[str, ...], timeout_s: float) -> Executor:
        """Place each worker on a virtual CPU device of its own (or a GPU that is here)."""
        gpus = LocalGpus.of_this_process()
        placement = in_process_mapping(devices, gpus.count)
        is_native = has_native_collectives(graph_def)
        places = {placement.place(text) for text in devices}
        shares = gpus.are_parts and any(Device.parse(place).type == "GPU" for place in places)
        if is_native and (len(places) < len(devices) or shares):
            raise InputError(
                f"{len(devices)} workers take turns on the GPUs that are here, and TensorFlow's own all-reduce "
                "('native') waits for ever unless each has a device of its own: use another algorithm"
            )
        config = self.options.config(placement.cpu_count, task_name("localhost", 0) if is_native else "")
        if gpus.options is not None:
            config.gpu_options.CopyFrom(gpus.options)
        return InProcessExecutor(graph_def, placement, config)

    def with_options(self, options: RunOptions) -> InProcess:
        """The same with other options."""
        return replace(self, options=options)

    def as_written(self) -> InProcess | None:
        """See `Cluster.as_written`."""
        return None if has_gpu() else with_options(self, self.options.as_written())

    def most_in_a_process(self, devices: Sequence[str]) -> int:
        """All of them."""
        return len(devices)


class InProcessExecutor(SessionExecutor):
    """A session on virtual devices of this process.

    Args:
        graph_def: GraphDef with the workers' own devices.
        placement: devices of this process that stand for the workers' own.
        config: ConfigProto of the session.
    """

    def __init__(self, graph_def: Any, placement: InProcessPlacement, config: Any) -> None:
        self._placement = placement
        # Otherwise the process's first session decides how many ops run at once; servers have threads of their own.
        config.use_per_session_threads = config.inter_op_parallelism_threads > 0
        super().__init__(self._placed(graph_def), "", config)

    def extend(self, graph_def: bytes) -> None:
        """Place and add nodes."""
        super().extend(self._placed(tf.compat.v1.GraphDef.FromString(graph_def)).SerializeToString())

    def _placed(self, graph_def: Any) -> Any:
        """A copy with devices of this process."""
        placed = type(graph_def)()
        placed.CopyFrom(graph_def)
        devices = {"": ""}
        for node in placed.node:
            if node.device not in devices:
                devices[node.device] = self._placement.place(node.device)
            node.device = devices[node.device]
        return placed


def cluster_or_default(cluster: Any) -> Cluster:
    """The cluster that a caller gave, or that of this process.

    Raises:
        InputError: it is none.
    """
    if cluster is None:
        return InProcess()
    check_cluster(cluster)
    return cluster  # type: ignore[no-any-return]
