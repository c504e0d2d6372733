"""Exports that were damaged on their way, and what is given to them: one line, and exit status 1."""

import errno
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.export import writer

v1 = tf.compat.v1

CHECKED = ["graph.pb", "signature.json", "plan.json", "initial.index", "initial.data-00000-of-00001", "export.json"]
X = np.arange(12, dtype=np.float32).reshape(4, 3) / 12


def model(workers=2, size=3):
    with caramel.capture() as context:
        x = v1.placeholder(tf.float32, [None, size], "x")
        w = v1.get_variable("w", [size], initializer=tf.ones_initializer())
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.linalg.matvec(x, w) ** 2))
    return caramel.ARModel(context, workers)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An export, and data for it in it."""
    directory = tmp_path_factory.mktemp("whole") / "out"
    model().export(directory)
    np.savez(directory / "batch.npz", x=X)
    return directory


@pytest.fixture
def export(whole, tmp_path):
    """A copy of the export."""
    shutil.copytree(whole, tmp_path / "out")
    return tmp_path / "out"


def run(directory, *arguments):
    return subprocess.run(
        [sys.executable, str(directory / "run.py"), *map(str, arguments)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )


def check_one_line(result, *words):
    assert result.returncode == 1, (result.stdout, result.stderr)
    lines = [line for line in result.stderr.splitlines() if not line.startswith(("WARNING: All log", "I0000"))]
    assert len(lines) == 1, result.stderr
    assert [word for word in words if word not in lines[0]] == [], lines[0]
    assert result.stdout == ""


def replaced(file, change):
    content = bytearray(file.read_bytes())
    file.write_bytes(bytes(change(content)))


def flipped(content, place, bit=0):
    content[place % len(content)] ^= 1 << bit
    return content


def directory_instead(file):
    file.unlink()
    file.mkdir()


def circle_instead(file):
    file.unlink()
    file.symlink_to(file.name)


DAMAGES = {
    "missing": lambda file: file.unlink(),
    "a directory": directory_instead,
    "a circle of links": circle_instead,
    "empty": lambda file: replaced(file, lambda c: b""),
    "first byte only": lambda file: replaced(file, lambda c: c[:1]),
    "half": lambda file: replaced(file, lambda c: c[: len(c) // 2]),
    "without the last bytes": lambda file: replaced(file, lambda c: c[:-3]),
    "with bytes more": lambda file: replaced(file, lambda c: c + b"\0\0"),
    "twice": lambda file: replaced(file, lambda c: c + c),
    "zeros": lambda file: replaced(file, lambda c: bytes(len(c))),
    "ones": lambda file: replaced(file, lambda c: b"\xff" * len(c)),
    "turned round": lambda file: replaced(file, lambda c: c[::-1]),
    "something else": lambda file: replaced(file, lambda c: b"<html>not found</html>"),
    "null": lambda file: replaced(file, lambda c: b"null"),
    "deep": lambda file: replaced(file, lambda c: b"[" * 100_000),
    "a list": lambda file: replaced(file, lambda c: b"[1, 2]"),
    "an empty object": lambda file: replaced(file, lambda c: b"{}"),
    "a block of zeros": lambda file: replaced(file, lambda c: c[:4] + bytes(len(c[4:12])) + c[12:]),
    "its first byte": lambda file: replaced(file, lambda c: flipped(c, 0)),
    "its last bytes": lambda file: replaced(file, lambda c: flipped(c, len(c) - 2)),
}


def said(directory):
    """What the check of the files says, if it ends the program."""
    try:
        runpy.run_path(str(directory / "run.py"))["check_files"]()
    except SystemExit as error:
        return error.code
    return None


@pytest.mark.soak  # as test_a_path_with_brackets, in this process
def test_a_whole_export_trains(whole):
    result = run(whole, "train", "--data", whole / "batch.npz", "--steps", 1)
    assert result.returncode == 0, result.stderr
    assert "step 1 loss" in result.stdout


@pytest.mark.parametrize("name", CHECKED)
def test_every_file_in_many_ways(export, name):
    original = (export / name).read_bytes()
    for what, damage in DAMAGES.items():
        damage(export / name)
        line = said(export)
        assert isinstance(line, str) and "\n" not in line, what
        assert "damaged" in line and "again" in line and (name in line or name == "export.json"), (what, line)
        shutil.rmtree(export / name) if (export / name).is_dir() else (export / name).unlink(missing_ok=True)
        (export / name).write_bytes(original)
    assert said(export) is None


def test_a_list_of_files_that_is_far_too_large_is_not_read(export):
    with open(export / "export.json", "r+b") as file:
        file.truncate(200_000_001)
    assert "export.json: it has 200000001 bytes, at most 200000000 make sense" in said(export)


def test_every_bit_of_the_digests(export):
    """A bit of what is not checked, as it may be changed, does no harm."""
    original = (export / "export.json").read_bytes()

    def checked(content):
        try:
            data = json.loads(content)
            files = data.pop("files")
            return data, {name: facts for name, facts in files.items() if name not in ("run.py", "README.md")}
        except (ValueError, KeyError, AttributeError):
            return None

    check = runpy.run_path(str(export / "run.py"))["check_files"]
    harmless = 0
    for place in range(len(original)):
        content = flipped(bytearray(original), place, place % 8)
        (export / "export.json").write_bytes(content)
        try:
            check()
        except SystemExit as error:
            assert "\n" not in error.code
        else:
            kept = checked(content)
            assert kept == checked(original)
            harmless += 1
    assert harmless < len(original) / 3


@pytest.mark.parametrize("command", ["train", "serve"])
def test_as_the_user_sees_it(export, command):
    """In a moment: before TensorFlow is loaded."""
    replaced(export / "signature.json", lambda c: flipped(c, 100))
    options = [] if command == "train" else ["--cluster", "127.0.0.1:1,127.0.0.1:2", "--task", 0]
    check_one_line(run(export, command, *options), "this export is damaged: signature.json", "export it again")


def test_a_server_needs_no_values(export, monkeypatch):
    for name in ("graph.pb", "initial.index", "initial.data-00000-of-00001", "plan.json"):
        (export / name).unlink()
    monkeypatch.setattr("sys.argv", ["run.py", "serve", "--cluster", "127.0.0.1:1", "--task", "0"])
    with pytest.raises(SystemExit, match="^the cluster needs 2 addresses, got 1$"):
        runpy.run_path(str(export / "run.py"), run_name="__main__")


def test_the_runner_may_be_changed(export):
    with open(export / "run.py", "a") as file:
        file.write("\n# mine\n")
    (export / "README.md").unlink()
    assert said(export) is None


# -- what is given to it ---------------------------------------------------------------------


def no_file(place):
    return ["--data", place / "nothing.npz"], ["nothing.npz"]


def no_archive(place):
    (place / "batch.npz").write_bytes(b"no archive")
    return ["--data", place / "batch.npz"], ["batch.npz"]


def one_array(place):
    np.save(place / "array.npy", X)
    return ["--data", place / "array.npy"], ["array.npy", "no .npz file"]


def cut_off(place):
    replaced(place / "batch.npz", lambda c: c[: len(c) // 2])
    return ["--data", place / "batch.npz"], ["batch.npz"]


def a_flipped_byte(place):
    replaced(place / "batch.npz", lambda c: flipped(c, 180))
    return ["--data", place / "batch.npz"], ["batch.npz"]


def objects(place):
    np.savez(place / "objects.npz", x=np.array([{}], object))
    return ["--data", place / "objects.npz"], ["objects.npz"]


def another_shape(place):
    np.savez(place / "other.npz", x=np.ones([4, 5], np.float32))
    return ["--data", place / "other.npz"], ["shape"]


def texts(place):
    np.savez(place / "texts.npz", x=np.array(["a"] * 4))
    return ["--data", place / "texts.npz"], ["float"]


def no_checkpoint(place):
    return ["--restore", place / "nothing"], ["nothing", "no checkpoint"]


def damaged_checkpoint(place):
    shutil.copy(place / "initial.index", place / "copy.index")
    (place / "copy.data-00000-of-00001").write_bytes(b"")
    return ["--restore", place / "copy"], ["copy"]


def damaged_index(place):
    (place / "copy.index").write_bytes(b"nothing")
    return ["--restore", place / "copy"], ["copy", "damaged"]


def no_place(place):
    return ["--save", place / "nowhere" / "saved"], ["nowhere", "no such directory"]


def an_address(place):
    return ["--save", "gs://bucket/saved"], ["gs://bucket/saved", "address"]


GIVEN = [
    no_file, no_archive, one_array, cut_off, a_flipped_byte, objects, another_shape, texts, no_checkpoint,
    damaged_checkpoint, damaged_index, no_place, an_address,
]  # fmt: skip


@pytest.mark.parametrize("give", GIVEN, ids=[give.__name__ for give in GIVEN])
def test_what_is_given_is_no_good(export, give, monkeypatch):
    """One line before any step."""
    options, words = give(export)
    data = [] if "--data" in options else ["--data", export / "batch.npz"]
    monkeypatch.setattr("sys.argv", ["run.py", "train", *map(str, [*data, *options])])
    monkeypatch.chdir(export)
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(export / "run.py"), run_name="__main__")
    line = caught.value.code
    assert isinstance(line, str) and "\n" not in line
    assert [word for word in words if word not in line] == [], line
    assert not (export / "gs:").exists()


def test_a_path_with_brackets(whole, tmp_path, monkeypatch):
    place = tmp_path / "run[1]*"
    shutil.copytree(whole, place)

    def train(*options):
        monkeypatch.setattr("sys.argv", ["run.py", "train", "--data", str(place / "batch.npz"), *map(str, options)])
        runpy.run_path(str(place / "run.py"), run_name="__main__")

    train("--steps", 2, "--save", place / "saved[2]")
    train("--steps", 1, "--restore", place / "saved[2]", "--save", tmp_path / "three")
    train("--steps", 3, "--save", tmp_path / "whole")
    three, whole_run = (tf.train.load_checkpoint(str(tmp_path / name)) for name in ("three", "whole"))
    np.testing.assert_array_equal(three.get_tensor("w"), whole_run.get_tensor("w"))


# -- exporting again -------------------------------------------------------------------------


def test_what_the_user_put_there_stays(export, files_in):
    (export / "trained.index").write_bytes(b"precious")
    (export / "trained.data-00000-of-00001").write_bytes(b"precious")
    (export / "results").mkdir()
    (export / "results" / "plan.json").write_bytes(b"precious")
    before = files_in(export)
    model(3, 4).export(export)
    after = files_in(export)
    assert after.keys() == before.keys()
    changed = {name for name in after if after[name] != before[name]}
    assert changed <= {*CHECKED, "README.md"} and {"graph.pb", "signature.json", "export.json"} <= changed
    assert said(export) is None


@pytest.fixture
def files_in():
    """Function that reads all files under a directory, by relative path."""

    def read(directory):
        return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}

    return read


def test_a_directory_of_others_with_a_signature(tmp_path, files_in):
    place = tmp_path / "theirs"
    place.mkdir()
    for name in ("signature.json", "export.json", "thesis.tex"):
        (place / name).write_text('{"kind": "thesis"}')
    before = files_in(place)
    with pytest.raises(caramel.ExportError, match="not an export"):
        model().export(place)
    assert files_in(place) == before


@pytest.mark.parametrize("name", ["README.md", "run.py", "graph.pb"])
def test_what_was_changed_since_is_not_replaced(export, files_in, name):
    with open(export / name, "ab") as file:
        file.write(b"\n# mine\n")
    before = files_in(export)
    with pytest.raises(caramel.ExportError, match="changed since") as caught:
        model().export(export)
    assert name in str(caught.value)
    assert files_in(export) == before
    (export / name).unlink()
    model().export(export)
    assert said(export) is None


def test_a_link_to_a_directory(whole, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    model().export(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert said(tmp_path / "real") is None


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_what_is_no_directory(tmp_path, kind):
    path = tmp_path / "there"
    path.write_text("precious") if kind == "file" else os.mkfifo(path)
    before = path.lstat()
    with pytest.raises(caramel.ExportError, match="no directory"):
        model().export(path)
    assert path.lstat().st_mtime_ns == before.st_mtime_ns and path.lstat().st_mode == before.st_mode


def test_an_address_makes_no_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(caramel.ExportError, match="address"):
        model().export("gs://bucket/out")
    assert os.listdir(tmp_path) == []


class Killed(BaseException):
    """Nothing handles it."""


def test_killed_at_every_rename(whole, tmp_path, monkeypatch):
    """The half-replaced export says so; the next one finishes, and leaves nothing."""
    number, replace, other = 1, os.replace, model(3)
    while True:
        place = tmp_path / str(number)
        shutil.copytree(whole, place)
        calls = []

        def call(source, target, calls=calls, number=number):
            calls.append(target)
            if len(calls) == number:
                raise Killed
            replace(source, target)

        monkeypatch.setattr(os, "replace", call)
        try:
            other.export(place)
            break
        except Killed:
            monkeypatch.setattr(os, "replace", replace)
        assert number == 1 or "damaged" in said(place)
        other.export(place)
        assert said(place) is None
        assert {p.name for p in place.iterdir()} == {p.name for p in whole.iterdir()}
        number += 1
    assert number > len(CHECKED)


def test_a_first_export_that_is_killed_is_cleared_up_by_the_next(whole, tmp_path):
    place, to_export = tmp_path / "deep" / "out", model()

    def half(distributed, path_of):
        path_of("graph.pb").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        writer._write = half
        to_export.export(place)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert [path.name.split(".writing-")[0] for path in place.glob("*.writing-*")] == ["graph.pb"]
    to_export.export(place)
    assert said(place) is None
    assert {p.name for p in place.iterdir()} == {p.name for p in whole.iterdir()} - {"batch.npz"}


def test_a_first_export_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fails(distributed, path_of):
        path_of("graph.pb").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(writer, "_write", fails)
    with pytest.raises(caramel.ExportError, match="no room"):
        model().export(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_templates_need_nothing_of_the_library():
    text = (Path(caramel.__file__).parent / "export" / "templates" / "run.py").read_text()
    assert "import caramel" not in text and "from caramel" not in text
