"""Datasets that the workers run themselves: the same training as on one device with the same dataset.

The oracle iterates over a dataset of its own, made by the same code, and trains the unmodified program on
what it gives. With ``"batches"`` it joins N batches for a step.
"""

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import exact_keras as k
import numpy as np
import pytest
import tensorflow as tf
from exact_common import (
    CLASSES,
    INPUTS,
    LOCAL,
    RTOL,
    Trained,
    assert_bits,
    assert_close,
    assert_moved,
    in_process,
    serial_config,
    serial_functions,
)
from variants import in_soak, mostly_in_soak

import caramel

v1 = tf.compat.v1
EXAMPLES = 23


@pytest.fixture(autouse=True)
def _kernels_as_written():
    with serial_functions():
        yield


@pytest.fixture
def no_global_seed():
    """As in a fresh process: Keras sets TensorFlow's global seed, from which shuffles then take theirs."""
    tf.random.set_seed(None)


def arrays(examples=EXAMPLES, seed=5):
    """Inputs and labels."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(examples, INPUTS)), rng.integers(0, CLASSES, examples)


def slices(examples=EXAMPLES):
    """A dataset of single examples."""
    return tf.data.Dataset.from_tensor_slices(arrays(examples))


def scaled(x, y):
    return x * 0.5 + 0.25, y


def not_first_class(x, y):
    return y > 0


def parts(number):
    """Three of the files, so to speak."""
    x, y = arrays()
    return tf.data.Dataset.from_tensor_slices((tf.gather(x, [number, number + 5]), tf.gather(y, [number, number + 5])))


def noisy(x, y):
    """Noise from a hidden generator, which begins again with each pass."""
    return x + tf.random.normal([INPUTS], seed=3, dtype=tf.float64), y


def from_sparse():
    """Elements that are dense only at the end of the pipeline; more than a graph should hold as numbers."""
    x, y = arrays()
    return tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), y)).map(lambda x, y: (tf.sparse.to_dense(x), y))


DATASETS = {
    "whole batches": lambda: slices(24).batch(6),
    "the last batch is smaller": lambda: slices().batch(5),
    "the last batch has fewer examples than workers": lambda: slices(22).batch(7),
    "remainder dropped": lambda: slices().batch(5, drop_remainder=True),
    "shuffled": lambda: slices().shuffle(9, seed=4).batch(5),
    "shuffled once": lambda: slices().shuffle(9, seed=4, reshuffle_each_iteration=False).batch(5),
    "shuffled and repeated": lambda: slices().shuffle(23, seed=4).repeat(2).batch(6),
    "cached, then shuffled": lambda: slices().map(scaled).cache().shuffle(23, seed=4).batch(5),
    "mapped in any order": lambda: slices().map(scaled, tf.data.AUTOTUNE, deterministic=False).batch(6).prefetch(2),
    "any order in the options": lambda: slices().map(scaled, tf.data.AUTOTUNE).batch(6).with_options(any_order()),
    "filtered": lambda: slices().filter(not_first_class).batch(4),
    "interleaved": lambda: tf.data.Dataset.range(8).interleave(parts, cycle_length=3).batch(5),
    "with noise": lambda: slices().map(noisy).batch(5),
    "from sparse tensors": lambda: from_sparse().batch(5),
    "sampled": lambda: tf.data.Dataset.sample_from_datasets([slices(9), slices(12)], seed=6).batch(4),
}


ORDERED = {  # what the oracle takes instead, for which one order is needed: several workers keep the written one
    "mapped in any order": lambda: slices().map(scaled).batch(6),
    "any order in the options": lambda: slices().map(scaled).batch(6),
}


def any_order():
    options = tf.data.Options()
    options.deterministic = False
    return options


def listed(dataset):
    """The batches of one pass, as arrays."""
    return [tuple(each.numpy() for each in batch) for batch in dataset]


def passes(make, number=2):
    """The batches of some passes over one dataset object."""
    dataset = make()
    return [batch for _ in range(number) for batch in listed(dataset)]


def trained(session, steps):
    """Results of some steps on the workers' dataset, over as many passes as it takes."""
    results = session.run(steps=steps)
    return Trained(
        [r.loss for r in results],
        [r.worker_losses for r in results],
        {name: np.asarray(value) for name, value in session.values().items()},
    )


