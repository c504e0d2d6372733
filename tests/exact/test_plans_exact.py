"""Whatever a plan says, the result is that of one device."""

import exact_keras as k
import exact_tf1 as v1
import pytest
from exact_common import LOCAL, SERIAL, Case, assert_equivalent, assert_same, batches, in_process, train
from exact_plans import random_plan
from variants import in_soak

import caramel
from caramel.facts import BACKWARD, FORWARD

STEPS = 4


def named(value):
    return {v1: "tf1", k: "keras"}.get(value, value)


def run(kind, case, workers, seed, data, cluster=None, **options):
    context, program = kind.capture(case)
    if seed is None:
        armodel = caramel.ARModel(context, workers, deterministic=True)
    else:
        plan = random_plan(context, workers, seed, **options)
        armodel = caramel.ARModel(context, workers, plan=caramel.Plan.from_json(plan.to_json()))
    feed = program.feed if kind is v1 else lambda batch: batch
    with armodel.session(cluster or in_process()) as session:
        return armodel.plan, train(session, [feed(batch) for batch in data])


@pytest.mark.parametrize(
    "kind, seed",
    [(v1, 3), *in_soak(*((kind, seed) for kind in (v1, k) for seed in (0, 1, 3) if (kind, seed) != (v1, 3)))],
    ids=named,
)
def test_any_plan_gives_the_same_bits_in_rank_order(kind, seed):
    case = Case("momentum" if seed % 2 else "adam", ("schedule", "decay", "tied", *LOCAL), "float32")
    workers = 2 + seed % 3
    data = batches(12, case.dtype, steps=STEPS)
    # Of Keras, single ops of the micro-batches' tf.function round otherwise; what is not planned is equal to them.
    want = v1.MicroBatches(case, workers).train(data) if kind is v1 else run(kind, case, workers, None, data)[1]
    plan, got = run(kind, case, workers, seed, data, deterministic=True)
    assert_same(got, want)
    assert len(plan.proof) == 3 + bool(plan.postponed)


@pytest.mark.parametrize("kind, seed", [(v1, 6), (v1, 8), *in_soak((v1, 11), (k, 6), (k, 8), (k, 11))], ids=named)
def test_any_plan_equals_one_device(kind, seed):
    case = Case("adam" if seed % 2 else "momentum", ("schedule", "decay", "tied"))
    workers = 2 + seed % 4
    data = batches(11, case.dtype, steps=STEPS)
    want = kind.OneDevice(case).train(data)
    _, got = run(kind, case, workers, seed, data)
    assert_equivalent(got, want)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("kind", [pytest.param(v1, id="tf1"), pytest.param(k, id="keras", marks=pytest.mark.soak)])
def test_on_server_processes(kind):
    case = Case("adam", ("schedule", "decay", "tied", *LOCAL), "float32")
    data = batches(12, case.dtype, steps=STEPS)
    cluster = caramel.LocalProcesses(options=SERIAL)
    _, want = run(kind, case, 3, None, data, cluster)
    plan, got = run(kind, case, 3, 3, data, cluster, deterministic=True)
    assert plan.postponed and plan.edges
    assert_same(got, want)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 200))
@pytest.mark.parametrize("kind", [v1, k], ids=["tf1", "keras"])
def test_many_plans(kind, seed):
    case = Case("adam" if seed % 2 else "momentum", ("schedule", "decay", "tied"))
    workers = 2 + seed % 4
    data = batches(11, case.dtype, steps=STEPS)
    _, got = run(kind, case, workers, seed, data)
    assert_equivalent(got, kind.OneDevice(case).train(data))


def test_the_random_plans_are_of_every_kind():
    """Otherwise the tests above would test little."""
    context, _ = v1.capture(Case("adam", ("schedule", "decay", "tied"), "float32"))
    plans = [random_plan(context, 3, seed) for seed in range(12)]
    windows = {t.window for p in plans for t in p.transfers}
    assert windows == {"forward", "backward"}
    assert any(len(t.pieces) > 1 for p in plans for t in p.transfers)
    split = [pieces for p in plans for pieces in p.pieces.values() if len(pieces) > 1]
    assert any({window for _, window in pieces} == windows for pieces in split)
    assert any({window for _, window in pieces} == {FORWARD} for pieces in split)
    for window in (FORWARD, BACKWARD):
        assert {p.in_flight.most(window) for p in plans} == {None, 1, 2, 3}
    assert len({t.algorithm for p in plans for t in p.transfers}) == 6
