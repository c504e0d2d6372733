"""The benchmark of schedulers: what it makes of what it has measured, and that contenders train alike."""

import math

import pytest

from benchmarks.schedulers import ALL_REDUCES, NO_SCHEDULE, OURS, SERVED, predictions_table, steps_table
from benchmarks.turns import compare_losses, in_turn
from caramel.errors import InvariantError


def cell(rho, **contenders):
    found = {
        name: {"times_s": times_s, "predicted_s": predicted_s, "losses": [1.0], "transfers": None}
        for name, (times_s, predicted_s) in contenders.items()
    }
    return {"network": "vgg16", "workers": 4, "servers": 4, "rho": rho, "contenders": found}


RECORD = {
    "cells": [
        cell(1.0, P3=([1.0, 1.2, 1.1], 1.2), WFBP=([2.0], None)),
        cell(0.5, P3=([0.5], 0.4), other=([0.8], 0.8)),
    ]
}


def test_steps_are_medians_with_what_was_predicted():
    assert steps_table(RECORD).splitlines()[0] == "| scheduler | vgg16, rho 1 | vgg16, rho 0.5 |"
    assert steps_table(RECORD).splitlines()[2:] == [
        "| P3 | 1100 (+9.1%) | 500 (-20.0%) |",
        "| WFBP | 2000 | - |",
        "| other | - | 800 (+0.0%) |",
    ]


def test_predictions_are_counted_where_there_are_any():
    assert predictions_table(RECORD).splitlines()[2:] == [
        "| P3 | 1 of 2 | -20.0% |",
        "| other | 1 of 1 | +0.0% |",
    ]


def test_losses_that_differ_are_refused():
    compare_losses("one", [1.0, 0.5], "other", [1.0, 0.5002])
    with pytest.raises(InvariantError, match="in step 2 the loss of one is 0.5, and that of other is 0.51"):
        compare_losses("one", [1.0, 0.5], "other", [1.0, 0.51])
    with pytest.raises(InvariantError, match="in step 1 the loss of one is nan"):
        compare_losses("one", [math.nan], "other", [1.0])


@pytest.mark.parametrize("name", ALL_REDUCES)
def test_each_scheduler_has_a_plan_and_its_prediction(name, pushing):
    import caramel

    context, trace = pushing
    network = caramel.NetworkModel.from_costs(1e-4, 1e-8)
    plan = caramel.ARModel(context, 4, network=network, **ALL_REDUCES[name](trace, network)).plan
    gradients = len(context.model.gradients)
    if name in (NO_SCHEDULE, "WFBP"):
        assert len(plan.transfers) == gradients
    if name == "SyncEASGD":
        assert len(plan.transfers) == 1
    if name in ("WFBP", "SyncEASGD", "MG-WFBP", NO_SCHEDULE):
        assert {transfer.window for transfer in plan.transfers} == {"backward"}
    assert plan.prediction.timeline.iteration_s >= trace.step_s


@pytest.fixture(scope="module")
def pushing():
    """A step of four layers, and a trace of it with a time for each op."""
    import numpy as np
    import tensorflow as tf

    import caramel
    from caramel.facts import Trace

    layers = [tf.Variable(tf.ones([16, 16]), name=f"layer{number}") for number in range(4)]

    def step(x):
        with tf.GradientTape() as tape:
            hidden = x
            for layer in layers:
                hidden = tf.tanh(hidden @ layer)
            loss = tf.reduce_mean(hidden**2)
        for layer, gradient in zip(layers, tape.gradient(loss, layers)):
            layer.assign_sub(0.1 * gradient)
        return loss

    context = caramel.capture(step, [tf.TensorSpec([None, 16])])
    rng = np.random.default_rng(0)
    op_s = {node.name: float(rng.integers(1, 90)) * 1e-5 for node in context.model.graph}
    step_s = sum(op_s.values())
    return context, Trace(context.model.digest, op_s, {}, step_s, step_s, 2, 1, None, "by hand")


def test_what_is_measured_is_measured():
    assert OURS in ALL_REDUCES and set(SERVED.values()) == {"none", "tic", "tac", "best"}


def test_each_round_begins_with_another():
    shown = []
    turns = list(in_turn(["a", "b", "c"], 2, lambda done, name: shown.append((done, name))))
    assert turns == ["a", "b", "c", "b", "c", "a"] and shown == [*enumerate(turns)]
