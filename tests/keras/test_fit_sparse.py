"""`caramel.fit` on sparse matrices and tensors, against Keras' own fit on one device."""

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from fit_common import AS_WRITTEN, CLASSES, FEATURES, arrays, compiled, same
from variants import mostly_in_soak

import caramel
from caramel.keras.arrays import Arrays

pytestmark = pytest.mark.usefixtures("double")

X, Y = arrays(59)
X = np.where(np.abs(X) > 1.0, X, 0.0)
X[[3, 17, 18]] = 0.0
ROWS = scipy.sparse.csr_matrix(X)
TENSOR = tf.sparse.from_dense(X)


def both_on(*given, given_to_us=None, workers=3, make=compiled, **options):
    options = {"shuffle": False, "verbose": 0, "epochs": 2, **options}
    alone, distributed = make(), make()
    want = alone.fit(*given, **options)
    got = caramel.fit(distributed, *(given_to_us or given), workers=workers, cluster=AS_WRITTEN, **options)
    return (want, alone), (got, distributed)


KINDS = {
    "rows": ROWS,
    "columns": ROWS.tocsc(),
    "places in no order": scipy.sparse.coo_matrix((X[X != 0][::-1], [i[::-1] for i in np.nonzero(X)]), X.shape),
    "places twice": scipy.sparse.coo_matrix(
        (np.tile(X[X != 0] / 2, 2), [np.tile(i, 2) for i in np.nonzero(X)]), X.shape
    ),
    "an array": scipy.sparse.csr_array(X),
    "a tensor": TENSOR,
    "narrower": ROWS.astype("float32"),
}


@pytest.mark.parametrize("kind", mostly_in_soak(KINDS, "places in no order", "places twice", "a tensor"))
def test_kinds(kind):
    data = KINDS[kind]
    dense = X.astype("float32") if kind == "narrower" else X
    same(*both_on(dense, Y, given_to_us=(data, Y), batch_size=12, epochs=1))


def with_duplicates(of):
    """Rows in which each entry is there twice, a half each time, without being in order."""
    places = [np.tile(i, 2) for i in np.nonzero(of)]
    order = np.argsort(places[0], kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(places[0], minlength=len(of))))
    return scipy.sparse.csr_matrix((np.tile(of[of != 0] / 2, 2)[order], places[1][order], starts), of.shape)


def test_entries_of_one_place_are_added_up():
    """As in Keras' products with sparse matrices, in arrays and in batches of Python."""
    rows = with_duplicates(X)
    assert rows.nnz == 2 * np.count_nonzero(X) and not rows.has_canonical_format
    same(*both_on(X, Y, given_to_us=(rows, Y), batch_size=12, epochs=1))
    entries = rows.tocoo()
    tensor = tf.sparse.reorder(tf.SparseTensor(np.stack([entries.row, entries.col], 1), entries.data, X.shape))
    assert tensor.values.shape[0] == rows.nnz
    same(*both_on(X, Y, given_to_us=(tensor, Y), batch_size=12, epochs=1))
    model = compiled()
    with pytest.warns(UserWarning, match="made in this process"):
        got = caramel.predict(model, (t for t in [(tensor,)]), steps=1, workers=2, verbose=0, cluster=AS_WRITTEN)
    np.testing.assert_allclose(got, model.predict(X, verbose=0), rtol=1e-10)


@pytest.mark.parametrize("kind", [scipy.sparse.dok_matrix, scipy.sparse.lil_matrix, scipy.sparse.bsr_matrix])
def test_further_formats(kind):
    np.testing.assert_array_equal(tf.sparse.to_dense(Arrays.of(kind(X), None, None).x), X)


def test_as_keras_does():
    """Keras' own fit takes them, too."""
    options = {"batch_size": 12, "validation_split": 0.25, "sample_weight": np.linspace(0.5, 2.0, 59)}
    same(*both_on(ROWS, Y, **options))


def test_beside_dense_ones():
    def make():
        keras.utils.set_random_seed(4)
        words, numbers = keras.Input([FEATURES], sparse=True, name="words"), keras.Input([2], name="numbers")
        joined = keras.layers.Concatenate()([keras.layers.Dense(4, "tanh")(words), numbers])
        model = keras.Model({"words": words, "numbers": numbers}, keras.layers.Dense(CLASSES)(joined))
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    numbers = np.random.default_rng(1).normal(size=(59, 2))
    dense, sparse = {"words": X, "numbers": numbers}, {"words": ROWS, "numbers": numbers}
    same(*both_on(dense, Y, given_to_us=(sparse, Y), make=make, batch_size=12))


