"""Checkpoints that are missing, damaged or of another program: refused, and nothing has changed."""

import shutil
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.runtime.checkpoint import read_values, write_values

v1 = tf.compat.v1

X, Y = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]], np.ones(4, np.float32)


def with_momentum(line, **options):
    program = line(**options)
    step = v1.train.get_or_create_global_step()
    v1.train.MomentumOptimizer(0.1, 0.9).minimize(program.loss, global_step=step)


@pytest.fixture
def session(compiled, line):
    """Two workers, two steps on."""
    with compiled(lambda: with_momentum(line)).session() as session:
        session.run([(X, Y)] * 2)
        yield session


@pytest.fixture
def unchanged(session):
    """Values and count are the same afterwards, and training goes on."""
    before, count = session.values(), session.step_count
    yield
    assert session.step_count == count
    for name, value in session.values().items():
        np.testing.assert_array_equal(value, before[name])
    assert session.step(X, Y).step == count + 1


@pytest.fixture
def write_checkpoint(tmp_path):
    """Function that writes a single-device checkpoint of some variables."""

    def write_it(**values):
        prefix = str(tmp_path / "other")
        with tf.Graph().as_default(), v1.Session() as single:
            variables = {name: v1.Variable(value, name=name) for name, value in values.items()}
            single.run(v1.global_variables_initializer())
            v1.train.Saver({name.replace("__", "/"): v for name, v in variables.items()}).save(
                single, prefix, write_meta_graph=False, write_state=False
            )
        return prefix

    return write_it


W = np.full(3, 0.5, np.float32)
GOOD = {"w": W, "w__Momentum": W, "global_step": np.int64(7)}


def test_a_good_checkpoint_of_the_same_kind(session, write_checkpoint):
    session.restore(write_checkpoint(**GOOD))
    assert session.step_count == 7
    np.testing.assert_array_equal(session.values()["w"], W)


@pytest.mark.usefixtures("unchanged")
class TestRefused:
    def test_no_checkpoint(self, session, refused, tmp_path):
        prefix = str(tmp_path / "nothing here")
        with refused(caramel.CheckpointError, "no checkpoint", prefix, ".index does not exist"):
            session.restore(prefix)

    def test_a_directory(self, session, refused, tmp_path):
        with refused(caramel.CheckpointError, "no checkpoint", str(tmp_path), "directory", "prefix"):
            session.restore(tmp_path)

    def test_its_data_file_instead_of_its_prefix(self, session, refused, tmp_path):
        session.save(tmp_path / "saved")
        with refused(caramel.CheckpointError, "no checkpoint", "saved.index", "does not exist"):
            session.restore(tmp_path / "saved.index")

    def test_a_missing_variable(self, session, refused, write_checkpoint):
        values = {name: value for name, value in GOOD.items() if name != "w__Momentum"}
        with refused(caramel.CheckpointError, "w/Momentum is missing", "same program", "optimizer"):
            session.restore(write_checkpoint(**values))

    def test_a_checkpoint_of_something_else(self, session, refused, write_checkpoint):
        with refused(caramel.CheckpointError, "w is missing", "w/Momentum is missing", "global_step is missing"):
            session.restore(write_checkpoint(kernel=W))

    def test_another_shape(self, session, refused, write_checkpoint):
        with refused(caramel.CheckpointError, "w has shape [4]", "wants [3]"):
            session.restore(write_checkpoint(**{**GOOD, "w": np.ones(4, np.float32)}))

    def test_another_rank(self, session, refused, write_checkpoint):
        with refused(caramel.CheckpointError, "w has shape [1, 3]", "wants [3]"):
            session.restore(write_checkpoint(**{**GOOD, "w": np.ones((1, 3), np.float32)}))

    def test_another_dtype(self, session, refused, write_checkpoint):
        with refused(caramel.CheckpointError, "w is float64", "wants float32"):
            session.restore(write_checkpoint(**{**GOOD, "w": np.ones(3)}))

    def test_many_things_wrong_at_once_are_counted(self, session, refused, write_checkpoint):
        with refused(caramel.CheckpointError, "w is", "w/Momentum is", "global_step is"):
            session.restore(write_checkpoint(w=np.ones(3), w__Momentum=np.ones(3), global_step=np.float32(3)))

    @pytest.mark.parametrize("keep", [0, 5])
    def test_a_truncated_data_file(self, session, refused, tmp_path, keep):
        prefix = tmp_path / "saved"
        session.save(prefix)
        data = tmp_path / "saved.data-00000-of-00001"
        data.write_bytes(data.read_bytes()[:keep])
        with refused(caramel.CheckpointError, str(prefix), "damaged"):
            session.restore(prefix)

    def test_a_changed_data_file(self, session, refused, tmp_path):
        prefix = tmp_path / "saved"
        session.save(prefix)
        data = tmp_path / "saved.data-00000-of-00001"
        data.write_bytes(bytes(255 - byte for byte in data.read_bytes()))
        with refused(caramel.CheckpointError, str(prefix), "damaged"):
            session.restore(prefix)

    def test_no_data_file(self, session, refused, tmp_path):
        prefix = tmp_path / "saved"
        session.save(prefix)
        (tmp_path / "saved.data-00000-of-00001").unlink()
        with refused(caramel.CheckpointError, str(prefix), "damaged"):
            session.restore(prefix)

    @pytest.mark.parametrize("keep", [0, 20])
    def test_a_truncated_index_file(self, session, refused, tmp_path, keep):
        prefix = tmp_path / "saved"
        session.save(prefix)
        index = tmp_path / "saved.index"
        index.write_bytes(index.read_bytes()[:keep])
        with refused(caramel.CheckpointError, str(prefix), "damaged"):
            session.restore(prefix)

    def test_an_object_based_checkpoint(self, session, refused, tmp_path):
        with tf.init_scope():
            prefix = tf.train.Checkpoint(w=tf.Variable(W)).write(str(tmp_path / "objects"))
        with refused(caramel.CheckpointError, prefix, "tf.train.Checkpoint", "checkpoint=", "caramel.capture"):
            session.restore(prefix)


