"""Checkpoints on a disk that others damage, in directories that others write to, by processes that are killed."""

import contextlib
import multiprocessing
import os
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf
from variants import each_once

import caramel
from caramel.runtime import checkpoint
from caramel.runtime.checkpoint import fed_path
from caramel.runtime.checkpoint_directory import CheckpointDirectory, Found
from caramel.runtime.held_directory import held_directory

X = np.arange(12, dtype=np.float32).reshape(4, 3) / 12


def program(checkpoint=None, data=None):
    """Linear regression, captured."""
    w = tf.Variable([0.0, 0.0, 0.0], name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - 1.0) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    objects = {"checkpoint": tf.train.Checkpoint(w=w)} if checkpoint else {}
    inputs = {"inputs": [tf.TensorSpec([None, 3])]} if data is None else {"data": data}
    return caramel.capture(step, **inputs, **objects)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A session, a directory with checkpoints of its first three steps, and the values after each."""
    place = tmp_path_factory.mktemp("running") / "saved"
    with caramel.ARModel(program(), 2).session() as session:
        values = {}
        for step in (1, 2, 3):
            session.step(X)
            values[step] = session.values()["w"]
            CheckpointDirectory(place).save(session)
        yield session, place, values


@pytest.fixture
def session(running):
    """The session after its first step."""
    session, place, _ = running
    session.restore(place / "checkpoint-1")
    return session


@pytest.fixture
def filled(running, session, tmp_path):
    """A directory with checkpoints of 1, 2 and 3 steps, and the values in them."""
    _, place, values = running
    shutil.copytree(place, tmp_path / "saved")
    return CheckpointDirectory(tmp_path / "saved"), values


@contextlib.contextmanager
def held(directory):
    """Hold a directory as a run does that goes on in it."""
    with held_directory(directory.path):
        directory.tidy()
        yield


def names(directory):
    return {path.name for path in directory.path.iterdir()}


def files_of(*steps):
    return {f"checkpoint-{step}.{part}" for step in steps for part in ("index", "data-00000-of-00001")}


def check_holds(session, step, values):
    assert session.step_count == step
    np.testing.assert_array_equal(session.values()["w"], values[step])


# -- the list --------------------------------------------------------------------------------


def circle(file):
    file.unlink()
    file.symlink_to(file.name)


def dangling(file):
    file.unlink()
    file.symlink_to("nowhere")


def pipe(file):
    file.unlink()
    os.mkfifo(file)


DAMAGES = {
    "missing": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "no UTF-8": lambda file: file.write_bytes(b'model_checkpoint_path: "\xff\xfe"'),
    "no list": lambda file: file.write_bytes(b"<html>"),
    "no names": lambda file: file.write_bytes(b'all_model_checkpoint_paths: "checkpoint-1"\n'),
    "a NUL": lambda file: file.write_bytes(b'model_checkpoint_path: "checkpoint-3\\000"'),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:30]),
    "a circle": circle,
    "a dangling link": dangling,
    "a named pipe": pipe,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_a_list_the_newest_is_found_among_the_files(filled, session, damage):
    directory, values = filled
    DAMAGES[damage](directory.path / "checkpoint")
    with held(directory):
        found = directory.restore_latest(session)
        assert found.prefix == str(directory.path / "checkpoint-3")
        assert str(directory.path / "checkpoint") in found.note and "checkpoint-3" in found.note
        check_holds(session, 3, values)
        session.step(X)
        directory.save(session)
    assert directory.latest() == Found(str(directory.path / "checkpoint-4"))
    state = tf.train.get_checkpoint_state(str(directory.path))
    assert [os.path.basename(p) for p in state.all_model_checkpoint_paths] == [f"checkpoint-{n}" for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_list_without_checkpoints_is_no_new_start(filled, refused_checkpoint, damage):
    directory, _ = filled
    for name in files_of(1, 2, 3):
        (directory.path / name).unlink()
    DAMAGES[damage](directory.path / "checkpoint")
    if damage == "missing":
        assert directory.latest() is None
        return
    with refused_checkpoint(str(directory.path / "checkpoint"), "remove the list to start anew"):
        directory.latest()


def test_data_without_an_index_is_no_new_start(filled, refused_checkpoint):
    directory, _ = filled
    for name in ("checkpoint", "checkpoint-1.index", "checkpoint-2.index", "checkpoint-3.index"):
        (directory.path / name).unlink()
    with refused_checkpoint(str(directory.path), "checkpoint-3.data-00000-of-00001", ".index", "start anew"):
        directory.latest()


def test_numbers_are_compared_as_numbers(filled):
    directory, _ = filled
    for part in ("index", "data-00000-of-00001"):
        os.rename(directory.path / f"checkpoint-1.{part}", directory.path / f"checkpoint-10.{part}")
    (directory.path / "checkpoint").unlink()
    assert directory.latest().prefix == str(directory.path / "checkpoint-10")


# -- damaged checkpoints ---------------------------------------------------------------------


@pytest.fixture
def refused_checkpoint():
    """Context manager: a CheckpointError whose message has all these words."""

    class Refused:
        def __init__(self, *words):
            self.words, self.raises = words, pytest.raises(caramel.CheckpointError)

        def __enter__(self):
            self.caught = self.raises.__enter__()

        def __exit__(self, *error):
            done = self.raises.__exit__(*error)
            assert [word for word in self.words if word not in str(self.caught.value)] == [], self.caught.value
            return done

    return Refused


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 4] ^= 1
    file.write_bytes(content)


def truncate(file):
    file.write_bytes(file.read_bytes()[:-10])


@pytest.mark.parametrize("part", ["index", "data-00000-of-00001"])
@pytest.mark.parametrize("damage", [flip, truncate, os.unlink])
def test_the_newest_is_damaged(filled, session, refused_checkpoint, damage, part):
    """The message says which older one is whole, and what it says to do helps."""
    directory, values = filled
    damage(directory.path / f"checkpoint-3.{part}")
    with refused_checkpoint(
        "checkpoint-3", f"'{directory.path / 'checkpoint-2'}', is whole", "move checkpoint-3.* and"
    ):
        directory.restore_latest(session)
    for path in (*directory.path.glob("checkpoint-3.*"), directory.path / "checkpoint"):
        path.unlink()
    assert directory.restore_latest(session).prefix == str(directory.path / "checkpoint-2")
    check_holds(session, 2, values)


def test_the_two_newest_are_damaged(filled, session, refused_checkpoint):
    directory, values = filled
    truncate(directory.path / "checkpoint-3.index")
    flip(directory.path / "checkpoint-2.data-00000-of-00001")
    with refused_checkpoint(f"{directory.path / 'checkpoint-1'}'", "checkpoint-3.* and checkpoint-2.* and the list"):
        directory.restore_latest(session)
    for path in (*directory.path.glob("checkpoint-[23].*"), directory.path / "checkpoint"):
        path.unlink()
    directory.restore_latest(session)
    check_holds(session, 1, values)


def test_all_are_damaged(filled, session, refused_checkpoint):
    directory, _ = filled
    for step in (1, 2, 3):
        truncate(directory.path / f"checkpoint-{step}.index")
    with refused_checkpoint("No other checkpoint", "is whole", "another directory"):
        directory.restore_latest(session)


def test_another_program_is_not_damage(filled, session):
    directory, _ = filled
    checkpoint.write_values(directory.path / "checkpoint-3", {"other": np.zeros(3)})
    with pytest.raises(caramel.CheckpointError, match="does not fit") as caught:
        directory.restore_latest(session)
    assert "older" not in str(caught.value)


# -- other runs ------------------------------------------------------------------------------


def hold(path, has_it):
    """Hold a directory, say so, and stay."""
    with held(CheckpointDirectory(path)):
        has_it.set()
        time.sleep(600)


@pytest.fixture
def holder():
    """Function that starts a run which holds a directory; it is killed at the latest with the test.

    It is a fork, which need not load TensorFlow.
    """
    started, processes = [], multiprocessing.get_context("fork")

    def start(path):
        has_it = processes.Event()
        started.append(processes.Process(target=hold, args=(path, has_it)))
        started[-1].start()
        assert has_it.wait(60)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.join()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_second_run_is_refused_until_the_first_is_dead(filled, holder, refused_checkpoint):
    directory, _ = filled
    before = names(directory)
    first = holder(directory.path)
    with refused_checkpoint(str(directory.path), f"process {first.pid} on ", "another directory"), held(directory):
        pass
    first.kill()
    first.join()
    with held(directory):
        assert directory.latest() is not None
    assert names(directory) == before


def test_a_run_that_saves_nothing_leaves_nothing(tmp_path):
    with held(CheckpointDirectory(tmp_path / "new" / "saved")):
        assert (tmp_path / "new" / "saved").is_dir()
    assert not (tmp_path / "new" / "saved").exists()


def test_a_place_that_cannot_be_written(tmp_path, refused_checkpoint):
    (tmp_path / "file").write_text("precious")
    for path in (tmp_path / "file", tmp_path / "file" / "saved"):
        with refused_checkpoint(f"'{path}'"), held(CheckpointDirectory(path)):
            pass
    (tmp_path / "saved" / "checkpoint").mkdir(parents=True)
    with refused_checkpoint("is a directory"), held(CheckpointDirectory(tmp_path / "saved")):
        pass
    assert os.listdir(tmp_path / "saved") == ["checkpoint"]


@pytest.mark.parametrize("address", ["gs://bucket/run", "s3://bucket/run"])
def test_an_address_makes_no_directory(session, tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    for use in (CheckpointDirectory, session.save, session.restore):
        with pytest.raises(caramel.InputError, match=f"{address}.*address"):
            use(address)
    assert os.listdir(tmp_path) == []


# -- killed processes ------------------------------------------------------------------------


class Killed(BaseException):
    """Nothing handles it: what the process was about to do is not done."""


@pytest.fixture
def kill(monkeypatch):
    """Function that kills at the rename of this number."""

    def arm(number):
        replace, calls = os.replace, []

        def call(source, target):
            calls.append(target)
            if len(calls) == number:
                raise Killed
            replace(source, target)

        monkeypatch.setattr(os, "replace", call)

    yield arm
    monkeypatch.undo()


@pytest.mark.parametrize("number", [1, 2])
def test_killed_between_two_renames_of_one_prefix(running, session, tmp_path, kill, monkeypatch, number):
    """All was written: the next one that reads it finishes the save."""
    prefix = tmp_path / "last"
    session.save(prefix)
    session.step(X)
    kill(number)
    with pytest.raises(Killed):
        session.save(prefix)
    monkeypatch.undo()
    assert len(os.listdir(tmp_path)) > 2
    session.step(X)
    session.restore(prefix)
    check_holds(session, 2, running[2])
    assert set(os.listdir(tmp_path)) == {"last.index", "last.data-00000-of-00001"}


@pytest.mark.parametrize("number", [1, 2, 3])
def test_leftovers_of_a_killed_run_are_cleaned_up(filled, session, kill, monkeypatch, number):
    """And nothing else that has such a name."""
    directory, _ = filled
    own = {"mine.writing-01234567", "mine.old-01234567", "checkpoint-9.index.old-01234567"}
    for name in own:
        (directory.path / name).write_text("precious")
    session.restore(directory.path / "checkpoint-3")
    session.step(X)
    kill(number)
    with pytest.raises(Killed):
        directory.save(session)
    monkeypatch.undo()
    with held(directory):
        left = names(directory) - own - {".caramel-lock", "checkpoint"} - files_of(1, 2, 3)
        assert left - {"checkpoint.writing"} == files_of(4)
        directory.save(session)
    assert names(directory) == own | {"checkpoint"} | files_of(1, 2, 3, 4)


def test_files_are_on_the_disk_before_they_get_their_names(session, tmp_path, monkeypatch):
    synced, moved = set(), []
    fsync, replace = os.fsync, os.replace

    def record(descriptor):
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def move(source, target):
        moved.append((str(source) in synced, str(tmp_path) in synced))
        synced.discard(str(tmp_path))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(os, "replace", move)
    CheckpointDirectory(tmp_path).save(session)
    assert [is_synced for is_synced, _ in moved] == [True, True, True]  # data, index, list
    assert moved[0][1]
    assert str(tmp_path) in synced  # at the end, too


# -- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "as_objects"),
    each_once(["run[1]", "back\\slash", "a* b? lr={0.1,0.2} ünï"], [False, True]),
    ids=lambda value: value if isinstance(value, str) else "objects" if value else "names",
)
def test_names_that_look_like_patterns(tmp_path, name, as_objects):
    dataset = tf.data.Dataset.from_tensor_slices(np.repeat(X, 3, axis=0)).batch(2)
    directory = CheckpointDirectory(tmp_path / name)
    with caramel.ARModel(program(as_objects, dataset), 2).session() as session:
        session.step()
        session.save(tmp_path / name / name)
        directory.save(session)
        saved = session.values()["w"]
        for prefix in (str(tmp_path / name / name), directory.latest().prefix):
            following = session.step().loss
            session.restore(prefix)
            np.testing.assert_array_equal(session.values()["w"], saved)
            assert session.step_count == 1
            assert session.step().loss == following
            session.restore(prefix)


def test_errors_name_the_checkpoint_itself(session, tmp_path):
    prefix = tmp_path / "run[1]"
    session.save(prefix)
    truncate(tmp_path / "run[1].index")
    for path in (prefix, tmp_path / "no[1]"):
        with pytest.raises(caramel.CheckpointError) as caught:
            session.restore(path)
        assert f"'{path}'" in str(caught.value)
        assert "caramel-read" not in str(caught.value)


# -- worker 0 on another machine -------------------------------------------------------------


def test_that_it_can_be_saved_there_is_tried(session, filled):
    directory, values = filled
    before = names(directory)
    for _ in range(2):
        directory.check(session)
    assert names(directory) == before
    check_holds(session, 1, values)


@pytest.mark.parametrize("elsewhere", [("written", "copied"), ("copied",)], ids=["reads", "writes"])
def test_a_worker_0_that_sees_other_files(session, filled, tmp_path, monkeypatch, elsewhere):
    directory, _ = filled
    (tmp_path / "another").mkdir()
    before = names(directory)

    def path_there(path):
        place = tmp_path / "another" if path.name.endswith(elsewhere) else path.parent
        return fed_path(place / path.name)

    monkeypatch.setattr(checkpoint, "fed_path", path_there)
    with pytest.raises(caramel.CheckpointError, match="worker 0 cannot save checkpoints to .*saved.*machine"):
        directory.check(session)
    assert names(directory) == before