def batches(of=None):
    source = tf.data.Dataset.from_tensor_slices((TENSOR if of is None else of, Y))
    return source.batch(12)


def test_datasets():
    same(*both_on(batches(X), given_to_us=(batches(),), class_weight={0: 0.5, 2: 3.0}))


def test_a_dataset_for_each_worker():
    def data(workers, rank):
        return tf.data.Dataset.from_tensor_slices((TENSOR, Y)).batch(12).shard(workers, rank)

    alone, distributed = compiled(), compiled()
    want = alone.fit(batches(X), verbose=0, shuffle=False)
    got = caramel.fit(distributed, data, workers=1, verbose=0, cluster=AS_WRITTEN)
    same((want, alone), (got, distributed))


def from_python():
    for start in range(0, 59, 12):
        yield ROWS[start : start + 12], Y[start : start + 12]


class Matrices(keras.utils.PyDataset):
    def __init__(self, of):
        super().__init__()
        self.of = of

    def __len__(self):
        return 5

    def __getitem__(self, number):
        some = slice(12 * number, 12 * number + 12)
        return self.of[some], Y[some]


@pytest.mark.filterwarnings("ignore:the batches are made in this process")
def test_batches_of_python():
    same(*both_on(Matrices(X), given_to_us=(Matrices(ROWS),)))
    alone, distributed = compiled(), compiled()
    want = alone.fit(X, Y, batch_size=12, shuffle=False, verbose=0)
    got = caramel.fit(distributed, from_python(), workers=2, verbose=0, cluster=AS_WRITTEN)
    same((want, alone), (got, distributed))


def test_shuffled():
    """Each example once in a pass: one step of all, whatever their order."""
    same(*both_on(X, Y, given_to_us=(ROWS, Y), batch_size=59, shuffle=True))


def test_evaluate_and_predict():
    model = compiled()
    want, got = model.predict(X, verbose=0), caramel.predict(model, ROWS, workers=3, verbose=0, cluster=AS_WRITTEN)
    np.testing.assert_allclose(got, want, rtol=1e-10)
    want = model.evaluate(X, Y, verbose=0)
    got = caramel.evaluate(model, TENSOR, Y, workers=3, verbose=0, cluster=AS_WRITTEN)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_all_of_the_data_stays_sparse():
    """Of a million features, of which an example has two."""
    count, features = 300, 1_000_000
    places = [np.repeat(np.arange(count), 2), np.random.default_rng(0).integers(0, features, 2 * count)]
    data = scipy.sparse.coo_matrix((np.ones(2 * count), places), (count, features)).tocsr()
    (first, *_) = Arrays.of(data, None, None).dataset(8, False)
    np.testing.assert_array_equal(first[0], data[:8].toarray())
    held = Arrays.of(data, None, None)
    assert held.x.values.shape[0] == data.nnz


def test_more_dimensions():
    cube = np.where(np.random.default_rng(0).uniform(size=(7, 3, 4)) > 0.7, 1.0, 0.0)
    data = Arrays.of(tf.sparse.from_dense(cube), None, None)
    np.testing.assert_array_equal(np.concatenate([b[0] for b in data.dataset(3, False)]), cube)
    first, last = data.split(0.3)
    assert (first.examples, last.examples) == (4, 3)
    np.testing.assert_array_equal(tf.sparse.to_dense(last.x), cube[4:])


@pytest.mark.parametrize(
    "given, words",
    [
        (tf.sparse.from_dense(X[:, 0]), ["x is sparse", "1 dimensions"]),
        (tf.SparseTensor([[0, 9]], [1.0], [59, FEATURES]), ["x is sparse", "outside", "[59, 5]"]),
        (ROWS[:7], ["x has 7", "y has 59"]),
    ],
)
def test_what_is_none(given, words):
    with pytest.raises(caramel.InputError) as caught:
        caramel.fit(compiled(), given, Y, workers=2, verbose=0)
    for word in words:
        assert word in str(caught.value)