# -- checkpoints of tf.train.Checkpoint ------------------------------------------------------


@pytest.fixture
def with_objects(tmp_path):
    """A session on a step whose objects are saved by tf.train.Checkpoint, and these objects."""
    weights = tf.Variable(tf.zeros([3]), name="w")
    count = tf.Variable(0, trainable=False, dtype=tf.int64, name="iteration")
    objects = tf.train.Checkpoint(weights=weights, count=count)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        count.assign_add(1)
        return loss

    context = caramel.capture(step, [tf.TensorSpec([None, 3]), tf.TensorSpec([None])], checkpoint=objects)
    with caramel.ARModel(context, 2).session() as session:
        session.step(X, Y)
        yield session, objects


def test_objects_of_another_shape(with_objects, refused, tmp_path):
    session, objects = with_objects
    before = session.values()
    other = tf.train.Checkpoint(weights=tf.Variable(tf.zeros([4])), count=tf.Variable(0, dtype=tf.int64))
    with refused(caramel.CheckpointError, "other", "does not fit"):
        session.restore(other.write(str(tmp_path / "other")))
    np.testing.assert_array_equal(session.values()["w"], before["w"])
    assert objects.weights.shape == (3,)
    assert session.step(X, Y).step == 2


def test_objects_that_are_missing(with_objects, refused, tmp_path):
    session, _ = with_objects
    before = session.values()
    other = tf.train.Checkpoint(count=tf.Variable(0, dtype=tf.int64))
    with refused(caramel.CheckpointError, "other", "does not fit"):
        session.restore(other.write(str(tmp_path / "other")))
    np.testing.assert_array_equal(session.values()["w"], before["w"])


@pytest.fixture
def went_on(with_objects, tmp_path):
    """Saves, goes on, and afterwards sees that a refused restore has left the workers and the objects alone."""
    session, objects = with_objects
    session.save(tmp_path / "saved")
    session.step(X, Y)
    before = session.values()
    objects.weights.assign([9.0, 9.0, 9.0])
    yield session
    np.testing.assert_array_equal(session.values()["w"], before["w"])
    np.testing.assert_array_equal(objects.weights.numpy(), [9.0, 9.0, 9.0])
    assert session.step(X, Y).step == 3


def test_objects_in_a_truncated_file(went_on, refused, tmp_path):
    (tmp_path / "saved.data-00000-of-00001").write_bytes(b"")
    with refused(caramel.CheckpointError, "saved"):
        went_on.restore(tmp_path / "saved")


