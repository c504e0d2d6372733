"""`caramel.fit` on batches that Python makes, against Keras' own fit on one device."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_common import AS_WRITTEN, FEATURES, arrays, compiled, same
from variants import in_soak

import caramel

pytestmark = pytest.mark.usefixtures("double")

X, Y = arrays(59)
SIZE = 12
BATCHES = [(X[start : start + SIZE], Y[start : start + SIZE]) for start in range(0, 59, SIZE)]


class InBatches(keras.utils.PyDataset):
    """Batches in Python, and what Keras has called."""

    def __init__(self, batches=BATCHES, length=True):
        super().__init__()
        self.batches = batches
        self.calls = []
        self.has_length = length

    def __len__(self):
        return len(self.batches)

    @property
    def num_batches(self):
        return len(self.batches) if self.has_length else None

    def __getitem__(self, number):
        return self.batches[number % len(self.batches)]

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")


def of_generator():
    signature = (tf.TensorSpec([FEATURES], tf.float64), tf.TensorSpec([], tf.int64))
    return tf.data.Dataset.from_generator(lambda: zip(X, Y), output_signature=signature).batch(SIZE)


def of_numpy():
    def doubled(x, y):
        return tf.ensure_shape(tf.numpy_function(lambda a: 2 * a, [x], tf.float64), [FEATURES]), y

    return tf.data.Dataset.from_tensor_slices((X, Y)).map(doubled).batch(SIZE)


SOURCES = {
    "PyDataset": (InBatches, {}),
    "PyDataset without a length": (lambda: InBatches(length=False), {"steps_per_epoch": 4}),
    "PyDataset in steps": (InBatches, {"steps_per_epoch": 3}),
    "generator": (lambda: (batch for batch in BATCHES * 2), {"steps_per_epoch": 5}),
    "generator function": (lambda: (batch for batch in BATCHES * 3), {"steps_per_epoch": 4}),
    "one pass": (lambda: (batch for batch in BATCHES), {"epochs": 1}),
    "from_generator": (of_generator, {}),
    "numpy_function": (of_numpy, {}),
    "numpy_function in steps": (of_numpy, {"steps_per_epoch": 3}),
}


def both_on(make_data, make=compiled, workers=2, **options):
    """Histories and models of Keras' fit and of ours, each with data of its own."""
    options = {"shuffle": False, "verbose": 0, "epochs": 2, **options}
    alone, distributed = make(), make()
    want = alone.fit(make_data(), **options)
    with pytest.warns(UserWarning, match="made in this process"):
        got = caramel.fit(distributed, make_data(), workers=workers, cluster=AS_WRITTEN, **options)
    return (want, alone), (got, distributed)


def same_but_for_the_count(first, second):
    """At the end of data without a length Keras counts one step too many in each epoch."""
    (want, alone), (_, distributed) = first, second
    assert int(alone.optimizer.iterations) - int(distributed.optimizer.iterations) == len(want.epoch)
    alone.optimizer.iterations.assign(distributed.optimizer.iterations)
    same(first, second)


FAST = ("PyDataset in steps", "generator", "from_generator")


@pytest.mark.parametrize("name", [*FAST, *in_soak(*(name for name in SOURCES if name not in FAST))])
def test_it_trains_as_keras_does(name):
    make_data, options = SOURCES[name]
    check = same_but_for_the_count if name in ("one pass", "from_generator") else same
    check(*both_on(make_data, **options))


@pytest.mark.parametrize("workers", [3, *in_soak(1)])
def test_numbers_of_workers(workers):
    same(*both_on(InBatches, workers=workers))


def test_a_shuffle_in_this_process_has_keras_orders():
    def shuffled():
        tf.random.set_seed(9)
        return of_numpy().unbatch().shuffle(59, seed=3).batch(SIZE)

    same_but_for_the_count(*both_on(shuffled, epochs=3))


def test_weights_of_classes():
    same(*both_on(InBatches, class_weight={0: 0.5, 2: 3.0}))


def test_weights_of_examples():
    weights = np.random.default_rng(1).uniform(0.5, 2, 59)
    batches = [(x, y, weights[SIZE * n : SIZE * n + len(y)]) for n, (x, y) in enumerate(BATCHES)]
    same(*both_on(lambda: InBatches(batches)))


def test_a_validation_on_python_data():
    same(*both_on(InBatches, validation_data=InBatches(BATCHES[:2])))


