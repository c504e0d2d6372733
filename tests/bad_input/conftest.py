"""A program with nothing wrong, to break in one place at a time, and a check of what is then said."""

import errno
import os
import subprocess
import sys
from collections import namedtuple
from contextlib import contextmanager
from pathlib import Path

import pytest
import tensorflow as tf

import caramel

v1 = tf.compat.v1

Line = namedtuple("Line", "x y weights loss")


def _line(transform=None, shape=(None, 3), reduce=tf.reduce_mean, use_resource=None, size=3):
    """Linear regression: placeholders ``x`` and ``y``, variable ``w``, the squared error as the loss."""
    x = v1.placeholder(tf.float32, shape, "x")
    y = v1.placeholder(tf.float32, [None], "y")
    weights = v1.get_variable("w", [size], initializer=tf.zeros_initializer(), use_resource=use_resource)
    examples = x if transform is None else transform(x)
    return Line(x, y, weights, reduce((tf.linalg.matvec(examples, weights) - y) ** 2))


def _minimize(loss, rate=0.1):
    return v1.train.GradientDescentOptimizer(rate).minimize(loss)


@pytest.fixture
def line():
    """Function that builds the program's forward part in the default graph."""
    return _line


@pytest.fixture
def minimize():
    """Function that adds plain gradient descent."""
    return _minimize


@pytest.fixture
def captured():
    """Function that captures what a function builds as a TF1 graph."""

    def capture(build, **options):
        with caramel.capture(**options) as context:
            build()
        return context

    return capture


@pytest.fixture
def compiled(captured):
    """Function that captures and compiles what a function builds."""

    def compile_it(build, workers=2, **options):
        return caramel.ARModel(captured(build, **options), workers)

    return compile_it


@pytest.fixture
def refused():
    """Context manager: exactly this kind of CaramelError, whose message has all these words."""

    @contextmanager
    def check(kind, *words):
        with pytest.raises(caramel.CaramelError) as caught:
            yield caught
        message = str(caught.value)
        assert type(caught.value) is kind, f"{type(caught.value).__name__}: {message}"
        missing = [word for word in words if word not in message]
        assert not missing, f"{missing} not said in: {message}"

    return check


@pytest.fixture
def failing_rename(monkeypatch):
    """Function that makes chosen renames of files fail (1 is the next one)."""
    move = {"rename": os.rename, "replace": os.replace}

    def arm(fails):
        count = 0

        def moving(kind):
            def call(source, target):
                nonlocal count
                count += 1
                if fails(count):
                    raise OSError(errno.EIO, "simulated failure of the disk", str(source))
                move[kind](source, target)
                return Path(target)

            return call

        for kind in move:
            monkeypatch.setattr(os, kind, moving(kind))
            monkeypatch.setattr(Path, kind, moving(kind))
        return lambda: count

    return arm


@pytest.fixture
def small_disk(tmp_path):
    """A directory on a file system of its own, and a function that fills it up."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("needs root on Linux to mount a small file system")
    place = tmp_path / "small disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")

    def fill():
        with open(place / "filler", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass

    try:
        yield place, fill
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def files():
    """Function that reads all files under a directory, by relative path."""

    def read(directory, *but_not):
        return {
            str(path.relative_to(directory)): path.read_bytes()
            for path in sorted(Path(directory).rglob("*"))
            if path.is_file() and path.name not in but_not
        }

    return read