def test_objects_beside_which_is_a_checkpoint_of_something_else(went_on, refused, tmp_path):
    write_values(tmp_path / "saved-workers", {"other": np.zeros(3)})
    with refused(caramel.CheckpointError, "saved-workers", "does not fit"):
        went_on.restore(tmp_path / "saved")


def test_objects_beside_which_is_a_truncated_file(went_on, refused, tmp_path):
    (tmp_path / "saved-workers.data-00000-of-00001").write_bytes(b"")
    with refused(caramel.CheckpointError, "saved-workers", "damaged"):
        went_on.restore(tmp_path / "saved")


# -- parts of a checkpoint that are damaged --------------------------------------------------


def damage(prefix, key):
    """Change a byte of one array of a checkpoint."""
    file = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
    content, array = file.read_bytes(), tf.train.load_checkpoint(str(prefix)).get_tensor(key).tobytes()
    assert content.count(array) == 1
    file.write_bytes(content.replace(array, bytes([array[0] ^ 1]) + array[1:]))


def test_damage_to_what_is_local_to_another_worker(compiled, line, refused, tmp_path):
    def build():
        program = line()
        average = v1.get_variable("average", [3], initializer=tf.zeros_initializer(), trainable=False)
        with tf.control_dependencies([average.assign_add(tf.reduce_mean(program.x * [1.0, 2.0, 3.0], 0))]):
            v1.train.GradientDescentOptimizer(0.1).minimize(program.loss)

    with compiled(build).session() as session:
        session.step(X, Y)
        session.save(tmp_path / "saved")
        damage(tmp_path / "saved", "caramel/worker_1/average")
        session.step(X, Y)
        before = session.values()
        with refused(caramel.CheckpointError, "saved", "damaged"):
            session.restore(tmp_path / "saved")
        for name, value in session.values().items():
            np.testing.assert_array_equal(value, before[name])


@pytest.fixture(scope="module")
def reading(tmp_path_factory):
    """A session that reads numbers, and its checkpoint after one step, from which each test goes on."""
    weights = tf.Variable(0.0, name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(x - weights)
        weights.assign_sub(0.0 * tape.gradient(loss, weights))
        return loss

    armodel = caramel.ARModel(caramel.capture(step, data=tf.data.Dataset.range(8).map(as_float).batch(2)), 2)
    good = tmp_path_factory.mktemp("reading") / "good"
    with armodel.session() as session:
        session.step()
        session.save(good)
        yield session, good


def test_a_restore_of_which_a_part_is_with_the_workers(compiled, line, refused, tmp_path, monkeypatch):
    """Values of the checkpoint, and local state from before: the session does not go on with both."""
    with compiled(lambda: with_momentum(line)).session() as session:
        session.step(X, Y)
        session.save(tmp_path / "good")
        run = session.executor.run

        def fails_after_the_first(fetches, targets, *given, **named):
            if any("broadcast" in target for target in targets):
                raise caramel.StepError("a simulated failure")
            return run(fetches, targets, *given, **named)

        monkeypatch.setattr(session.executor, "run", fails_after_the_first)
        with refused(caramel.CheckpointError, "the workers cannot take what worker 0 has read", "simulated failure"):
            session.restore(tmp_path / "good")
        monkeypatch.undo()
        with refused(caramel.StepError, "only in part", "restore a checkpoint"):
            session.step(X, Y)
        session.restore(tmp_path / "good")
        session.step(X, Y)


def test_no_room_for_other_names_of_files(session, refused, tmp_path, monkeypatch):
    session.save(tmp_path / "with[brackets]")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with refused(caramel.CheckpointError, "temporary files cannot be written", "nowhere", "TMPDIR"):
        session.restore(tmp_path / "with[brackets]")


def test_damage_to_the_position_in_the_data(reading, refused, tmp_path):
    """Variables of one step and data of another do not go on together."""
    session, good = reading
    session.restore(good)
    session.step()
    session.save(tmp_path / "bad")
    damage(tmp_path / "bad", "caramel/input/position")
    with refused(caramel.CheckpointError, "bad", "damaged"):
        session.restore(tmp_path / "bad")
    with refused(caramel.StepError, "only in part", "restore a checkpoint"):
        session.step()
    session.restore(good)
    assert session.step().loss == 2.5


NO_POSITIONS = {
    "seed": (0, 0),
    "large seed": (0, 2**63 - 1),
    "passes": (1, -1),
    "many passes": (1, 2**62),
    "elements": (2, -5),
    "many elements": (2, 2**62),
    "state": (3, 3),
    "kept": (4, 2),
    "workers": (5, 0),
    "many workers": (5, 2**40),
    "pass that never began": (1, 0),
}
"""Number of an entry of a position in the data, and a value that it never has."""


@pytest.mark.parametrize("entry, value", NO_POSITIONS.values(), ids=NO_POSITIONS)
def test_a_position_in_the_data_that_is_none(reading, refused, tmp_path, entry, value):
    """To pass over as many batches as some of these say would take for ever."""
    session, good = reading
    dtypes = tf.train.load_checkpoint(str(good)).get_variable_to_dtype_map()
    values = read_values(good, [key for key, dtype in dtypes.items() if dtype != tf.variant])
    values["caramel/input/position"][entry] = value
    write_values(
        tmp_path / "bad", {key: np.asarray(v, object) if isinstance(v, bytes) else v for key, v in values.items()}
    )
    with refused(caramel.CheckpointError, "'" + str(tmp_path / "bad") + "'", "position in the data", str(value)):
        session.restore(tmp_path / "bad")
    session.restore(good)
    assert session.step().loss == 2.5


def as_float(number):
    return tf.cast(number, tf.float32)


def test_a_worker_0_that_does_not_see_the_files(session, refused, monkeypatch):
    """As on another machine."""
    monkeypatch.setattr("caramel.runtime.checkpoint.write_values", lambda prefix, values, variables: None)
    with refused(caramel.CheckpointError, "worker 0 cannot read", "does not see the files", "TMPDIR"):
        session.assign({"w": W})


# -- after a failed step ---------------------------------------------------------------------


@pytest.fixture
def fragile(compiled, line):
    """A session whose step fails on large numbers."""

    def small(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 100.0, "the data is too large", name="check")]):
            return tf.identity(x)

    def build():
        with_momentum(line, transform=small)

    with compiled(build).session() as session:
        session.step(X, Y)
        yield session


