"""The examples on real data: on several workers they learn what they learn on one device."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from variants import in_soak

import caramel

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Function that imports an example by name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name):
        sys.modules.pop(name, None)
        return importlib.import_module(name)

    return load


def batches_of(parts, steps):
    data = parts["data"]
    taken = data.take(steps) if isinstance(data, tf.data.Dataset) else (b for b, _ in zip(data(), range(steps)))
    return [tuple(np.asarray(part) for part in batch) for batch in taken]


@pytest.mark.parametrize("name", ["digits_keras", "word_vectors"])
def test_a_step_function(example, name):
    """Losses of three workers and of one device on the same batches."""
    parts = example(name).program()
    batches = batches_of(parts, 5)
    context = caramel.capture(parts["step"], parts["inputs"])
    assert context.model.digest  # before anything changes
    alone = [float(parts["step"](*batch)) for batch in batches]
    armodel = caramel.ARModel(context, 3)
    with armodel.session() as session:
        losses = [session.step(*batch).loss for batch in batches]
    np.testing.assert_allclose(losses, alone, rtol=2e-4)
    assert losses[-1] < losses[0]
    if name == "word_vectors":
        assert looked_up(armodel) == {"vectors", "meanings"}


def looked_up(armodel):
    """Gradients of which only rows travel."""
    return {t.gradients[0] for t in armodel.plan.transfers if t.algorithm == "all_gather"}


def test_the_transformers_own_data(example, monkeypatch):
    """The workers run the pipeline; three steps on it are three steps of one device on its batches."""
    module = example("transformer")
    monkeypatch.setattr(module, "BLOCKS", 1)  # a second block is as the first
    parts = module.program()
    context = caramel.capture(parts["step"], data=parts["data"])
    armodel = caramel.ARModel(context, 2)
    assert len(looked_up(armodel)) == 1  # the table of characters; that of positions is looked up by all examples alike
    with armodel.session() as session:
        losses = [result.loss for result in session.run(steps=3)]
    alone = [float(parts["step"](*batch)) for batch in parts["data"].take(3)]
    np.testing.assert_allclose(losses, alone, rtol=2e-4)
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_word_vectors_learn(example):
    losses, found = example("word_vectors").main(300)
    assert losses[-1] < 0.6 * losses[0] and found > 0.05


@pytest.mark.soak
def test_mixed_precision_by_fit(example):
    module = example("digits_mixed")
    history = module.main(workers=3, epochs=3, verbose=0)
    assert history["loss"][-1] < 0.3 and history["val_accuracy"][-1] > 0.5
    model = module.compiled()
    assert type(model.optimizer).__name__ == "LossScaleOptimizer"


@pytest.mark.parametrize("name", in_soak("digits_pairs", "next_words"))
def test_by_fit_on_three_workers_as_on_one(example, name):
    module = example(name)
    found = [module.main(workers=workers, epochs=2, verbose=0) for workers in (3, 1)]
    (got, want) = (each[0] if isinstance(each, tuple) else each for each in found)
    for metric, values in want.items():
        np.testing.assert_allclose(got[metric], values, rtol=2e-3, err_msg=metric)
    assert got["loss"][1] < got["loss"][0]
