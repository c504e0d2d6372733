"""Datasets that the workers cannot run, or that do not fit the program: what is said, and when."""

import numpy as np
import pytest
import tensorflow as tf
from variants import in_soak

import caramel

v1 = tf.compat.v1
Dataset = tf.data.Dataset


def fit(*arguments):
    """A step of linear regression on whatever it gets: the first argument is x, the second y."""
    x, y = (arguments[0]["x"], arguments[0]["y"]) if isinstance(arguments[0], dict) else arguments[:2]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.linalg.matvec(x, WEIGHTS) - y) ** 2)
        for more in arguments[2:]:
            loss += 0.0 * tf.cast(tf.strings.length(more)[0] if more.dtype == tf.string else more, tf.float32)
    WEIGHTS.assign_sub(0.1 * tape.gradient(loss, WEIGHTS))
    return loss


WEIGHTS = tf.Variable(tf.zeros([3]), name="w")


def examples(count=12):
    return Dataset.from_tensor_slices((np.ones([count, 3], np.float32), np.ones([count], np.float32)))


def model(data, workers=2, step=fit, inputs=None, loss_reduction=None, **options):
    context = caramel.capture(
        step, inputs, data=data, loss_reduction=loss_reduction, replicated=options.pop("replicated", ())
    )
    return caramel.ARModel(context, workers, **options)


def refuse_at_compilation(refused, kind, words, *args, **options):
    with refused(kind, *words):
        model(*args, **options)


# -- what is no dataset ----------------------------------------------------------------------


@pytest.mark.parametrize("data", [[1, 2], np.ones([4, 3]), 5, "train.tfrecord"])
def test_no_dataset(refused, data):
    refuse_at_compilation(refused, caramel.InputError, ["tf.data.Dataset", type(data).__name__, "Session.run"], data)


def test_an_iterator(refused):
    data = iter(examples().batch(4))
    refuse_at_compilation(refused, caramel.InputError, ["tf.data.Dataset", "OwnedIterator"], data)


def test_a_function_that_returns_no_dataset(refused):
    words = ["data(1, 0)", "list", "worker 0"]
    refuse_at_compilation(refused, caramel.InputError, words, lambda workers, rank: [1])


def test_a_function_that_raises(refused):
    def data(workers, rank):
        return examples().batch({1: 4}[workers])

    refuse_at_compilation(refused, caramel.CaptureError, ["data(2, 0)", "KeyError"], data)


def test_a_function_whose_datasets_differ(refused):
    def data(workers, rank):
        return examples().batch(4) if rank == 0 else examples().map(lambda x, y: (x[:2], y)).batch(4)

    refuse_at_compilation(refused, caramel.InputError, ["worker 1", "alike"], data)


# -- elements --------------------------------------------------------------------------------


def test_ragged_elements(refused):
    data = Dataset.from_tensor_slices((tf.ragged.constant([[1.0], [2.0, 3.0]]), [1.0, 2.0])).batch(2)
    refuse_at_compilation(refused, caramel.UnsupportedError, ["'0'", "RaggedTensor", "to_tensor"], data)


def test_sparse_elements(refused):
    data = Dataset.from_tensor_slices({"x": tf.sparse.eye(4), "y": tf.ones([4])}).batch(2)
    refuse_at_compilation(refused, caramel.UnsupportedError, ["'x'", "SparseTensor"], data)


def test_datasets_as_elements(refused):
    data = examples().window(2)
    refuse_at_compilation(refused, caramel.UnsupportedError, ["'0'", "Dataset"], data)


def test_strings_that_the_step_does_not_use_are_fine():
    def step(x, y, names):
        return fit(x, y)

    data = Dataset.from_tensor_slices((np.ones([4, 3], np.float32), np.ones([4], np.float32), ["a", "b", "c", "d"]))
    with model(data.batch(2), step=step).session() as session:
        assert len(session.run()) == 2


SPEC = [tf.TensorSpec([None, 3]), tf.TensorSpec([None])]


