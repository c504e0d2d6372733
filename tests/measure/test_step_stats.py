"""Step statistics: what counts as a run of an op, whose it is, and the orders in which gradients were ready."""

import pytest
from tensorflow.core.framework import step_stats_pb2, types_pb2
from tensorflow.core.protobuf import config_pb2

from caramel.errors import TraceError
from caramel.measure.step_stats import (
    Message,
    Row,
    TracedStep,
    parsed_rows,
    ready_orders,
    rows_by_node,
    with_all_messages,
)

CPU = "/job:worker/replica:0/task:0/device:CPU:0"


def statistics(*rows):
    """Serialized RunMetadata with rows (device, fields of NodeExecStats)."""
    metadata = config_pb2.RunMetadata()
    for device, fields in rows:
        entry = metadata.step_stats.dev_stats.add(device=device)
        entry.node_stats.append(step_stats_pb2.NodeExecStats(**fields))
    return metadata.SerializeToString()


def timed(name, start=1_000_000, ready=2_000, end=3_000, **fields):
    return {
        "node_name": name,
        "all_start_nanos": start,
        "op_end_rel_nanos": ready,
        "all_end_rel_nanos": end,
        "timeline_label": f"[4B mklcpu] {name} = MatMul(a, b)",
        **fields,
    }


def output(slot, dtype, *dims):
    found = step_stats_pb2.NodeOutput(slot=slot)
    found.tensor_description.dtype = dtype
    for size in dims:
        found.tensor_description.shape.dim.add(size=size)
    return found


# -- rows ----------------------------------------------------------------------------------------


def test_rows_in_order_of_start():
    rows = parsed_rows(statistics((CPU, timed("b", 2_000)), (CPU, timed("a", 2_000)), (CPU, timed("c", 1_000))))
    assert [row.node for row in rows] == ["c", "a", "b"]
    assert rows[0] == Row("c", CPU, 1_000, 3_000, 4_000, None)
    assert rows[0].time_s == 3e-6


def test_nanoseconds_where_there_are_any():
    micros = {"all_start_micros": 5, "op_end_rel_micros": 1, "all_end_rel_micros": 2}
    (row,) = parsed_rows(statistics((CPU, {"node_name": "a", **micros})))
    assert (row.start_ns, row.ready_ns, row.end_ns) == (5_000, 6_000, 7_000)
    (row,) = parsed_rows(statistics((CPU, timed("a", 5_100, 1_200, 2_300, **micros))))
    assert (row.start_ns, row.ready_ns, row.end_ns) == (5_100, 6_300, 7_400)


@pytest.mark.parametrize(
    ("device", "fields"),
    [
        (CPU, timed("RecvTensor")),
        (CPU, timed("edge_1", timeline_label=f"[2.7MB] [2.4Gb/s] edge_16_split_1 from {CPU} to {CPU}")),
        ("/host:CPU", timed("memcpy")),
        ("/device:GPU:0/stream:all", timed("kernel")),
        ("/device:GPU:0/stream:12", timed("kernel")),
        ("/device:GPU:0/memcpy", timed("copy")),
        ("", timed("nowhere")),
    ],
)
def test_what_is_no_op(device, fields):
    assert [row.node for row in parsed_rows(statistics((device, fields), (CPU, timed("op"))))] == ["op"]


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ([output(0, types_pb2.DT_FLOAT, 3, 5)], 60),
        ([output(1, types_pb2.DT_FLOAT, 9), output(0, types_pb2.DT_DOUBLE, 2)], 16),
        ([output(0, types_pb2.DT_BFLOAT16)], 2),
        ([output(0, types_pb2.DT_FLOAT, 0, 7)], 0),
        ([output(0, types_pb2.DT_FLOAT_REF, 3)], 12),
        ([output(1, types_pb2.DT_FLOAT, 9)], None),
        ([output(0, types_pb2.DT_RESOURCE)], None),
        ([output(0, types_pb2.DT_STRING, 3)], None),
        ([output(0, types_pb2.DT_FLOAT, -1, 3)], None),
        ([], None),
    ],
)
def test_bytes_of_the_first_output(outputs, expected):
    (row,) = parsed_rows(statistics((CPU, timed("a", output=outputs))))
    assert row.output_bytes == expected


def test_nothing_and_damage():
    assert parsed_rows(b"") == ()
    with pytest.raises(TraceError, match="trace anew"):
        parsed_rows(b"\xff\xff\xff")


