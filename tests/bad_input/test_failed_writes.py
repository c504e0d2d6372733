"""Exports and saves that fail: the old files are as they were, and nothing is left beside them."""

import tempfile
import time

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.runtime.checkpoint_directory import CheckpointDirectory, Found
from caramel.runtime.clusters.launcher_client import LauncherClient

v1 = tf.compat.v1

X, Y = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]], np.ones(4, np.float32)


def program(line):
    """Enough variables that a checkpoint does not fit into one page of a disk."""
    ballast = v1.get_variable("ballast", [20_000], trainable=False)
    loss = line().loss
    step = v1.train.get_or_create_global_step()
    with tf.control_dependencies([v1.assign_add(ballast, tf.ones([20_000]))]):
        v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)


@pytest.fixture
def armodel(compiled, line):
    return compiled(lambda: program(line))


@pytest.fixture
def session(armodel):
    with armodel.session() as session:
        session.step(X, Y)
        yield session


@pytest.fixture
def with_objects():
    """A session whose checkpoints are tf.train.Checkpoint's, one step on."""
    weights = tf.Variable(tf.zeros([3]), name="w")
    ballast = tf.Variable(tf.zeros([20_000]), trainable=False, name="ballast")
    count = tf.Variable(0, trainable=False, dtype=tf.int64, name="iteration")

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weights) - y) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        ballast.assign_add(tf.ones([20_000]))
        count.assign_add(1)
        return loss

    # What the program does not train is saved with the objects, and only there.
    aside = tf.Variable(tf.zeros([40_000]), name="aside")
    objects = tf.train.Checkpoint(weights=weights, ballast=ballast, count=count, aside=aside)
    context = caramel.capture(step, [tf.TensorSpec([None, 3]), tf.TensorSpec([None])], checkpoint=objects)
    with caramel.ARModel(context, 2).session() as session:
        session.step(X, Y)
        yield session


def nth(*numbers):
    return lambda count: count in numbers


# -- export ----------------------------------------------------------------------------------


@pytest.fixture
def exported(armodel, compiled, line, tmp_path):
    """An export to replace, and a model of another size to replace it with."""
    target = tmp_path / "out"
    armodel.export(target)
    return target, compiled(lambda: program(line), workers=3)


def test_an_export_replaces_an_export(exported, files):
    target, other = exported
    before = files(target)
    other.export(target)
    after = files(target)
    assert before.keys() == after.keys()
    assert before["graph.pb"] != after["graph.pb"]
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_export_to_a_place_under_a_file(armodel, refused, tmp_path, files):
    (tmp_path / "file").write_text("precious")
    with refused(caramel.ExportError, str(tmp_path / "file" / "out"), "failed"):
        armodel.export(tmp_path / "file" / "out")
    assert files(tmp_path) == {"file": b"precious"}


def test_export_over_a_file(armodel, refused, tmp_path, files):
    (tmp_path / "out").write_text("precious")
    with refused(caramel.ExportError, str(tmp_path / "out"), "not an export", "another directory"):
        armodel.export(tmp_path / "out")
    assert files(tmp_path) == {"out": b"precious"}


def test_export_over_something_else(armodel, refused, tmp_path, files):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    with refused(caramel.ExportError, str(tmp_path / "out"), "not an export", "another directory"):
        armodel.export(tmp_path / "out")
    assert files(tmp_path) == {"out/thesis.tex": b"precious"}


def test_export_into_an_empty_directory(armodel, tmp_path):
    (tmp_path / "out").mkdir()
    armodel.export(tmp_path / "out")
    assert (tmp_path / "out" / "signature.json").is_file()


@pytest.mark.parametrize("number", [1, 2])
def test_export_with_a_failing_rename(exported, refused, files, failing_rename, number):
    target, other = exported
    before = files(target.parent)
    renames = failing_rename(nth(number))
    with refused(caramel.ExportError, str(target), "simulated failure"):
        other.export(target)
    assert renames() >= number
    assert files(target.parent) == before


def test_export_where_no_rename_works_any_more(exported, refused, files, failing_rename):
    """Even then the only copy of the old export must not be deleted."""
    target, other = exported
    before = files(target)
    failing_rename(lambda count: count > 1)
    with refused(caramel.ExportError, str(target), "simulated failure"):
        other.export(target)
    left = files(target)
    for name, content in before.items():
        assert content in [left[other_name] for other_name in left if other_name.startswith(name)], f"{name} is gone"
    failing_rename(lambda count: False)
    other.export(target)
    assert files(target).keys() == before.keys()
    assert files(target)["graph.pb"] != before["graph.pb"]


