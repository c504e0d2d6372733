"""A save of an exported program over the checkpoint of the same name, killed between its two files."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from variants import in_soak

import caramel

v1 = tf.compat.v1

X = np.arange(12, dtype=np.float32).reshape(4, 3) / 12

KILLED = """
import os, pathlib, runpy, shutil, signal, sys
import tensorflow as tf
Session, (script, prefix, *arguments) = tf.compat.v1.Session, sys.argv[1:]
run = Session.run
def killed_after_the_data(session, fetches, feeds=None):
    before = pathlib.Path(prefix + ".index").read_bytes()
    values = run(session, fetches, feeds)
    if isinstance(fetches, str) and before != pathlib.Path(prefix + ".index").read_bytes():
        pathlib.Path(prefix + ".index").write_bytes(before)  # as if only the data had been renamed by now
        os.kill(os.getpid(), signal.SIGKILL)
    return values
Session.run = killed_after_the_data
sys.argv = [script, *arguments]
runpy.run_path(script, run_name="__main__")
"""


def python(*arguments):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """An export, and data for it in it."""
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None, 3], "x")
        w = v1.get_variable("w", [3], initializer=tf.ones_initializer())
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.linalg.matvec(x, w) ** 2))
    found = tmp_path_factory.mktemp("export") / "out"
    caramel.ARModel(context, 2).export(found)
    np.savez(found / "batch.npz", x=X)
    return found


def values(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}


@pytest.mark.soak
@pytest.mark.parametrize("name", ["trained", *in_soak("run[1]")])
def test_the_checkpoint_before_is_still_there(directory, tmp_path, name):
    prefix, script = tmp_path / name, directory / "run.py"
    alias = tmp_path / "alias"  # TensorFlow takes brackets for a pattern
    train = ["train", "--data", directory / "batch.npz", "--steps", 2]

    def read(end=""):
        for part in tmp_path.glob("alias*"):
            part.unlink()
        for kind in ("index", "data-00000-of-00001"):
            (tmp_path / f"alias.{kind}").symlink_to(f"{prefix}{end}.{kind}")
        return values(alias)

    assert python(script, *train, "--save", prefix).returncode == 0
    first = read()
    backup = tmp_path / f"{name}.old.index"  # the user's own
    backup.write_bytes(b"a copy")
    killed = python("-c", KILLED, script, prefix, *train, "--restore", prefix, "--save", prefix)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with pytest.raises(tf.errors.OpError, match="Checksum"):
        read()
    old = read(".before-save")
    assert old.keys() == first.keys()
    assert all(np.array_equal(old[key], first[key]) for key in first)

    refused = python(script, *train, "--restore", prefix)
    assert refused.returncode == 1
    assert f"the checkpoint before it is '{prefix}.before-save'" in refused.stderr.splitlines()[-1]

    assert python(script, *train, "--restore", f"{prefix}.before-save", "--save", prefix).returncode == 0
    resumed = read()
    assert resumed["caramel/steps"] == 4
    assert python(script, *train, "--steps", 4, "--save", tmp_path / "at_once").returncode == 0
    at_once = values(tmp_path / "at_once")
    assert all(np.array_equal(resumed[key], at_once[key]) for key in at_once)
    assert not list(tmp_path.glob("*.before-save.*")), "the checkpoint before is removed once the new one is whole"
    assert backup.read_bytes() == b"a copy"


def test_an_index_that_is_gone_names_the_checkpoint_before(directory, tmp_path):
    prefix, train = tmp_path / "trained", ["train", "--data", directory / "batch.npz"]
    assert python(directory / "run.py", *train, "--save", prefix).returncode == 0
    for part in tmp_path.glob("trained.*"):
        part.rename(part.with_name(part.name.replace("trained", "trained.before-save")))
    refused = python(directory / "run.py", *train, "--restore", prefix)
    assert (refused.returncode, "trained.before-save" in refused.stderr) == (1, True)