class Program:
    """A small classifier with momentum and decay, whose loss is the mean or the sum over the batch."""

    def __init__(self, reduction="mean"):
        rng = np.random.default_rng(2)
        self.kernel = tf.Variable(rng.normal(size=(INPUTS, CLASSES)), name="kernel")
        self.momentum = tf.Variable(tf.zeros_like(self.kernel), name="momentum", trainable=False)
        self.reduce = {"mean": tf.reduce_mean, "sum": lambda each: tf.reduce_sum(each) / 5}[reduction]

    def step(self, x, y):
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=tf.tanh(x @ self.kernel))
            loss = self.reduce(each)
        gradient = tape.gradient(loss, self.kernel) + 0.01 * self.kernel
        self.kernel.assign_sub(0.1 * self.momentum.assign(0.9 * self.momentum + gradient))
        return loss

    def values(self):
        return {"kernel": self.kernel.numpy(), "momentum": self.momentum.numpy()}


def session_on(make, workers, cluster=None, reduction="mean", **options):
    """A fresh session of a fresh program on a dataset."""
    context = caramel.capture(Program(reduction).step, data=make() if make not in (own, share) else make)
    return caramel.ARModel(context, workers, **options).session(cluster or in_process())


def one_device(batches, reduction="mean"):
    """The oracle's result."""
    program = Program(reduction)
    start, step = program.values(), tf.function(program.step, reduce_retracing=True)
    losses = [float(step(*batch)) for batch in batches]
    assert_moved(start, program.values())
    return Trained(losses, [(loss,) for loss in losses], program.values())


# -- slices ----------------------------------------------------------------------------------

DATASETS_IN_SOAK = (  # those of the others that are alike are tested with them
    "whole batches",
    "the last batch is smaller",
    "remainder dropped",
    "shuffled once",
    "shuffled and repeated",
    "cached, then shuffled",
    "filtered",
)


@pytest.mark.parametrize(
    "name, workers",
    [
        *((name, 3) for name in DATASETS if name not in DATASETS_IN_SOAK),
        ("shuffled and repeated", 1),
        *in_soak(
            ("shuffled and repeated", 2),
            *(("the last batch is smaller", workers) for workers in (1, 2)),
            *((name, 2) for name in ORDERED),
            *((name, 3) for name in DATASETS_IN_SOAK),
        ),
    ],
)
def test_every_batch_is_split(name, workers):
    batches = passes(ORDERED.get(name, DATASETS[name]))
    with session_on(DATASETS[name], workers) as session:
        got = trained(session, len(batches))
    want = one_device(batches)
    np.testing.assert_allclose(got.losses, want.losses, rtol=RTOL)
    assert_close(got.values, want.values)


@pytest.mark.parametrize("workers", [*in_soak(2), 3])
def test_the_parts_are_those_that_are_fed(workers):
    """Bit for bit what feeding the same batches as arrays gives, for each worker."""
    case = k.Case("adam", (*LOCAL, "clip"), "float32")
    make = lambda: slices().map(lambda x, y: (tf.cast(x, tf.float32), y)).batch(5)  # noqa: E731
    batches = passes(make)
    fed = k.distributed(case, workers, batches)
    context = caramel.capture(tf.function(k.Program(case).step), data=make())
    with caramel.ARModel(context, workers).session(in_process()) as session:
        got = trained(session, len(batches))
    assert got.worker_losses == fed.worker_losses
    assert_bits(got.values, fed.values)


