"""TensorFlow's statistics of a step: when each op ran, on which worker."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from caramel.errors import InputError, TraceError
from caramel.graph.devices import Device
from caramel.modifiers.emission import replica_name

if TYPE_CHECKING:
    from caramel.runtime.session import Session
    from caramel.runtime.step_result import StepResult


_MESSAGE_LABEL = re.compile(r"\[[^]]*\] \[[^]]*b/s\] (\S+) from (\S+) to (\S+)")
"""Label of a message between devices: size, speed, the tensor, and the devices."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run of one node. An op in a loop has several in a step.

    Attributes:
        node: name of the node in the distributed graph.
        device: device on which it ran.
        start_ns: time at which a thread took it, in nanoseconds of that device's clock.
        ready_ns: time at which its outputs existed, by the same clock.
        end_ns: time at which the thread was free again, by the same clock.
        output_bytes: bytes of its first output; None where that is no tensor of numbers.
    """

    node: str
    device: str
    start_ns: int
    ready_ns: int
    end_ns: int
    output_bytes: int | None

    @property
    def time_s(self) -> float:
        """Seconds that it took the thread."""
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Message:
    """A tensor that came from another device.

    Attributes:
        tensor: name of the node that made the tensor.
        source: device from which it came.
        target: device that received it.
        start_ns: time at which the receiver asked for it, in nanoseconds of the target's clock.
        end_ns: time at which it was there, by the same clock.
        size_bytes: bytes of the tensor.
    """

    tensor: str
    source: str
    target: str
    start_ns: int
    end_ns: int
    size_bytes: int


@dataclass(frozen=True)
class TracedStep:
    """A step, and the runs of nodes and the messages in it.

    Attributes:
        rows: runs of nodes, in the order in which they started, ties by name.
        result: result of the step.
        messages: tensors that came from other devices, in the order in which they arrived.
    """

    rows: tuple[Row, ...]
    result: StepResult | None = None
    messages: tuple[Message, ...] = ()

    @property
    def time_s(self) -> float:
        """Seconds from the start of its first op to the end of its last one; 0 without rows."""
        if not self.rows:
            return 0.0
        return (max(row.end_ns for row in self.rows) - min(row.start_ns for row in self.rows)) / 1e9


def median_step(steps: Sequence[TracedStep]) -> TracedStep:
    """The step of median length; of an even number the longer of both in the middle.

    Args:
        steps: traced steps, at least one.
    """
    return sorted(steps, key=lambda step: step.time_s)[len(steps) // 2]


def with_all_messages(steps: Sequence[TracedStep]) -> list[TracedStep]:
    """The steps of which as many messages are known as of any.

    TensorFlow asks its servers to log messages without waiting for their answers, before and after a step, so now and
    then a server that should log does not yet, or not any more, and a step lacks what it received.

    Args:
        steps: traced steps of one session, at least one.
    """
    counts = [len({(each.tensor, each.source, each.target) for each in step.messages}) for step in steps]
    return [step for step, count in zip(steps, counts) if count == max(counts)]


def traced_step(session: Session, *args: Any, **kwargs: Any) -> TracedStep:
    """Run one step of a session with full tracing.

    Where the session's cluster has graph optimizers on (the default), ops that they have joined, replaced or
    removed are missing or have other names (``caramel/worker_R/new/...``): use
    ``InProcess(RunOptions(optimize_graph=False))`` or the like.

    Args:
        session: session of an ARModel, or of a computation without communication.
        args: arrays; see `Session.step`.
        kwargs: arrays by name; see `Session.step`.

    Examples:
        >>> import tensorflow as tf
        >>> import caramel
        >>> w = tf.Variable([0.0, 0.0], name="w")
        >>> def step(x, y):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        ...     w.assign_sub(0.1 * tape.gradient(loss, w))
        ...     return loss
        >>> context = caramel.capture(step, [tf.TensorSpec([None, 2]), tf.TensorSpec([None])])

        >>> named = caramel.InProcess(caramel.RunOptions(optimize_graph=False))
        >>> with caramel.ARModel(context, 2).session(named) as session:
        ...     step = caramel.traced_step(session, [[1.0, 0.0], [0.0, 1.0]], [1.0, 2.0])
        >>> step.result.loss, sorted({row.node.split("/")[0] for row in step.rows} & {"worker_0", "worker_1"})
        (2.5, ['worker_0', 'worker_1'])
    """
    metadata_of_run: list[bytes] = []
    session.trace_next(metadata_of_run.append)
    result = session.step(*args, **kwargs)
    return step_of(metadata_of_run[0], result)


def step_of(metadata: bytes, result: StepResult | None = None) -> TracedStep:
    """A step from what TensorFlow says of it.

    Args:
        metadata: a serialized RunMetadata, see `caramel.Session.trace_next`.
        result: result of the step.

    Raises:
        TraceError: the metadata is damaged.
    """
    return TracedStep(parsed_rows(metadata), result, parsed_messages(metadata))


def parsed_rows(metadata: bytes) -> tuple[Row, ...]:
    """The runs of nodes in a serialized RunMetadata; those of GPU streams are left out.

    Raises:
        TraceError: it is damaged.
    """
    rows = [
        _row(device.device, node)
        for device in _device_stats(metadata)
        if _is_device(device.device)
        for node in device.node_stats
        if not _is_message(node)
    ]
    return tuple(sorted(rows, key=lambda row: (row.start_ns, row.node, row.end_ns)))


def parsed_messages(metadata: bytes) -> tuple[Message, ...]:
    """The messages between devices in a serialized RunMetadata.

    Raises:
        TraceError: it is damaged.
    """
    messages = []
    for device in _device_stats(metadata):
        for node in device.node_stats:
            label = _MESSAGE_LABEL.match(node.timeline_label)
            if label is not None:
                start, _, end = _times_ns(node)
                size = sum(output.tensor_description.allocation_description.requested_bytes for output in node.output)
                messages.append(Message(label[1], label[2], label[3], start, start + end, size))
    return tuple(sorted(messages, key=lambda message: (message.end_ns, message.tensor, message.target)))


def _device_stats(metadata: bytes) -> Iterable[Any]:
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import config_pb2

    try:
        return config_pb2.RunMetadata.FromString(metadata).step_stats.dev_stats
    except DecodeError as error:
        raise TraceError(f"what TensorFlow says of the step cannot be read: {error}; trace anew") from error


def _is_device(text: str) -> bool:
    """Whether ops run there; a stream of a GPU, or its copies, are entries of their own."""
    if "/stream:" in text:
        return False
    try:
        return Device.parse(text).type is not None
    except InputError:
        return False


def _is_message(node: Any) -> bool:
    """Whether a row is a tensor on its way; its label has size and speed, ``[2.7MB] [2.4Gb/s] edge from A to B``."""
    return node.node_name == "RecvTensor" or _MESSAGE_LABEL.match(node.timeline_label) is not None


def _times_ns(node: Any) -> tuple[int, int, int]:
    """When a node started; and how much later its outputs existed, and it had ended."""
    if node.all_start_nanos:
        return node.all_start_nanos, node.op_end_rel_nanos, node.all_end_rel_nanos
    return 1000 * node.all_start_micros, 1000 * node.op_end_rel_micros, 1000 * node.all_end_rel_micros


def _row(device: str, node: Any) -> Row:
    start, ready, end = _times_ns(node)
    return Row(
        sys.intern(node.node_name),
        sys.intern(device),
        start,
        start + ready,
        start + max(end, ready),
        _output_bytes(node),
    )


def _output_bytes(node: Any) -> int | None:
    import tensorflow as tf

    for output in node.output:
        if output.slot == 0:
            description = output.tensor_description
            dims = [d.size for d in description.shape.dim]
            dtype = tf.as_dtype(description.dtype).base_dtype if description.dtype else None
            if dtype is None or dtype in (tf.string, tf.resource, tf.variant) or description.shape.unknown_rank:
                return None
            return math.prod(dims) * dtype.size if all(d >= 0 for d in dims) else None
    return None


# -- by worker and node of the Model -----------------------------------------------------------

_REPLICA_NODE = re.compile(r"worker_(\d+)/(.+)")


def rows_by_node(rows: Iterable[Row], nodes: Mapping[str, bool]) -> Mapping[tuple[int, str], Sequence[Row]]:
    """Rows by worker and node of the Model.

    Args:
        rows: rows of a step.
        nodes: whether a node calls a function, by the node's name in the Model. TensorFlow may put the function's
            ops in its place, with its name as their scope; they belong to it.

    Returns:
        The rows of each (rank, node); rows of other nodes than a replica's are left out.
    """
    node_rows: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        match = _REPLICA_NODE.fullmatch(row.node)
        name = None if match is None else _node_of(match.group(2), nodes)
        if match is not None and name is not None:
            node_rows.setdefault((int(match.group(1)), name), []).append(row)
    return node_rows


def _node_of(name: str, nodes: Mapping[str, bool]) -> str | None:
    """The node that an op is, or the call that it is a part of."""
    if name in nodes:
        return name
    while "/" in name:
        name = name.rpartition("/")[0]
        if nodes.get(name):
            return name
    return None


# -- orders ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadyOrders:
    """The orders in which gradients were ready.

    Attributes:
        orders: names of gradients in the order in which they were ready, for each step of each worker.
        missing: names of gradients of which a step has no time, for each worker.
    """

    orders: tuple[tuple[tuple[str, ...], ...], ...]
    missing: tuple[tuple[str, ...], ...]

    @property
    def distinct(self) -> tuple[int, ...]:
        """Number of different orders on each worker; 0 where no gradient is in all steps."""
        return tuple(len(set(worker_orders) - {()}) for worker_orders in self.orders)

    @property
    def common(self) -> tuple[str, ...] | None:
        """The order, if it is one and the same in all steps on all workers."""
        distinct_orders = {order for worker_orders in self.orders for order in worker_orders}
        return (distinct_orders.pop() or None) if len(distinct_orders) == 1 else None


def ready_orders(steps: Iterable[TracedStep], producers: Mapping[str, Sequence[str]], workers: int) -> ReadyOrders:
    """The orders in which gradients were ready, on each worker and in each step.

    Args:
        steps: traced steps; as a generator, only one is kept at a time.
        producers: nodes that compute a gradient (`caramel.analyzers.policies.order.computing_ops_with_fused`), by its
            name; names of the Model. A gradient is ready when the last of its nodes is that has a row.
        workers: number of workers.

    Returns:
        The orders, of the gradients of which producers are in all steps of a worker; and the others. Gradients
        that are ready at the same time keep the order of ``producers``.

    Examples:
        >>> import caramel
        >>> from caramel.measure.step_stats import Row, TracedStep
        >>> rows = (Row("worker_0/a", "", 0, 10, 10, None), Row("worker_0/b", "", 5, 8, 8, None))
        >>> orders = caramel.ready_orders([TracedStep(rows)], {"first": ["a"], "second": ["b"]}, workers=1)
        >>> orders.common
        ('second', 'first')
    """
    ready = [_ready_ns(step, producers) for step in steps]
    orders, missing = [], []
    for rank in range(workers):
        gradients = [name for name in producers if all((rank, name) in times for times in ready)]
        missing.append(tuple(name for name in producers if name not in gradients))
        orders.append(tuple(tuple(sorted(gradients, key=lambda g, f=times: f[rank, g])) for times in ready))  # type: ignore[misc]
    return ReadyOrders(tuple(orders), tuple(missing))


def _ready_ns(step: TracedStep, producers: Mapping[str, Sequence[str]]) -> Mapping[tuple[int, str], int]:
    """Nanoseconds at which each gradient was ready on each worker, where the step has its time."""
    ended: dict[str, int] = {}
    for row in step.rows:
        ended[row.node] = max(ended.get(row.node, 0), row.ready_ns)
    ranks = {int(m.group(1)) for name in ended if (m := _REPLICA_NODE.fullmatch(name)) is not None}
    ready = {}
    for rank in ranks:
        for gradient, nodes in producers.items():
            times = [ended.get(replica_name(rank, node)) for node in nodes]
            known = [time for time in times if time is not None]
            if known:  # of ops that TensorFlow joins only one has a row
                ready[rank, gradient] = max(known)
    return ready