@pytest.mark.parametrize(
    "inputs, words",
    [
        ([tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.float64)], ["'1'", "float64", "float32", "cast"]),
        ([tf.TensorSpec([None, 4]), tf.TensorSpec([None])], ["'0'", "[None, 4]", "[None, 3]"]),
        ([tf.TensorSpec([None, 3, 1]), tf.TensorSpec([None])], ["'0'", "[None, 3, 1]"]),
        ([tf.TensorSpec([None, 3])], ["structure", "inputs="]),
        ([tf.TensorSpec([None, 3]), {"y": tf.TensorSpec([None])}], ["structure", "inputs="]),
    ],
)
def test_inputs_that_do_not_match(refused, inputs, words):
    refuse_at_compilation(refused, caramel.InputError, words, examples().batch(4), inputs=inputs)


def test_an_input_signature_that_does_not_match(refused):
    step = tf.function(fit, input_signature=[tf.TensorSpec([None, 3], tf.float64), tf.TensorSpec([None])])
    refuse_at_compilation(refused, caramel.InputError, ["float64"], examples().batch(4), step=step)


def test_a_dict_names_the_inputs_of_a_step():
    def step(x, y):
        return fit(x, y)

    data = examples().batch(4).map(lambda x, y: {"y": y, "x": x})
    with model(data, step=step, inputs=SPEC).session() as session:
        assert len(session.run()) == 3


def test_a_dict_with_another_name(refused):
    def step(x, y):
        return fit(x, y)

    data = examples().batch(4).map(lambda x, y: {"y": y, "images": x})
    refuse_at_compilation(refused, caramel.InputError, ["'images'", "x, y"], data, step=step, inputs=SPEC)


def test_a_dict_that_leaves_an_input_out(refused):
    def step(x, y):
        return fit(x, y)

    data = examples().batch(4).map(lambda x, y: {"x": x})
    refuse_at_compilation(refused, caramel.InputError, ["'y'", "replicated="], data, step=step, inputs=SPEC)


def test_different_numbers_of_examples(refused):
    data = Dataset.from_tensors((np.ones([4, 3], np.float32), np.ones([3], np.float32)))
    with model(data, loss_reduction="mean").session() as session, refused(caramel.DataError, "worker 0", "4", "3"):
        session.step()


def test_a_batch_without_examples(refused):
    data = Dataset.from_tensors((np.ones([0, 3], np.float32), np.ones([0], np.float32)))
    with model(data).session() as session, refused(caramel.DataError, "batch 0", "no example"):
        session.step()


# -- length ----------------------------------------------------------------------------------


def test_an_empty_dataset(refused):
    refuse_at_compilation(refused, caramel.InputError, ["empty"], examples(0).batch(4))


def test_a_dataset_that_turns_out_to_be_empty(refused):
    data = examples().filter(lambda x, y: y < 0).batch(4)
    with model(data).session() as session:
        for call in (session.step, session.run, lambda: session.run(steps=3)):
            with refused(caramel.DataError, "empty"):
                call()


def test_one_worker_with_an_empty_dataset(refused):
    data = lambda workers, rank: examples().filter(lambda x, y: y > rank).batch(4)  # noqa: E731
    with model(data).session() as session, refused(caramel.DataError, "worker 1", "empty"):
        session.step()


def test_no_end(refused):
    with model(examples().repeat().batch(4)).session() as session:
        with refused(caramel.InputError, "no end", "steps"):
            session.run()
        assert len(session.run(steps=2)) == 2


def test_a_negative_number_of_steps(refused):
    with model(examples().batch(4)).session() as session, refused(caramel.InputError, "steps", "-1"):
        session.run(steps=-1)


# -- what cannot go to another process -------------------------------------------------------


def through_python(x, y):
    return tf.numpy_function(lambda x: x, [x], tf.float32), y


def eagerly(x, y):
    return tf.py_function(lambda x: x, [x], tf.float32), y


def generated():
    signature = (tf.TensorSpec([None, 3]), tf.TensorSpec([None]))
    return Dataset.from_generator(lambda: iter([(np.ones([4, 3]), np.ones([4]))]), output_signature=signature)