# -- whose they are ------------------------------------------------------------------------------


def row(node, ready=0):
    return Row(node, CPU, 0, ready, ready, None)


def test_nodes_of_replicas():
    nodes = {"a": False, "scope/a": False, "call": True, "call_1": False, "loop": True}
    names = {
        "worker_0/a": (0, "a"),
        "worker_12/scope/a": (12, "scope/a"),
        "worker_0/call": (0, "call"),
        "worker_0/call/inner/MatMul": (0, "call"),
        "worker_0/loop/merge_1": (0, "loop"),
        "worker_0/call_1/inner": None,
        "worker_0/scope/b": None,
        "worker_0/unknown": None,
        "caramel/worker_0/step": None,
        "a": None,
        "worker_x/a": None,
    }
    for name, expected in names.items():
        assert list(rows_by_node([row(name)], nodes)) == ([] if expected is None else [expected]), name


def test_all_rounds_of_a_loop():
    rows = [row("worker_0/a", 1), row("worker_1/a", 2), row("worker_0/a", 3)]
    assert rows_by_node(rows, {"a": False}) == {(0, "a"): [rows[0], rows[2]], (1, "a"): [rows[1]]}


# -- orders --------------------------------------------------------------------------------------


def step(**ready):
    """A step of nodes ``w0_x``: worker 0's ``x``, by when they were ready."""
    return TracedStep(tuple(row(f"worker_{name[1]}/{name[3:]}", time) for name, time in ready.items()))


PRODUCERS = {"first": ["a"], "second": ["b"]}


def test_one_order_everywhere():
    found = ready_orders([step(w0_a=1, w0_b=2, w1_a=5, w1_b=9), step(w0_a=3, w0_b=4, w1_a=1, w1_b=2)], PRODUCERS, 2)
    assert found.orders == ((("first", "second"),) * 2,) * 2
    assert found.distinct == (1, 1)
    assert found.common == ("first", "second")
    assert found.missing == ((), ())


def test_two_orders_on_one_worker():
    found = ready_orders([step(w0_a=1, w0_b=2, w1_a=5, w1_b=9), step(w0_a=1, w0_b=2, w1_a=3, w1_b=2)], PRODUCERS, 2)
    assert found.distinct == (1, 2)
    assert found.orders[1] == (("first", "second"), ("second", "first"))
    assert found.common is None


def test_workers_that_differ_from_each_other():
    found = ready_orders([step(w0_a=1, w0_b=2, w1_a=5, w1_b=3)], PRODUCERS, 2)
    assert found.distinct == (1, 1)
    assert found.common is None


def test_the_last_producer_and_the_last_round_count():
    producers = {"first": ["a", "c"], "second": ["b"]}
    assert ready_orders([step(w0_a=1, w0_b=2, w0_c=3)], producers, 1).common == ("second", "first")
    rounds = TracedStep((row("worker_0/a", 1), row("worker_0/b", 2), row("worker_0/a", 3)))
    assert ready_orders([rounds], PRODUCERS, 1).common == ("second", "first")


def test_ties_keep_the_given_order():
    assert ready_orders([step(w0_a=1, w0_b=1)], {"z": ["a"], "y": ["b"]}, 1).common == ("z", "y")


def test_what_is_missing():
    producers = {"first": ["a", "c"], "second": ["b"], "third": ["d"], "none": []}
    found = ready_orders([step(w0_a=1, w0_b=2, w0_c=3, w0_d=1, w1_b=1), step(w0_a=1, w0_b=2)], producers, 2)
    assert found.orders == ((("second", "first"), ("first", "second")), ((), ()))  # c may be a part of a
    assert found.missing == (("third", "none"), ("first", "second", "third", "none"))
    assert found.distinct == (2, 0)
    nothing = ready_orders([step(w0_x=1)] * 2, producers, 1)
    assert (nothing.distinct, nothing.common) == ((0,), None)
    assert (ready_orders([], producers, 1).distinct, ready_orders([], producers, 1).common) == ((0,), None)


def test_steps_with_fewer_messages_than_others_lack_some():
    """TensorFlow may list a message twice, and may miss what a whole worker has received."""
    a, b = (Message(tensor, "from", "to", 1, 2, 4) for tensor in "ab")
    full, twice, short, none = (TracedStep((), None, messages) for messages in [(a, b), (b, a), (a, a), ()])
    assert with_all_messages([short, full, none, twice]) == [full, twice]
    assert with_all_messages([none]) == [none]