def fail(session):
    with pytest.raises(caramel.StepError) as caught:
        session.step(X * 1e6, Y)
    return str(caught.value)


def test_a_failed_step_says_what_failed_and_where(fragile):
    message = fail(fragile)
    assert "check" in message
    assert "the data is too large" in message


USES = {
    "step": lambda session, path: session.step(X, Y),
    "run": lambda session, path: session.run([(X, Y)]),
    "flush": lambda session, path: session.flush(),
    "evaluate": lambda session, path: session.evaluate(fetches="w/Read/ReadVariableOp:0"),
    "values": lambda session, path: session.values(),
    "save": lambda session, path: session.save(path / "after"),
}


@pytest.mark.parametrize("use", USES)
def test_after_a_failed_step_the_session_refuses(fragile, refused, tmp_path, use):
    fail(fragile)
    with refused(caramel.StepError, "failed before", "restore a checkpoint", "failed with"):
        USES[use](fragile, tmp_path)
    assert not list(tmp_path.iterdir())


def test_after_a_failed_step_a_restore_makes_all_well(fragile, tmp_path):
    fragile.save(tmp_path / "before")
    expected = fragile.step(X, Y)
    fail(fragile)
    fragile.restore(tmp_path / "before")
    assert fragile.step_count == 1
    again = fragile.step(X, Y)
    assert (again.step, again.loss) == (expected.step, expected.loss)


def test_after_a_failed_step_a_failed_restore_changes_nothing(fragile, refused, tmp_path):
    fail(fragile)
    with refused(caramel.CheckpointError, "no checkpoint"):
        fragile.restore(tmp_path / "nothing")
    with refused(caramel.StepError, "restore a checkpoint"):
        fragile.step(X, Y)


def test_a_closed_session_says_so(compiled, line, refused):
    session = compiled(lambda: with_momentum(line)).session()
    session.close()
    session.close()  # closing twice does no harm
    with refused(caramel.ClusterError, "closed"):
        session.step(X, Y)


def test_copies_of_a_checkpoint_restore(session, tmp_path):
    """What is not bad input: a checkpoint that was moved."""
    session.save(tmp_path / "first")
    values = session.values()
    for suffix in (".index", ".data-00000-of-00001"):
        shutil.move(tmp_path / f"first{suffix}", tmp_path / f"second{suffix}")
    session.step(X, Y)
    session.restore(tmp_path / "second")
    np.testing.assert_array_equal(session.values()["w"], values["w"])