@pytest.mark.parametrize(
    "make, op",
    [
        (generated, "PyFunc"),
        (lambda: examples().batch(4).map(through_python), "PyFunc"),
        (lambda: examples().batch(4).map(eagerly), "EagerPyFunc"),
        (lambda: Dataset.range(2).flat_map(lambda n: examples().batch(4).map(through_python)), "PyFunc"),
    ],
    ids=["from_generator", "numpy_function", "py_function", "inside a function"],
)
def test_python_in_the_pipeline(refused, make, op):
    data = make().map(lambda x, y: (tf.ensure_shape(x, [None, 3]), tf.ensure_shape(y, [None])))
    words = [f"({op})", "in function", "runs Python", "Session.run(batches)"]
    refuse_at_compilation(refused, caramel.UnsupportedError, words, data)


# -- what the workers would see differently --------------------------------------------------


def different(which, tmp_path):
    noise = lambda x, y: tf.random.uniform([]) < 0.99  # noqa: E731 - never all of them
    return {
        "inner shuffle": lambda: Dataset.range(3).flat_map(lambda n: examples().shuffle(4)).batch(4),
        "random filter": lambda: examples().filter(noise).batch(4),
        "filter on random values": lambda: (
            examples().map(lambda x, y: (x, y + tf.random.normal([]))).filter(lambda x, y: y > 0.5).batch(4)
        ),
        "random length": lambda: (
            examples()
            .flat_map(lambda x, y: Dataset.from_tensors((x, y)).repeat(tf.random.uniform([], 1, 3, tf.int64)))
            .batch(4)
        ),
        "filter in parallel": lambda: (
            examples()
            .map(lambda x, y: (x, y + tf.random.normal([], seed=1)), num_parallel_calls=2)
            .filter(lambda x, y: y > 0.5)
            .batch(4)
        ),
        "filter in a parallel interleave": lambda: Dataset.range(3).interleave(
            lambda n: examples().filter(lambda x, y: tf.random.uniform([], seed=1) < 0.5).batch(4), num_parallel_calls=2
        ),
        "cache in a file": lambda: examples().cache(str(tmp_path / "cache")).batch(4),
    }[which]()


@pytest.mark.parametrize(
    "which, words",
    [
        ("inner shuffle", ["ShuffleDatasetV3", "seed"]),
        ("random filter", ["FilterDataset", "seed"]),
        *in_soak(("filter on random values", ["FilterDataset", "seed"]), ("random length", ["FlatMapDataset", "seed"])),
        ("filter in parallel", ["FilterDataset", "in any order", "num_parallel_calls"]),
        ("filter in a parallel interleave", ["ParallelInterleaveDataset", "in any order", "num_parallel_calls"]),
        ("cache in a file", ["CacheDatasetV2", "file"]),
    ],
)
def test_what_workers_would_see_differently(refused, tmp_path, which, words):
    tf.random.set_seed(None)
    data = different(which, tmp_path)
    refuse_at_compilation(refused, caramel.UnsupportedError, ["same batches", "(workers, rank)", *words], data)
    with model(data, workers=1).session() as session:  # one worker sees what it sees
        assert session.run(steps=1)[0].examples > 0
    model(lambda workers, rank: data)


def test_a_seed_makes_it_the_same():
    tf.random.set_seed(None)
    data = Dataset.range(3).flat_map(lambda n: examples().shuffle(4, seed=5)).batch(4)
    with model(data).session() as session:
        assert len(session.run()) == 9
    model(examples().filter(lambda x, y: tf.random.uniform([], seed=1) < 0.5).batch(4))


def test_random_values_are_noted():
    tf.random.set_seed(None)
    data = examples().map(lambda x, y: (x + tf.random.normal([3]), y)).batch(4)
    notes = model(data).plan.notes
    assert any("RandomStandardNormal" in note and "other numbers on each worker" in note for note in notes)