def test_a_first_export_with_a_failing_rename(armodel, refused, tmp_path, failing_rename):
    failing_rename(nth(1))
    with refused(caramel.ExportError, "simulated failure"):
        armodel.export(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_export_to_a_full_disk(armodel, compiled, line, refused, files, small_disk):
    place, fill = small_disk
    armodel.export(place / "out")
    before = files(place)
    fill()
    with refused(caramel.ExportError, str(place / "out"), "failed"):
        compiled(lambda: program(line), workers=3).export(place / "out")
    assert files(place, "filler") == before


def test_export_of_a_program_whose_initialiser_fails(exported, compiled, line, minimize, refused, files):
    target, _ = exported
    before = files(target.parent)

    def build():
        v1.get_variable("bad", initializer=tf.debugging.check_numerics(tf.math.log(-1.0), "no logarithm"))
        minimize(line().loss)

    with refused(caramel.CaptureError, "initialiser", "no logarithm"):
        compiled(build).export(target)
    assert files(target.parent) == before


# -- save ------------------------------------------------------------------------------------


def check_old(session, prefix, before, path, files, *but_not):
    """The files are the old ones, and they still restore to the old values."""
    assert files(path, *but_not) == before
    count = session.step_count
    session.restore(prefix)
    assert session.step_count == count - 1
    assert session.values()["ballast"].max() < count


def test_save_to_a_place_under_a_file(session, refused, tmp_path, files):
    (tmp_path / "file").write_text("precious")
    with refused(caramel.CheckpointError, str(tmp_path / "file" / "saved"), "could not be written"):
        session.save(tmp_path / "file" / "saved")
    assert files(tmp_path) == {"file": b"precious"}


@pytest.mark.parametrize("number", [1, 2])
def test_save_with_a_failing_rename(session, refused, tmp_path, files, failing_rename, number):
    """A checkpoint is two files; whichever cannot be put in place, the old pair stays."""
    prefix = tmp_path / "saved"
    session.save(prefix)
    before = files(tmp_path)
    session.step(X, Y)
    renames = failing_rename(nth(number))
    with refused(caramel.CheckpointError, str(prefix), "simulated failure"):
        session.save(prefix)
    assert renames() >= number
    check_old(session, prefix, before, tmp_path, files)


def test_a_first_save_with_a_failing_rename(session, refused, tmp_path, files, failing_rename):
    failing_rename(nth(2))
    with refused(caramel.CheckpointError, "simulated failure"):
        session.save(tmp_path / "saved")
    assert files(tmp_path) == {}


def test_save_to_a_full_disk(session, refused, small_disk, files):
    place, fill = small_disk
    session.save(place / "saved")
    before = files(place)
    session.step(X, Y)
    fill()
    with refused(caramel.CheckpointError, str(place / "saved")):
        session.save(place / "saved")
    check_old(session, place / "saved", before, place, files, "filler")


@pytest.fixture
def full_tmpdir(small_disk, monkeypatch):
    """TMPDIR is on a disk that is full by now (Python takes no full one to begin with); a function that makes room."""
    place, fill = small_disk
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    fill()
    return place, (place / "filler").unlink


def test_a_full_tmpdir(session, armodel, refused, full_tmpdir):
    """Values go to the workers and back through files there."""
    place, make_room = full_tmpdir
    before = session.step(X, Y).step
    for use in (session.values, lambda: session.assign({"ballast": np.zeros(20_000, np.float32)}), armodel.session):
        with refused(caramel.CheckpointError, str(place), "TMPDIR"):
            use()
    assert [path.name for path in place.iterdir()] == ["filler"]
    make_room()
    values = session.values()["ballast"]
    assert session.step(X, Y).step == before + 1
    np.testing.assert_array_equal(session.values()["ballast"], values + np.float32(1))
    assert list(place.iterdir()) == []


def test_no_tmpdir_at_all(session, refused, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    for use in (session.values, lambda: session.assign({"w": np.zeros(3, np.float32)})):
        with refused(caramel.CheckpointError, str(tmp_path / "gone"), "No such file", "set TMPDIR"):
            use()
    with refused(caramel.ClusterError, str(tmp_path / "gone"), "No such file", "set TMPDIR"):
        LauncherClient()


@pytest.mark.processes
@pytest.mark.usefixtures("namespaces")
def test_processes_with_a_full_tmpdir(armodel, refused, full_tmpdir):
    """Servers write there what they say; one that cannot is not waited for until the timeout."""
    place, _ = full_tmpdir
    start = time.monotonic()
    with refused(caramel.ClusterError, "did not start", str(place), "TMPDIR"):
        armodel.session(caramel.LocalProcesses())
    assert time.monotonic() - start < 60
    assert [path.name for path in place.iterdir()] == ["filler"]


def test_a_failed_save_does_not_stop_training(session, refused, tmp_path):
    (tmp_path / "file").write_text("")
    with refused(caramel.CheckpointError):
        session.save(tmp_path / "file" / "saved")
    assert session.step(X, Y).step == 2
    session.save(tmp_path / "saved")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "saved.data-00000-of-00001", "saved.index"]


# -- a directory of checkpoints --------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3])
def test_save_to_a_directory_with_a_failing_rename(session, refused, tmp_path, files, failing_rename, number):
    """A checkpoint is two files, and the list of checkpoints a third."""
    directory = CheckpointDirectory(tmp_path / "saved")
    first = directory.save(session)
    before = files(directory.path)
    session.step(X, Y)
    renames = failing_rename(nth(number))
    with refused(caramel.CheckpointError, str(directory.path), "simulated failure"):
        directory.save(session)
    assert renames() >= number
    assert files(directory.path).items() >= before.items()
    assert not [path.name for path in directory.path.iterdir() if "writing" in path.name or "old" in path.name]
    assert directory.latest() == Found(first)


def test_save_to_a_directory_on_a_full_disk(session, refused, small_disk, files):
    place, fill = small_disk
    directory = CheckpointDirectory(place)
    first = directory.save(session)
    before = files(place)
    session.step(X, Y)
    fill()
    with refused(caramel.CheckpointError, str(place)):
        directory.save(session)
    assert files(place, "filler") == before
    assert directory.latest() == Found(first)


def test_a_directory_whose_checkpoint_is_gone(session, refused, tmp_path):
    """The list says there is one: going on from nothing would train a new model over the old one."""
    directory = CheckpointDirectory(tmp_path)
    prefix = directory.save(session)
    for path in tmp_path.glob("checkpoint-*"):
        path.unlink()
    with refused(caramel.CheckpointError, prefix, "does not exist"):
        directory.latest()


def test_an_empty_directory_and_none_at_all(tmp_path):
    assert CheckpointDirectory(tmp_path).latest() is None
    assert CheckpointDirectory(tmp_path / "nothing").latest() is None


def test_a_list_of_checkpoints_that_is_damaged(session, tmp_path):
    directory = CheckpointDirectory(tmp_path)
    prefix = directory.save(session)
    (tmp_path / "checkpoint").write_text("model_checkpoint_path: ")
    found = directory.latest()
    assert found.prefix == prefix
    assert str(tmp_path / "checkpoint") in found.note


@pytest.mark.parametrize("relative", [False, True])
def test_a_directory_keeps_the_newest(session, tmp_path, monkeypatch, relative):
    monkeypatch.chdir(tmp_path)
    directory = CheckpointDirectory("saved" if relative else tmp_path / "saved", keep=2)
    for _ in range(4):
        session.step(X, Y)
        directory.save(session)
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    parts = ("index", "data-00000-of-00001")
    assert names == {"checkpoint", *(f"checkpoint-{step}.{part}" for step in (4, 5) for part in parts)}
    latest = directory.latest()
    assert latest is not None
    session.step(X, Y)
    session.restore(latest.prefix)
    assert session.step_count == 5


def test_an_old_checkpoint_that_cannot_be_removed_ends_no_training(session, tmp_path, caplog):
    directory = CheckpointDirectory(tmp_path, keep=1)
    directory.save(session)
    (tmp_path / f"checkpoint-{session.step_count}.kept").mkdir()  # which is no file to be removed
    session.step(X, Y)
    prefix = directory.save(session)
    assert directory.latest().prefix == prefix
    assert "an old checkpoint cannot be removed" in caplog.text


def test_a_directory_keeps_what_the_single_device_program_saved(session, tmp_path):
    with tf.Graph().as_default(), v1.Session() as single:
        variable = v1.Variable(1.0, name="precious")
        single.run(variable.initializer)
        v1.train.Saver([variable]).save(single, str(tmp_path / "model"), global_step=100)
    directory = CheckpointDirectory(tmp_path, keep=2)
    for _ in range(3):
        session.step(X, Y)
        directory.save(session)
    assert tf.train.load_checkpoint(str(tmp_path / "model-100")).get_tensor("precious") == 1.0


# -- save in the format of tf.train.Checkpoint -----------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_save_of_objects_with_a_failing_rename(with_objects, refused, tmp_path, files, failing_rename, number):
    """Here a checkpoint has two parts, the objects and what is beside them."""
    prefix = tmp_path / "saved"
    with_objects.save(prefix)
    before = files(tmp_path)
    with_objects.step(X, Y)
    failing_rename(nth(number))
    with refused(caramel.CheckpointError, "saved", "simulated failure"):
        with_objects.save(prefix)
    check_old(with_objects, prefix, before, tmp_path, files)


def test_save_of_objects_to_a_full_disk(with_objects, refused, small_disk, files):
    place, fill = small_disk
    with_objects.save(place / "saved")
    before = files(place)
    with_objects.step(X, Y)
    fill()
    with refused(caramel.CheckpointError, str(place / "saved")):
        with_objects.save(place / "saved")
    check_old(with_objects, place / "saved", before, place, files, "filler")
    assert [path.name for path in place.iterdir() if path.is_dir()] == []


def test_save_of_objects_to_a_disk_with_room_for_one_part(with_objects, refused, small_disk, files):
    place, fill = small_disk
    with_objects.save(place / "saved")
    before = files(place)
    with_objects.step(X, Y)
    fill()
    with open(place / "filler", "r+b") as filler:
        filler.truncate(filler.seek(0, 2) - 120_000)  # the parts have 240 kB and 80 kB
    with refused(caramel.CheckpointError, str(place / "saved")):
        with_objects.save(place / "saved")
    check_old(with_objects, place / "saved", before, place, files, "filler")
    assert [path.name for path in place.iterdir() if path.is_dir()] == []
