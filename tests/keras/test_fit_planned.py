"""`caramel.fit` where the network is known: it traces and plans by itself, and trains as without a plan."""

import json
import re
import warnings

import keras
import numpy as np
import pytest
from fit_common import AS_WRITTEN, arrays, compiled, dataset
from variants import in_soak

import caramel
from caramel.netmodel.file import save as save_network

pytestmark = pytest.mark.usefixtures("double")

NETWORK = caramel.NetworkModel.from_link_rate(1.25e8)
X, Y = arrays(60)


def trained(*data, workers=2, verbose=0, **options):
    """The history and the model."""
    model = compiled()
    history = caramel.fit(
        model, *data, workers=workers, epochs=2, verbose=verbose, cluster=AS_WRITTEN, deterministic=True, **options
    )
    return history, model


def check_same_bits(first, second):
    assert first[0].history == second[0].history
    for one, other in zip(first[1].variables, second[1].variables):
        np.testing.assert_array_equal(one, other, err_msg=one.path)


class InBatches(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, number):
        return X[12 * number :][:12], Y[12 * number :][:12]


DATA = {
    "a dataset": lambda: (dataset(),),
    "arrays": lambda: (X, Y),
    "Python": lambda: (InBatches(),),
    "a generator": lambda: ((batch for batch in [(X[:12], Y[:12])] * 10),),
}


@pytest.mark.parametrize("kind", ["arrays", "Python", *in_soak("a dataset", "a generator")])
def test_it_plans_by_itself_and_trains_the_same(kind, capsys):
    options = {"steps_per_epoch": 5} if kind == "a generator" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = trained(*DATA[kind](), shuffle=False, **options)
        planned = trained(*DATA[kind](), shuffle=False, network=NETWORK, verbose=2, **options)
    check_same_bits(plain, planned)
    plan = planned[0].plan
    assert plan.prediction is not None and plan.transfers
    assert plain[0].plan.prediction is None
    lines = capsys.readouterr().out.splitlines()
    said = [line for line in lines if line.startswith("caramel:")]
    assert len(said) == 3 and lines[:2] == said[:2] and lines[-1] == said[2]
    assert said[0] == "caramel: the step is traced on 2 workers, to plan for this network"
    assert f" {len(plan.transfers)} transfer" in said[1] and "a step is predicted to take" in said[1]
    assert re.fullmatch(
        r"caramel: a step took \S+ ms; (for \S+ ms of it the step waits for its data, .*; the rest is \S+ ms, )?"
        r"predicted \S+ ms, \S+% (less|more) than measured and (within|outside) the interval of the prediction(: .*)?",
        said[2],
    )


def own_step(model):
    return lambda x, y: model.train_step((x, y))


def test_a_trace_of_the_captured_train_step(tmp_path, capsys):
    plain = trained(dataset())
    model = compiled()
    model.optimizer.build(model.trainable_variables)
    model.test_on_batch(X, Y)  # makes the variables of the metrics
    trace = caramel.trace(caramel.capture(own_step(model), data=dataset()), workers=2, runs=2, steps=2)
    caramel.save_trace(trace, tmp_path / "trace.json")
    save_network(NETWORK, tmp_path / "net.json")
    capsys.readouterr()
    planned = trained(dataset(), trace=tmp_path / "trace.json", network=tmp_path / "net.json")
    assert capsys.readouterr().out == ""
    check_same_bits(plain, planned)
    assert planned[0].plan.prediction is not None


@pytest.mark.soak  # as test_second_captures.py
def test_a_trace_of_another_program_is_refused():
    model = compiled(optimizer=lambda: keras.optimizers.Adam(0.1))
    model.optimizer.build(model.trainable_variables)
    model.test_on_batch(X, Y)
    trace = caramel.trace(caramel.capture(own_step(model), data=dataset()), workers=2, runs=1, steps=1)
    with pytest.raises(caramel.TraceError, match="another program than this model's training step"):
        trained(dataset(), trace=trace, network=NETWORK)


def test_what_the_caller_decides_stays():
    """No trace is made for a plan by hand."""
    history, _ = trained(X, Y, network=NETWORK, policy="paper")
    assert history.plan.prediction is None
    with pytest.raises(caramel.CaramelError, match="trace"):
        trained(X, Y, network=NETWORK, trace="missing.json")


def test_a_plan_serves_a_model_that_is_built_again(monkeypatch):
    """Keras gives other numbers to its layers."""
    monkeypatch.setattr(keras.backend, "clear_session", lambda **_: None)  # begins the numbers anew
    first = trained(dataset(), network=NETWORK)
    model = compiled()
    history = caramel.fit(model, dataset(), workers=2, epochs=2, verbose=0, cluster=AS_WRITTEN, plan=first[0].plan)
    check_same_bits(first, (history, model))
    assert {v.path for v in first[1].variables}.isdisjoint({v.path for v in model.trainable_variables})


def test_a_training_is_drawn(tmp_path, capsys):
    timeline, report = tmp_path / "step.json", tmp_path / "report.html"
    plain, drawn = trained(X, Y, batch_size=12), trained(X, Y, batch_size=12, timeline=timeline, report=str(report))
    check_same_bits(plain, drawn)
    assert capsys.readouterr().out == ""
    events = json.loads(timeline.read_text())["traceEvents"]
    assert {event["cat"] for event in events if event["ph"] == "X"} >= {"forward pass", "backward pass", "update"}
    text = report.read_text()
    assert "measured step" in text and "after 10 steps" in text and plain[1].name in text


def test_a_file_that_cannot_be_written_is_refused_before_the_training(tmp_path):
    model = compiled()
    before = [variable.numpy() for variable in model.variables]
    for name in ("timeline", "report"):
        with pytest.raises(caramel.InputError, match="cannot be written"):
            caramel.fit(model, X, Y, workers=2, **{name: tmp_path / "nowhere" / "a"})
        with pytest.raises(caramel.InputError, match=f"the {name} is named by a path, got 5"):
            caramel.fit(model, X, Y, workers=2, **{name: 5})
    for value, variable in zip(before, model.variables):
        np.testing.assert_array_equal(value, variable)


def test_what_is_drawn_ends_with_its_training(tmp_path, monkeypatch):
    """The next call on the same session traces nothing, although the first one was too short for all steps it draws."""
    from caramel.runtime.executor import SessionExecutor

    traced = []
    original = SessionExecutor.run_traced
    monkeypatch.setattr(SessionExecutor, "run_traced", lambda *call: traced.append(1) or original(*call))
    model = compiled()
    options = {"workers": 2, "batch_size": 12, "verbose": 0, "cluster": AS_WRITTEN}
    caramel.fit(model, X[:36], Y[:36], **options, timeline=tmp_path / "step.json")
    assert len(traced) == 1
    caramel.fit(model, X[:36], Y[:36], **options)
    assert len(traced) == 1