def test_any_order_is_noted():
    data = examples().map(lambda x, y: (2 * x, y), num_parallel_calls=2, deterministic=False).batch(4)
    notes = model(data).plan.notes
    assert any("deterministic=False has no effect" in note and "ParallelMapDataset" in note for note in notes)
    assert not any("no effect" in note for note in model(data, workers=1).plan.notes if note.startswith("input"))


# -- inputs that are not split ---------------------------------------------------------------


def with_rate(random=False):
    value = (lambda: tf.random.uniform([])) if random else lambda: tf.constant(0.5)
    return examples().batch(4).map(lambda x, y: (x, y, value()))


def test_a_whole_input_in_batches(refused):
    assert len(model(with_rate()).signature.data.inputs) == 3
    words = ["'arguments_2'", "sharding='slice'"]
    refuse_at_compilation(refused, caramel.UnsupportedError, words, with_rate(), sharding="batches")
    refuse_at_compilation(refused, caramel.UnsupportedError, words, lambda workers, rank: with_rate())


def test_a_whole_input_that_is_random(refused):
    tf.random.set_seed(None)
    words = ["'arguments_2'", "RandomUniform", "seed"]
    refuse_at_compilation(refused, caramel.UnsupportedError, words, with_rate(random=True))


def test_a_whole_input_that_is_random_in_parallel(refused):
    """With a seed, but which element gets which number depends on who comes first."""
    draw = lambda x, y: (x, y, tf.random.uniform([], seed=1))  # noqa: E731
    words = ["'arguments_2'", "RandomUniform", "num_parallel_calls"]
    data = examples().batch(4).map(draw, num_parallel_calls=2)
    refuse_at_compilation(refused, caramel.UnsupportedError, words, data)
    model(examples().batch(4).map(draw))


# -- how the data is divided -----------------------------------------------------------------


@pytest.mark.parametrize("sharding", ["rows", "own", "", 3])
def test_a_sharding_that_does_not_exist(refused, sharding):
    words = ["sharding", "'slice' or 'batches'", repr(sharding)]
    refuse_at_compilation(refused, caramel.InputError, words, examples().batch(4), sharding=sharding)


