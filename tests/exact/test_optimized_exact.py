"""A step that is optimised once for all workers: the bits that TensorFlow's optimizers give on the graph of all."""

import itertools

import exact_keras as k
import exact_tf1 as v1
import numpy as np
import pytest
from exact_common import LOCAL, RTOL, SERIAL, Case, assert_same, in_process, train
from exact_common import batches as plain_batches
from exact_matrix import FEATURE, OPTIMIZERS, batches, program
from exact_plans import random_plan
from exact_steps import fresh, values_of
from variants import in_soak, mostly_in_soak

import caramel
from caramel.runtime.host.run_options import RunOptions

ONE_AT_A_TIME = RunOptions(intra_op_threads=1, inter_op_threads=1)


class ByItself(caramel.InProcess):
    """A cluster on which TensorFlow optimises the graph of all workers."""

    def as_written(self):
        return None


def trained(make, data, workers, seed, cluster):
    """Losses and values of a training under a random plan, and how many nodes its session has."""
    made = fresh(make)
    context = caramel.capture(made.step, made.specs, **made.options)
    armodel = caramel.ARModel(context, workers, plan=random_plan(context, workers, seed, deterministic=True))
    with armodel.session(cluster) as session:
        results = session.run(data, progress=False)
        session.write_back()
        nodes = len(session._distributed.graph_def.node)
    return [(r.loss, r.worker_losses, r.outputs) for r in results], values_of(made), nodes


def check(optimizer, feature, workers, seed):
    make, data = program(optimizer, feature), batches(FEATURE[feature], steps=4)
    results, got, nodes = trained(make, data, workers, seed, in_process(ONE_AT_A_TIME))
    want_results, want, all_nodes = trained(make, data, workers, seed, ByItself(ONE_AT_A_TIME))
    assert nodes < all_nodes
    np.testing.assert_equal(results, want_results)  # some losses are not numbers where a step overflows
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
    _, as_written, _ = trained(make, data, workers, seed, in_process(SERIAL))
    for name, value in as_written.items():
        np.testing.assert_allclose(got[name], value, rtol=RTOL, atol=RTOL, err_msg=name)


@pytest.mark.parametrize("optimizer", mostly_in_soak(sorted(OPTIMIZERS), "adam", "adafactor", "lamb"))
def test_optimizer(optimizer):
    check(optimizer, "schedule", 3, seed=1)


@pytest.mark.parametrize(
    "feature", mostly_in_soak(sorted(FEATURE), "everything", "loss_scaling", "embedding_clipped", "loop", "recurrent")
)
def test_feature(feature):
    check("momentum", feature, 2, seed=2)


@pytest.mark.parametrize("workers, seed", [(4, 3), *in_soak((5, 4), (8, 5))])
def test_numbers_of_workers(workers, seed):
    check("rmsprop", "branch", workers, seed)


@pytest.mark.parametrize(
    "kind, feature",
    [("keras", "dropout"), ("tf1", "dropout"), *in_soak(*itertools.product(["keras", "tf1"], ["norm", "tied"]))],
)
def test_what_is_local_to_workers(kind, feature):
    assert feature in (*LOCAL, "tied")
    kind = {"keras": k, "tf1": v1}[kind]
    case = Case("adam", (feature,), "float32")
    data = plain_batches(11, case.dtype, steps=5)
    got, want = (
        trained_case(kind, case, data, cluster) for cluster in (in_process(ONE_AT_A_TIME), ByItself(ONE_AT_A_TIME))
    )
    assert_same(got, want)


def trained_case(kind, case, data, cluster):
    context, made = kind.capture(case)
    with caramel.ARModel(context, 3, deterministic=True).session(cluster) as session:
        feed = made.feed if kind is v1 else lambda batch: batch
        return train(session, [feed(batch) for batch in data])