@pytest.mark.parametrize("reduction, workers", [*in_soak(("mean", 2)), ("mean", 4), ("sum", 4)])
def test_fewer_examples_than_workers(workers, reduction):
    """A batch of one example for many workers: those without any count nothing."""
    make = lambda: slices(9).batch(4)  # noqa: E731
    batches = passes(make)
    with session_on(make, workers, reduction=reduction) as session:
        results = session.run(steps=len(batches))
        values = session.values()
    want = one_device(batches, reduction)
    np.testing.assert_allclose([r.loss for r in results], want.losses, rtol=RTOL)
    assert_close(values, want.values)
    assert [r.examples for r in results] == [4, 4, 1] * 2


def numbered(make):
    """A step that also returns which examples it saw, on a dataset of (number, number as float64)."""
    variable = tf.Variable(tf.zeros([], tf.float64), name="w")

    def step(number, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(variable - x))
        variable.assign_sub(0.1 * tape.gradient(loss, variable))
        return {"loss": loss, "seen": tf.identity(number)}

    return caramel.capture(step, data=make())


def seen(results):
    """For each step the examples of all workers, in rank order."""
    return [np.concatenate(r.outputs["seen"]).tolist() for r in results]


def numbers(count):
    return tf.data.Dataset.range(count).map(lambda n: (n, tf.cast(n, tf.float64)))


UNSEEDED = {
    "shuffled": lambda: numbers(24).shuffle(24).batch(6),
    "shuffled twice": lambda: numbers(24).shuffle(24).shuffle(24).batch(6),
    "sampled": lambda: tf.data.Dataset.sample_from_datasets(
        [numbers(12), numbers(24).skip(12)], stop_on_empty_dataset=False
    ).batch(6),
}


@pytest.mark.parametrize("name", mostly_in_soak(list(UNSEEDED), "shuffled"))
def test_a_shuffle_without_a_seed_is_the_same_on_all_workers(name, no_global_seed):
    """Together the workers see every example once in a pass, in another order in each pass and each session."""
    model = caramel.ARModel(numbered(UNSEEDED[name]), 3)
    orders = []
    for _ in range(2):
        with model.session(in_process()) as session:
            orders += [[n for batch in seen(session.run()) for n in batch] for _ in range(2)]
    assert all(sorted(order) == list(range(24)) for order in orders)
    if name != "sampled":  # RandomDataset draws the same numbers in each pass, on one device, too
        assert len({tuple(order) for order in orders}) == 4
        assert orders[0] != sorted(orders[0])
    assert orders[0] != orders[2]


def test_the_graph_is_the_same_every_time(no_global_seed):
    """The seed that differs from run to run is fed; functions are not named by what was traced before."""
    texts = []
    for _ in range(2):
        tf.keras.backend.clear_session(free_memory=False)
        model = caramel.ARModel(numbered(UNSEEDED["shuffled"]), 2)
        texts.append(model.graph_def.SerializeToString(deterministic=True))
        tf.function(lambda x: x + 1).get_concrete_function(tf.TensorSpec([]))
    assert texts[0] == texts[1]


# -- batches ---------------------------------------------------------------------------------


def joined(batches, workers):
    """Groups of N batches, the last of them perhaps smaller."""
    groups = [batches[start : start + workers] for start in range(0, len(batches), workers)]
    return [tuple(np.concatenate(arrays) for arrays in zip(*group)) for group in groups]


@pytest.mark.parametrize(
    "name, workers",
    [
        *in_soak(*(("the last batch is smaller", workers) for workers in (1, 2))),
        ("the last batch is smaller", 3),
        *in_soak(*((name, 3) for name in ("shuffled", "remainder dropped", "interleaved"))),
    ],
)
def test_every_worker_takes_a_batch(name, workers):
    dataset = DATASETS[name]()
    groups = [group for _ in range(2) for group in joined(listed(dataset), workers)]
    with session_on(DATASETS[name], workers, sharding="batches") as session:
        got = trained(session, len(groups))
    want = one_device(groups)
    np.testing.assert_allclose(got.losses, want.losses, rtol=RTOL)
    assert_close(got.values, want.values)