@pytest.mark.parametrize("sharding", ["slice", "batches"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_sharding_of_datasets_that_are_the_workers_own(refused, workers, sharding):
    words = [f"sharding='{sharding}'", "each worker's own", "leave out sharding=", "whole dataset as data="]
    data = lambda workers, rank: examples().shard(workers, rank).batch(2)  # noqa: E731
    refuse_at_compilation(refused, caramel.InputError, words, data, workers, sharding=sharding)


def test_a_sharding_without_data(refused):
    with refused(caramel.InputError, "'batches'", "data="):
        caramel.ARModel(caramel.capture(fit, SPEC), 2, sharding="batches")


FIXED = [tf.TensorSpec([6, 3]), tf.TensorSpec([6])]


def by_number(x, y):
    """A step that needs the number of examples when it is traced."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((tf.linalg.matvec(x, WEIGHTS) - y) ** 2) / x.shape[0]
    WEIGHTS.assign_sub(0.0 * tape.gradient(loss, WEIGHTS))
    return loss


def test_batches_of_a_size_that_does_not_fit(refused):
    data = examples().batch(6, drop_remainder=True)
    with model(data, step=by_number, inputs=FIXED).session() as session:
        assert session.step().examples == 6
    assert model(data, step=by_number, inputs=FIXED, sharding="batches").plan.sharding == "batches"
    words = ["3 examples", "have 6, not 12", "[None, ...]"]
    other = examples().batch(12, drop_remainder=True)
    refuse_at_compilation(refused, caramel.InputError, words, other, step=by_number, inputs=FIXED)
    words = ["3 examples", "drop_remainder"]
    refuse_at_compilation(refused, caramel.InputError, words, examples().batch(4, True), step=by_number, inputs=FIXED)
    with model(other, inputs=FIXED).session() as session:  # where the step takes any number, batches may have one
        assert session.step().examples == 12


def test_a_batch_that_turns_out_not_to_fit(refused):
    with model(examples(8).batch(6), step=by_number, inputs=FIXED).session() as session:
        assert session.step().examples == 6
        with refused(caramel.DataError, "3 examples", "batch 1", "[1, 1]"):
            session.step()
        with pytest.raises(caramel.EndOfData):
            session.step()


@pytest.mark.parametrize("reduce, size", [(tf.reduce_mean, 3), *in_soak((tf.reduce_sum, 1))])
def test_uneven_batches_refused(refused, reduce, size):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = reduce((tf.linalg.matvec(x, WEIGHTS) - y) ** 2)
        WEIGHTS.assign_sub(0.0 * tape.gradient(loss, WEIGHTS))
        return loss

    data = examples(4 + size).batch(4).concatenate(examples().batch(4))
    with model(data, step=step, uneven_batches="refuse").session() as session:
        session.step()
        with refused(caramel.DataError, "batch 1", "uneven_batches='weight'"):
            while True:
                session.step()
        assert session.step().examples == 4  # what follows goes on
    with model(data, step=step).session() as session:
        assert sum(r.examples for r in session.run()) == 16 + size


# -- feeding ---------------------------------------------------------------------------------


def test_arrays_cannot_be_fed(refused):
    arrays = np.ones([4, 3], np.float32), np.ones([4], np.float32)
    with model(examples().batch(4)).session() as session:
        with refused(caramel.InputError, "dataset", "step()", "data="):
            session.step(*arrays)
        with refused(caramel.InputError, "dataset", "arguments_0", "data="):
            session.step(arguments_0=arrays[0], arguments_1=arrays[1])
        with refused(caramel.InputError, "dataset", "run(steps=...)", "data="):
            session.run([arrays])
        assert session.step_count == 0
        assert len(session.run()) == 3  # nothing was taken


def test_without_a_dataset(refused):
    with caramel.ARModel(caramel.capture(fit, SPEC), 2).session() as session:
        with refused(caramel.InputError, "data="):
            session.run(steps=3)
        with refused(caramel.InputError, "data="):
            session.restart_data()


# -- graphs ----------------------------------------------------------------------------------


def regression(x, y):
    weights = v1.get_variable("w", [3], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
    v1.train.GradientDescentOptimizer(0.1).minimize(loss)


def test_two_elements_in_a_step(compiled, refused):
    def build():
        iterator = v1.data.make_one_shot_iterator(examples().batch(4))
        regression(iterator.get_next()[0], iterator.get_next()[1])

    with refused(caramel.UnsupportedError, "IteratorGetNext", "call get_next() once"):
        compiled(build)


def test_two_iterators_in_a_step(compiled, refused):
    def build():
        first, second = (v1.data.make_one_shot_iterator(examples().batch(4)) for _ in range(2))
        regression(first.get_next()[0], second.get_next()[1])

    with refused(caramel.UnsupportedError, "IteratorGetNext_1", "Dataset.zip"):
        compiled(build)


def reinitialisable(datasets):
    first = datasets[0]
    iterator = v1.data.Iterator.from_structure(v1.data.get_output_types(first), v1.data.get_output_shapes(first))
    for dataset in datasets:
        iterator.make_initializer(dataset)
    regression(*iterator.get_next())


def test_an_iterator_of_several_datasets(compiled, refused):
    with refused(caramel.UnsupportedError, "IteratorV2", "several datasets", "data="):
        compiled(lambda: reinitialisable([examples().batch(4), examples().batch(6)]))
    assert compiled(lambda: reinitialisable([examples().batch(4)])).signature.data is not None


def test_an_iterator_without_an_initializer(compiled, refused):
    def build():
        first = examples().batch(4)
        iterator = v1.data.Iterator.from_structure(v1.data.get_output_types(first), v1.data.get_output_shapes(first))
        regression(*iterator.get_next())

    with refused(caramel.UnsupportedError, "no initializer", "data="):
        compiled(build)


def test_an_iterator_by_its_handle(compiled, refused):
    def build():
        handle = v1.placeholder(tf.string, [])
        first = examples().batch(4)
        iterator = v1.data.Iterator.from_string_handle(
            handle, v1.data.get_output_types(first), v1.data.get_output_shapes(first)
        )
        regression(*iterator.get_next())

    with refused(caramel.UnsupportedError, "IteratorFromStringHandle", "data="):
        compiled(build)


def test_a_dataset_made_from_a_placeholder(compiled, refused):
    def initialised():
        x = v1.placeholder(tf.float32, [None, 3], "everything")
        iterator = v1.data.make_initializable_iterator(Dataset.from_tensor_slices((x, x[:, 0])).batch(4))
        regression(*iterator.get_next())
        return iterator.initializer

    with refused(caramel.UnsupportedError, "'everything'", "placeholder"):
        compiled(initialised)


def test_a_dataset_made_from_random_numbers(compiled, refused):
    """Each run of the initializer would draw others; a function of the dataset draws them on the workers."""

    def build(iterator, drawn):
        x = tf.random.normal([12, 3], seed=1) if drawn else tf.ones([12, 3])
        data = Dataset.from_tensor_slices((x, x[:, 0])).map(lambda x, y: (x, y + tf.random.normal([], seed=2)))
        regression(*iterator(data.batch(4)).get_next())

    with refused(caramel.UnsupportedError, "random_normal", "RandomStandardNormal", "dataset.map"):
        compiled(lambda: build(v1.data.make_initializable_iterator, True))
    assert compiled(lambda: build(v1.data.make_initializable_iterator, False)).signature.data is not None


def test_a_ragged_iterator(compiled, refused):
    def build():
        data = Dataset.from_tensor_slices((tf.ragged.constant([[1.0], [2.0, 3.0]]), [1.0, 2.0])).batch(2)
        x, y = v1.data.make_one_shot_iterator(data).get_next()
        regression(tf.ensure_shape(x.to_tensor(), [None, 3]), y)

    with refused(caramel.UnsupportedError, "ragged or sparse"):
        compiled(build)


def test_an_iterator_and_data(compiled, refused):
    data = examples().batch(4)
    with refused(caramel.InputError, "iterator", "data="):
        compiled(lambda: regression(*v1.data.make_one_shot_iterator(examples().batch(4)).get_next()), data=data)


def placeholders():
    regression(v1.placeholder(tf.float32, [None, 3], "x"), v1.placeholder(tf.float32, [None], "y"))


@pytest.mark.parametrize(
    "data, words",
    [
        (examples().map(lambda x, y: x).batch(4), ["1 tensors", "x, y"]),
        (examples().map(lambda x, y: {"x": x, "z": y}).batch(4), ["'z'", "x, y"]),
        (examples().map(lambda x, y: {"x": x}).batch(4), ["'y'", "split"]),
        (examples().map(lambda x, y: (y, x)).batch(4), ["'x'", "[None, 3]", "[None]"]),
    ],
)
def test_data_that_does_not_fit_the_placeholders(compiled, refused, data, words):
    with refused(caramel.InputError, *words):
        compiled(placeholders, data=data)


def test_data_for_placeholders(compiled):
    for data in (examples(), examples().map(lambda x, y: {"y": y, "x": x})):
        with compiled(placeholders, data=data.batch(5)).session() as session:
            assert [r.examples for r in session.run()] == [5, 5, 2]


def test_a_placeholder_beside_the_data(compiled, refused):
    """What is not in the dataset, and the same for all workers, is fed."""

    def build():
        x, y = v1.data.make_one_shot_iterator(examples().batch(4)).get_next()
        rate = v1.placeholder(tf.float32, [], "rate")
        weights = v1.get_variable("w", [3], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
        v1.train.GradientDescentOptimizer(rate).minimize(loss)

    with compiled(build).session() as session:
        with refused(caramel.InputError, "'rate'", "missing"):
            session.step()
        first = session.step({"rate": 0.0}).loss
        assert session.step(rate=0.1).loss == first  # the rate of 0 changed nothing
        assert session.step(0.1).loss < first
