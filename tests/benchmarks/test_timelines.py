"""Where the time of a step goes: from intervals made by hand, and from a step of two workers."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.timelines import account, carried, contended_s, figure, table
from benchmarks.training.timeline import Message, Step, Work, step_of
from caramel.measure.step_stats import step_of as traced_step_of

RATE = 1000.0
START_NS = 5_000_000_000

works = st.lists(
    st.builds(
        lambda rank, start, length: Work(rank, "forward", start / 8, (start + length) / 8),
        st.integers(0, 3),
        st.integers(0, 40),
        st.integers(1, 20),
    ),
    max_size=12,
)
messages = st.lists(
    st.builds(lambda size, end: Message(0, 1, size, end / 8), st.integers(1, 3000), st.integers(1, 80)), max_size=10
)


@given(messages)
def test_links_carry_messages_one_after_the_other_and_as_late_as_they_can(sent):
    found = carried(sent, RATE)
    assert sorted(each.message.size_bytes for each in found) == sorted(each.size_bytes for each in sent)
    for each, later in zip(found, [*found[1:], None]):
        assert each.end_s - each.start_s == pytest.approx(each.message.size_bytes / RATE)
        latest_s = each.message.end_s if later is None else min(each.message.end_s, later.start_s)
        assert each.end_s == latest_s


@given(works, st.sampled_from([[(0,), (1,), (0,), (1,)], [(0,), (0,), (0,), (0,)], [(0, 1), (2, 3), (0, 1), (2, 3)]]))
def test_processors_are_contended_when_each_core_has_an_op(found, homes):
    contended = contended_s(found, homes)
    assert all(end_s > start_s for start_s, end_s in contended)
    assert all(first[1] < second[0] for first, second in zip(contended, contended[1:]))
    for eighth in range(61):
        at_s = eighth / 8 + 1 / 16
        counts = {home: sum(w.start_s <= at_s < w.end_s for w in found if homes[w.rank] == home) for home in set(homes)}
        expected = all(count >= len(home) for home, count in counts.items())
        assert any(start_s <= at_s < end_s for start_s, end_s in contended) == expected


def test_a_step_is_accounted_for():
    """Two workers on one core each; links of 1000 bytes per second."""
    step = Step(
        (
            Work(0, "forward", 0.0, 1.0),
            Work(1, "forward", 0.0, 1.5),
            Work(0, "backward", 2.0, 3.0),
            Work(1, "transfer", 2.5, 4.0),
        ),
        (Message(0, 0, 500, 1.25), Message(1, 0, 500, 3.0), Message(1, None, 250, 4.0)),
        4.0,
    )
    found = account(step, [(0,), (1,)], RATE)
    assert found.step_s == 4.0
    assert found.carried_s == pytest.approx((0.5 + 0.75) / 2)
    # Both compute from 0 to 1 and from 2.5 to 3; worker 0 receives from 0.75 on, worker 1 from 2.5 on.
    assert found.idle_contended_s == pytest.approx(((0.75 + 0.5) + (1.0 + 0.0)) / 2)
    assert found.carried_s + found.idle_contended_s + found.idle_s == pytest.approx(4.0)
    assert found.computed_s == 3.0
    assert table([found]).splitlines()[-1] == "| 4000 | 625 | 1125 | 2250 | 3000 |"


def metadata(device_rows):
    from tensorflow.core.protobuf import config_pb2

    made = config_pb2.RunMetadata()
    for device, rows in device_rows.items():
        stats = made.step_stats.dev_stats.add(device=device)
        for name, label, start_us, time_us, size in rows:
            node = stats.node_stats.add(node_name=name, timeline_label=label)
            node.all_start_micros = START_NS // 1000 + start_us
            node.op_end_rel_micros = node.all_end_rel_micros = time_us
            if size:
                node.output.add().tensor_description.allocation_description.requested_bytes = size
    return made.SerializeToString()


def test_ops_and_messages_are_told_apart():
    device = "/job:worker/replica:0/task:{}/device:CPU:0".format
    label = "[0.1MB] [62.8Mb/s] edge_3_{} from {} to {}".format
    step = step_of(
        traced_step_of(
            metadata(
                {
                    device(0): [("worker_0/Relu", "worker_0/Relu = Relu(x)", 1000, 500, 0)],
                    device(1): [
                        ("worker_1/gradient_tape/MatMul", "", 2000, 250, 0),
                        ("caramel/transfer_12/sum_1", "", 3000, 100, 0),
                        ("RecvTensor", label("caramel/transfer_12/sum_1", device(0), device(1)), 500, 4000, 124_416),
                        ("RecvTensor", label("worker_1/loss", device(0), device(1)), 500, 100, 4),
                        ("RecvTensor", label("worker_1/loss", device(1), device(1)), 500, 100, 4),
                    ],
                }
            )
        ),
        START_NS,
    )
    assert step.works == (
        Work(0, "forward", 0.001, 0.0015, "worker_0/Relu"),
        Work(1, "backward", 0.002, 0.00225, "worker_1/gradient_tape/MatMul"),
        Work(1, "transfer", 0.003, 0.0031, "caramel/transfer_12/sum_1"),
    )
    assert step.messages == (Message(1, None, 4, 0.0006), Message(1, 12, 124_416, 0.0045))
    assert step.step_s == 0.0045


def test_a_step_is_drawn(tmp_path):
    step = Step(
        (Work(0, "forward", 0.0, 1.0), Work(1, "backward", 0.5, 1.5)),
        (Message(0, 0, 500, 1.25), Message(1, 3, 500, 1.0), Message(1, None, 20, 1.5)),
        1.5,
    )
    drawn = figure(step, [(0,), (1,)], RATE, "a title")
    drawn.savefig(tmp_path / "step.png")
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == [
        "forward",
        "backward",
        "update",
        "transfer",
        "transfer 0",
        "transfer 3",
        "processors",
    ]
    lanes, threads = drawn.axes
    assert [label.get_text() for label in lanes.get_yticklabels()] == [
        "worker 0 computes",
        "its link carries",
        "worker 1 computes",
        "its link carries",
    ]
    assert list(threads.lines[0].get_ydata()) == [1, 2, 1, 0]


@pytest.mark.processes
def test_traced_steps_have_all_that_workers_send():
    """Of each gradient a worker receives 2 (N - 1) / N of its bytes."""
    from benchmarks.training.ours import captured
    from benchmarks.training.timeline import traced_steps
    from benchmarks.training.workloads import BY_NAME
    from caramel import ARModel
    from caramel.netmodel.model import NetworkModel
    from caramel.runtime.clusters.local_processes import LocalProcesses

    workers = 2
    workload = dataclasses.replace(BY_NAME["mlp"], examples=16)
    model = ARModel(captured(workload), workers, network=NetworkModel.from_costs(1e-4, 1e-8))
    with model.session(LocalProcesses()) as session:
        steps = traced_steps(session, 2)
    size = sum(4 * np.prod(each.shape) for each in workload.parameters.values())
    for step in steps:
        for rank in range(workers):
            received = sum(m.size_bytes for m in step.messages if m.rank == rank and m.transfer is not None)
            assert received == pytest.approx(2 * (workers - 1) / workers * size, rel=1e-3)
            assert {w.kind for w in step.works if w.rank == rank} >= {"forward", "backward", "update"}
        assert all(0 < m.end_s <= step.step_s for m in step.messages)
        assert {m.transfer for m in step.messages} - {None} == set(range(len(model.plan.transfers)))


def test_a_step_needs_no_messages():
    found = account(Step((Work(0, "update", 0.0, 0.5),), (), 0.5), [(0,)], RATE)
    assert (found.carried_s, found.idle_contended_s, found.idle_s, found.computed_s) == (0.0, 0.5, 0.0, 0.0)
