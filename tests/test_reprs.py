"""What people see of a plan, a captured program and a step: in a terminal of 100 columns, and in a notebook."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel

COLUMNS = 100


def context(layers=12):
    """A network with many layers, whose names are long."""
    keras.utils.set_random_seed(1)
    dense = [keras.layers.Dense(4, name=f"a_layer_with_quite_a_long_name_{n}") for n in range(layers)]
    network = keras.Sequential([keras.Input([4]), *dense], name="network")
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(network.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(network(x) ** 2)
        optimizer.apply(tape.gradient(loss, network.trainable_variables))
        return {"loss": loss, "<b>": loss}

    return caramel.capture(step, inputs=[tf.TensorSpec([None, 4])], loss="loss")


@pytest.fixture(scope="module")
def model():
    return caramel.ARModel(context(), 2, network=caramel.NetworkModel.from_costs(1e-3, 1e-9))


def test_a_plan_fits_into_100_columns(model):
    text = str(model.plan)
    assert max(map(len, text.splitlines())) <= COLUMNS
    for words in ("gradients are combined by mean", "algorithm", "window", "checked: no cycle"):
        assert words in text
    for name in model.plan.transfers[0].gradients[:6]:
        assert name in text


def test_without_batching_there_is_a_row_for_each_gradient(model):
    plan = caramel.ARModel(model.context, 2, batching=False).plan
    rows = str(plan).splitlines()
    for number, transfer in enumerate(plan.transfers):
        (row,) = [row for row in rows if row.split()[:1] == [str(number)]]
        assert f"{transfer.size_bytes:,}" in row.split() and row.split()[1] in transfer.gradients[0]


def test_a_gradient_is_explained_by_the_end_of_its_name(model):
    whole = "a_layer_with_quite_a_long_name_3/kernel"
    names = list(model.plan.pieces)
    assert whole in names or f"network/{whole}" in names
    assert model.plan.explain(names[0].rpartition("/")[0].rpartition("/")[2] + "/" + names[0].rpartition("/")[2])
    with pytest.raises(caramel.InputError, match="several gradients whose name ends with 'kernel'"):
        model.plan.explain("kernel")
    with pytest.raises(caramel.InputError, match="no gradient 'kernels'; it has"):
        model.plan.explain("kernels")


def test_in_a_notebook(model):
    assert model._repr_html_() == model.plan._repr_html_()
    assert model.plan._repr_html_().startswith("<pre>plan ")
    before = context(1)
    assert "Context" in before._repr_html_()
    assert before.model and "a captured step of" in before._repr_html_()
    with model.session() as session:
        html = session.step(np.ones([3, 4], np.float32))._repr_html_()
    assert "worker 1" in html and "&lt;b&gt;" in html and "<b>" not in html


def test_a_prediction_and_a_trace_are_a_line():
    captured = context(2)
    batch = np.ones([4, 4], np.float32)
    trace = caramel.trace(captured, batch, workers=2, runs=2, steps=3, progress=False)
    plan = caramel.ARModel(captured, 2, trace=trace, network=caramel.NetworkModel.from_costs(1e-4, 1e-8)).plan
    assert str(trace).startswith("trace of ") and "a step of 2 examples on each worker takes" in str(trace)
    assert str(plan.prediction).startswith("predicted ") and "with 95 % probability" in str(plan.prediction)
    assert max(len(str(trace)), len(str(plan.prediction))) < 250