def test_fewer_batches_than_workers():
    make = lambda: slices(10).batch(5)  # noqa: E731
    with session_on(make, 4, sharding="batches") as session:
        got = trained(session, 3)
    want = one_device(joined(listed(make()), 4) * 3)
    np.testing.assert_allclose(got.losses, want.losses, rtol=RTOL)
    assert_close(got.values, want.values)


# -- a dataset of each worker's own ----------------------------------------------------------


def own(workers, rank):
    """Ranks have different numbers of batches of different sizes."""
    return slices().shard(workers, rank).batch(3 + rank)


def share(workers, rank):
    """The static size of a batch depends on the number of workers, and with 3 or 4 of them on the rank."""
    sizes = [len(part) for part in np.array_split(np.arange(11), workers)]
    return slices().skip(sum(sizes[:rank])).batch(sizes[rank], drop_remainder=True).repeat()


@pytest.mark.parametrize("workers", [*in_soak(1, 2), 3])
def test_batches_of_a_static_size_that_depends_on_the_workers(workers):
    per_worker = [listed(share(workers, rank).take(5)) for rank in range(workers)]
    assert all(share(workers, 0).element_spec[0].shape[0] == len(batch[0]) for batch in per_worker[0])
    steps = [tuple(np.concatenate(arrays) for arrays in zip(*batches)) for batches in zip(*per_worker)]
    with session_on(share, workers) as session:
        got = trained(session, len(steps))
    want = one_device(steps)
    np.testing.assert_allclose(got.losses, want.losses, rtol=RTOL)
    assert_close(got.values, want.values)


@pytest.mark.parametrize("workers", [*in_soak(1, 2), 3])
def test_workers_that_end_early_count_nothing(workers):
    per_worker = [listed(own(workers, rank)) for rank in range(workers)]
    length = max(len(batches) for batches in per_worker)
    if workers > 1:
        assert min(len(batches) for batches in per_worker) < length
    steps = [
        tuple(np.concatenate(a) for a in zip(*(b[number] for b in per_worker if number < len(b))))
        for number in range(length)
    ]
    with session_on(own, workers) as session:
        results = [*session.run(), *session.run()]
        values = session.values()
    want = one_device(steps * 2)
    np.testing.assert_allclose([r.loss for r in results], want.losses, rtol=RTOL)
    assert_close(values, want.values)


# -- TensorFlow 1 ----------------------------------------------------------------------------


def build(kind):
    """A TF1 program that reads from an iterator."""
    v1.set_random_seed(3)
    dataset = v1.data.Dataset.from_tensor_slices(arrays()).shuffle(23, seed=8).batch(5)
    if kind == "one shot":
        iterator = v1.data.make_one_shot_iterator(dataset.repeat())
    else:
        iterator = v1.data.make_initializable_iterator(dataset)
    x, y = iterator.get_next()
    w = v1.get_variable("w", [INPUTS, CLASSES], tf.float64, v1.glorot_uniform_initializer(), use_resource=True)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=tf.matmul(x, w)))
    train_op = v1.train.MomentumOptimizer(0.05, 0.9).minimize(loss, v1.train.get_or_create_global_step())
    return iterator, loss, train_op