def test_hooks_of_a_dataset():
    """For every epoch, in turn, as in Keras; and all batches once, in another order."""
    data = InBatches()
    seen = []
    data_getitem = InBatches.__getitem__

    class Seen(InBatches):
        def __getitem__(self, number):
            seen.append(number)
            return data_getitem(self, number)

    data = Seen()
    model = compiled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        caramel.fit(model, data, epochs=3, verbose=0, workers=2, cluster=AS_WRITTEN)
    assert data.calls == ["end", *["begin", "end"] * 3]  # the first one after a look at the data
    epochs = np.reshape(seen[-15:], (3, 5))  # before them, some to see what batches are like
    assert all(sorted(epoch) == [0, 1, 2, 3, 4] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


@pytest.mark.soak
def test_sequences_of_several_lengths():
    """Sizes in which the first batches differ vary."""

    def make():
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(4)
        model = keras.Sequential([keras.Input([None, 2]), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(6, length, 2)), rng.normal(size=(6, 1))) for length in (3, 5, 4)]
    same(*both_on(lambda: InBatches(batches), make=make))


# -- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make_data", "words"),
    [
        (lambda: InBatches([]), ["empty"]),
        (lambda: iter([]), ["empty"]),
        (lambda: InBatches(length=False), ["no end", "steps_per_epoch"]),
        (lambda: iter([(1, 2, 3, 4)]), ["4 parts"]),
        (lambda: InBatches([(X[:4], Y[:4]), (X[:4, None], Y[:4])]), ["number of dimensions"]),
        (lambda: InBatches([(X[:4], Y[:4]), ({"a": X[:4]}, Y[:4])]), ["structure"]),
    ],
)
def test_what_are_no_batches(make_data, words):
    with pytest.raises(caramel.InputError) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        caramel.fit(compiled(), make_data(), workers=2, verbose=0)
    for word in words:
        assert word in str(caught.value)


def test_code_that_raises():
    def batches():
        yield from BATCHES[:3]
        raise ZeroDivisionError("in the user's code")

    with pytest.raises(ZeroDivisionError, match="user's code"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        caramel.fit(compiled(), batches(), steps_per_epoch=5, workers=2, verbose=0)


class Shuffling(keras.utils.PyDataset):
    """Brings its own examples into another order after each epoch, as Keras' guides show it, and notes the calls."""

    def __init__(self):
        super().__init__()
        self.x, self.y = arrays(59)
        self.order, self.rng, self.calls = np.arange(59), np.random.default_rng(9), []

    def __len__(self):
        return 5

    def __getitem__(self, number):
        self.calls.append(number)
        chosen = self.order[12 * number :][:12]
        return self.x[chosen], self.y[chosen]

    def on_epoch_begin(self):
        self.calls.append("begins")

    def on_epoch_end(self):
        self.calls.append("ends")
        self.rng.shuffle(self.order)


@pytest.mark.filterwarnings("ignore:the batches are made")
def test_a_dataset_is_told_of_epochs_as_by_keras():
    plain, ours, data, mine = compiled(), compiled(), Shuffling(), Shuffling()
    want = plain.fit(data, epochs=2, shuffle=False, verbose=0)
    got = caramel.fit(ours, mine, epochs=2, shuffle=False, verbose=0, workers=2, cluster=AS_WRITTEN)
    assert mine.calls == data.calls
    np.testing.assert_allclose(got.history["loss"], want.history["loss"], rtol=1e-9)
    evaluated, own = plain.evaluate(data, verbose=0), len(mine.calls)
    np.testing.assert_allclose(caramel.evaluate(ours, mine, workers=2, verbose=0, cluster=AS_WRITTEN), evaluated)
    assert mine.calls[own:] == data.calls[own:]


@pytest.mark.parametrize("steps", [None, 2])
def test_a_generator_to_validate_on(steps):
    """Keras begins each validation with the first two batches."""

    def batches():
        x, y = arrays(36, seed=5)
        yield from ((x[begin : begin + 12], y[begin : begin + 12]) for begin in range(0, 12 * (steps or 2), 12))

    found = []
    for fit in (lambda m, *d, **o: m.fit(*d, **o), lambda m, *d, **o: caramel.fit(m, *d, workers=2, **o)):
        model = compiled()
        options = {"epochs": 3, "shuffle": False, "verbose": 0, "batch_size": 12, "validation_steps": steps}
        found.append(fit(model, *arrays(24), validation_data=batches(), **options).history["val_loss"])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
