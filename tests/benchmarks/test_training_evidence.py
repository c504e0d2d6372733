"""What a cell's steps were predicted from is kept beside its record, whole."""

import dataclasses

import pytest

from benchmarks.training.evidence import Evidence, folder_of, keep, timeline
from benchmarks.training.records import Cell
from benchmarks.training.timeline import Message, Step, Work, traced_steps
from benchmarks.training.workloads import BY_NAME
from caramel import ARModel
from caramel.facts import Trace
from caramel.measure.step_stats import parsed_messages
from caramel.measure.trace_file import load_trace
from caramel.netmodel.file import load
from caramel.netmodel.model import NetworkModel
from caramel.plan import Plan

TRACE = Trace(
    "digest", {"MatMul": 2e-3}, {"MatMul": 4096}, 3e-3, 2e-3, 10, 1, 32, "by hand", op_least_s={"MatMul": 1e-3}
)
CELL = Cell("mlp", 4, 0.5)


def test_each_cell_has_a_folder_beside_the_record():
    first, second = folder_of("some/training.json", CELL), folder_of("some/training.json", Cell("mlp", 4, 1.0))
    assert first != second
    assert first.parent == second.parent and str(first.parent) == "some/training_cells"


def test_a_step_comes_back_without_its_shortest_ops(tmp_path):
    works = (Work(0, "forward", 0.0, 1.0, "worker_0/a"), Work(1, "backward", 1.0, 1.00001, "worker_1/b"))
    step = Step(works, (Message(1, 0, 4096, 0.5), Message(0, None, 4, 0.75)), 1.5)
    keep(Evidence(TRACE, NetworkModel.from_link_rate(1e6), {}, {"caramel": step}), tmp_path / "cell")
    assert timeline(tmp_path / "cell", "caramel") == dataclasses.replace(step, works=works[:1])


@pytest.mark.soak  # as test_traced_steps_have_all_that_workers_send
@pytest.mark.processes
def test_all_of_it_is_what_was_planned_and_traced(tmp_path):
    from benchmarks.training.ours import captured
    from caramel.runtime.clusters.local_processes import LocalProcesses

    context = captured(dataclasses.replace(BY_NAME["mlp"], examples=16))
    network = NetworkModel.from_costs(1e-4, 1e-8)
    model = ARModel(context, 2, network=network)
    metadata = []
    with model.session(LocalProcesses()) as session:
        (step,) = traced_steps(session, 1)

        def run(*call):
            values, raw = session.executor.run_traced(*call)
            metadata.append(raw)
            return values

        session.step_by(run)
    keep(Evidence(TRACE, network, {"caramel": model.plan}, {"caramel": step}), tmp_path)
    assert load_trace(tmp_path / "trace.json") == TRACE
    assert load(tmp_path / "network.json") == network
    assert Plan.load(tmp_path / "caramel.plan.json").digest == model.plan.digest
    kept = timeline(tmp_path, "caramel")
    assert kept.messages == step.messages and kept.step_s == step.step_s
    assert {work.node for work in kept.works} <= {work.node for work in step.works}
    messages = parsed_messages(metadata[0])
    assert messages and all(m.end_ns >= m.start_ns and m.source != m.target for m in messages)