@pytest.mark.parametrize("kind, workers", [("one shot", 2), *in_soak(("initializable", 1)), ("initializable", 3)])
def test_a_program_with_an_iterator(kind, workers):
    with tf.Graph().as_default(), v1.Session(config=serial_config()) as device:
        iterator, loss, train_op = build(kind)
        device.run(v1.global_variables_initializer())
        want = []
        for _ in range(2):
            if kind == "initializable":
                device.run(iterator.initializer)
            want += [device.run([loss, train_op])[0] for _ in range(5)]
        values = {v.op.name: value for v, value in zip(v1.global_variables(), device.run(v1.global_variables()))}
    with caramel.capture() as context:
        build(kind)
    with caramel.ARModel(context, workers).session(in_process()) as session:
        results = session.run(steps=10)
        np.testing.assert_allclose([r.loss for r in results], want, rtol=RTOL)
        assert_close(session.values(), values)
        assert session.step_count == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "kinds", in_soak((("reinitializable", "own"),), (("one shot", "placeholders"),)), ids=", ".join
)
def test_programs_in_a_process_without_tensorflow_2(kinds):
    """Iterators and placeholders after disable_v2_behavior(), which is for a whole process."""
    program = Path(__file__).with_name("data_v1_program.py")
    environment = os.environ | {"PYTHONPATH": str(Path(caramel.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, program, *kinds], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same: ") == len(kinds)


# -- saving and restoring --------------------------------------------------------------------


def kept_by_chance(x, y):
    return tf.random.uniform([], seed=3) < 0.7


def inside(dataset):
    """The dataset twice, each time begun when it is needed."""
    return tf.data.Dataset.range(2).flat_map(lambda number: dataset)


@cache
def csv_file():
    """A file with a header, in which TensorFlow does not restore the position; it goes with the process."""
    x, y = arrays(60)
    rows = [",".join([*(repr(float(value)) for value in row), str(label)]) for row, label in zip(x, y)]
    file = tempfile.NamedTemporaryFile("w", suffix=".csv")  # noqa: SIM115 - kept by the cache
    file.write("\n".join([",".join(f"column_{n}" for n in range(INPUTS + 1)), *rows]))
    file.flush()
    return file


def from_csv():
    types = [tf.float64] * INPUTS + [tf.int64]
    data = tf.data.experimental.CsvDataset(csv_file().name, types, header=True)
    return data.map(lambda *row: (tf.stack(row[:-1]), row[-1])).batch(5)


BETWEEN = {  # where it matters, longer than what is read ahead
    "with noise": lambda: slices(60).shuffle(9, seed=4).map(noisy).batch(5),
    "kept by chance": lambda: slices(60).shuffle(9, seed=4).filter(kept_by_chance).batch(4),
    "from CSV": from_csv,
    "shuffled, then cached": lambda: slices().shuffle(23, seed=4).cache().batch(5),
    "joined": lambda: slices(9).concatenate(slices(12).shuffle(12, seed=4)).batch(5),
    "shuffled inside": lambda: inside(slices(12).shuffle(12, seed=4)).batch(5),
    "shuffled": DATASETS["shuffled"],
    "shuffled and repeated": DATASETS["shuffled and repeated"],
    "cached, then shuffled": DATASETS["cached, then shuffled"],
    "of unknown length": lambda: slices().shuffle(23, seed=4).filter(not_first_class).batch(4),
}


POINTS = {  # steps before saving on 2 workers, and workers that go on
    "from CSV": [(8, 3)],
    "with noise": [(8, 3)],
    "shuffled, then cached": [(8, 3)],
    "shuffled": [(0, 3), (5, 3)],
    "shuffled and repeated": [(11, 2)],  # a pass is 8 steps, with 2 shuffles
}
POINTS_IN_SOAK = {
    **{name: [(3, 3)] if name in POINTS else [(3, 3), (8, 3)] for name in BETWEEN},
    "shuffled": [(3, 2), (3, 3), (5, 2), (8, 3)],
    "shuffled and repeated": [(0, 3), (3, 2), (3, 3), (5, 2), (8, 2), (8, 3), (15, 2), (15, 3)],
}


@pytest.mark.parametrize(
    "name, before, others",
    [
        *((name, *point) for name in POINTS for point in POINTS[name]),
        *in_soak(*((name, *point) for name in BETWEEN for point in POINTS_IN_SOAK[name])),
    ],
)
def test_a_session_goes_on_where_another_was_saved(name, before, others, tmp_path):
    """Before the first step, in the middle of a pass, at its end and in the second one; 2 workers, then others.

    How far a shuffle has come is more than the number of passes, if it is repeated in each.
    """
    make = BETWEEN[name]
    with session_on(make, 2) as session:
        session.run(steps=before)
        session.save(tmp_path / "saved")
    with session_on(make, others) as session:
        session.restore(tmp_path / "saved")
        got = trained(session, 4)
    want = one_device(passes(make, 3)[: before + 4])
    np.testing.assert_allclose(got.losses, want.losses[before:], rtol=RTOL)
    assert_close(got.values, want.values)


@pytest.mark.parametrize("before, others", [(5, 3), *in_soak((0, 3), (1, 2), (1, 3), (3, 3), (5, 2))])
def test_a_session_in_batches_goes_on(before, others, tmp_path):
    """A pass has 5 batches: 3 steps of 2 batches, the last of one; or 2 steps of 3 batches."""
    make = DATASETS["shuffled"]
    with session_on(make, 2, sharding="batches") as session:
        session.run(steps=before)
        session.save(tmp_path / "saved")
    with session_on(make, others, sharding="batches") as session:
        session.restore(tmp_path / "saved")
        got = trained(session, 4)
    dataset = make()
    per_pass = [listed(dataset) for _ in range(4)]
    first = [group for batches in per_pass for group in joined(batches, 2)][:before]
    number, in_pass = divmod(before, 3)
    rest = joined(per_pass[number][in_pass * 2 :], others)
    rest += [group for batches in per_pass[number + 1 :] for group in joined(batches, others)]
    want = one_device([*first, *rest[:4]])
    np.testing.assert_allclose(got.losses, want.losses[before:], rtol=RTOL)
    assert_close(got.values, want.values)


def test_a_shuffle_without_a_seed_goes_on(tmp_path, no_global_seed):
    """What is left of the pass is what was not seen before, for another number of workers, too."""
    context = numbered(UNSEEDED["shuffled"])
    with caramel.ARModel(context, 2).session(in_process()) as session:
        first = seen(session.run(steps=1))
        session.save(tmp_path / "saved")
        rest = seen(session.run())
        second = seen(session.run())
    for workers in (2, 3):
        with caramel.ARModel(context, workers).session(in_process()) as session:
            session.restore(tmp_path / "saved")
            assert seen(session.run()) == rest
            assert seen(session.run()) == second
    assert sorted(n for batch in first + rest for n in batch) == list(range(24))


BETWEEN_PASSES = {
    **BETWEEN,
    "in order": DATASETS["the last batch is smaller"],
    "shuffled once": DATASETS["shuffled once"],
    "sampled": DATASETS["sampled"],
}


@pytest.mark.parametrize("name", mostly_in_soak(list(BETWEEN_PASSES), "shuffled and repeated", "of unknown length"))
def test_a_session_goes_on_with_the_next_pass(name, tmp_path):
    """Saved when passes were over, and once more by the session that restored it; the others have 3 workers."""
    make = BETWEEN_PASSES[name]
    with session_on(make, 2) as session:
        before = sum(len(session.run()) for _ in range(2))
        session.save(tmp_path / "saved")
    with session_on(make, 3) as session:
        session.restore(tmp_path / "saved")
        session.save(tmp_path / "again")
    with session_on(make, 3) as session:
        session.restore(tmp_path / "again")
        got = trained(session, before)
    want = one_device(passes(make, 4)[: 2 * before])
    np.testing.assert_allclose(got.losses, want.losses[before:], rtol=RTOL)
    assert_close(got.values, want.values)


def test_an_iterator_goes_on_with_the_next_pass(tmp_path):
    """Its initializer makes the dataset anew, with seeds of that pass."""

    def context():
        v1.set_random_seed(None)
        with caramel.capture() as found:
            dataset = v1.data.Dataset.from_tensor_slices(arrays()).shuffle(23).batch(5)
            x, y = v1.data.make_initializable_iterator(dataset).get_next()
            w = v1.get_variable("w", [INPUTS, CLASSES], tf.float64, v1.zeros_initializer(), use_resource=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=tf.matmul(x, w)))
            v1.train.GradientDescentOptimizer(0.05).minimize(loss)
        return caramel.ARModel(found, 2)

    with context().session(in_process()) as session:
        first = [r.loss for r in session.run()]
        session.save(tmp_path / "saved")
        want = [r.loss for r in session.run(steps=7)]
    with context().session(in_process()) as session:
        session.restore(tmp_path / "saved")
        assert [r.loss for r in session.run(steps=7)] == want
    assert len({*first, *want}) == len(first) + len(want)


@pytest.mark.parametrize("steps", [*in_soak(None), 2])
def test_own_datasets_go_on(steps, tmp_path):
    """After a whole pass, and in the middle of one."""
    with session_on(own, 3) as session:
        session.run(steps=steps)
        session.save(tmp_path / "saved")
        want = trained(session, 5)
    with session_on(own, 3) as session:
        session.restore(tmp_path / "saved")
        got = trained(session, 5)
    assert got.losses == want.losses
    assert_bits(got.values, want.values)


def test_own_datasets_go_on_after_some_have_ended(tmp_path):
    """A worker at its end needs an element to go on with."""
    lengths = [len(listed(own(3, rank))) for rank in range(3)]
    assert min(lengths) < max(lengths)
    with session_on(own, 3) as session:
        session.run(steps=max(lengths) - 1)
        session.save(tmp_path / "saved")
        want = session.step()
    with session_on(own, 3) as session:
        session.restore(tmp_path / "saved")
        got = session.step()
    assert got.loss == want.loss
    assert got.examples == want.examples


def test_a_checkpoint_of_another_pipeline_passes_over_what_was_taken(tmp_path):
    """The iterators' state does not fit, but the number of batches does."""
    with session_on(lambda: slices(20).batch(5), 2) as session:
        session.run(steps=2)
        session.save(tmp_path / "saved")
    with session_on(lambda: slices(20).map(scaled).batch(5), 2) as session:
        session.restore(tmp_path / "saved")
        got = session.run()
    assert [r.step for r in got] == [3, 4]
    batches = [*listed(slices(20).batch(5))[:2], *listed(slices(20).map(scaled).batch(5))[2:]]
    np.testing.assert_allclose([r.loss for r in got], one_device(batches).losses[2:], rtol=RTOL)


def test_a_single_device_checkpoint_starts_the_data_anew(tmp_path):
    case = k.Case("momentum")
    make = DATASETS["shuffled"]
    device = k.OneDevice(case)
    device.train(passes(make, 1))
    path = device.program.checkpoint().write(str(tmp_path / "device"))
    program = k.Program(case)
    program.build()
    context = caramel.capture(program.step, data=make(), checkpoint=program.checkpoint())
    with caramel.ARModel(context, 2).session(in_process()) as session:
        session.run(steps=2)
        session.restore(path)
        got = trained(session, 4)
    want = device.train(passes(make, 1)[:4])
    np.testing.assert_allclose(got.losses, want.losses, rtol=RTOL)


# -- processes -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("options", [{}, *in_soak({"sharding": "batches"})])
def test_workers_in_processes_of_their_own(options, tmp_path):
    make = DATASETS["cached, then shuffled"]
    with session_on(make, 3, **options) as session:
        want = trained(session, 8)
    with session_on(make, 3, cluster=caramel.LocalProcesses(), **options) as session:
        session.run(steps=3)
        session.save(tmp_path / "saved")
        session.run(steps=2)
        session.restore(tmp_path / "saved")
        got = trained(session, 5)
    np.testing.assert_allclose(got.losses, want.losses[3:], rtol=RTOL)
    assert_close(got.values, want.values)


@pytest.mark.soak  # as test_own_datasets_go_on, and test_workers_in_processes_of_their_own
@pytest.mark.slow
@pytest.mark.processes
def test_own_datasets_in_processes(tmp_path):
    """The iterators' states of all workers travel to worker 0's file and back."""
    with session_on(own, 2) as session:
        want = trained(session, 6)
    with session_on(own, 2, cluster=caramel.LocalProcesses()) as session:
        session.run(steps=2)
        session.save(tmp_path / "saved")
        session.run(steps=1)
        session.restore(tmp_path / "saved")
        got = trained(session, 4)
    np.testing.assert_allclose(got.losses, want.losses[2:], rtol=RTOL)
    assert_close(got.values, want.values)
