"""Files that are replaced together, by processes that are killed at every point of it."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from caramel.util.file_locks import LockFile
from caramel.util.journal import finish_interrupted, replacing_together

WRITER = """
    import os, sys
    from pathlib import Path
    from caramel.util.journal import replacing_together

    directory, deadly, fails = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "fails"
    calls = 0

    def counted(name):
        real = getattr(os, name)

        def call(*args, **kwargs):
            global calls
            calls += 1
            if calls == deadly:
                os.kill(os.getpid(), 9)
            if fails and name == "replace" and str(args[1]).endswith("index"):
                raise OSError(5, "simulated")
            return real(*args, **kwargs)

        setattr(os, name, call)

    for name in ("open", "close", "write", "fsync", "link", "replace", "unlink"):
        counted(name)
    names = ["data", "index", "new"]
    try:
        with replacing_together(directory / ".x.saving", names) as replacement:
            for name in names:
                replacement.temporary(name).write_text(f"second {name}")
            replacement.temporary("index").with_name(replacement.temporary("index").name + "_temp").mkdir()
            replacement.put_in_place([(replacement.temporary(name), directory / name) for name in names])
    except OSError:
        pass
    print(calls)
"""


def write(directory, deadly, ending):
    """Run the writer, which kills itself at the call of this number; the number of calls if it lived."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(directory), str(deadly), ending],
        capture_output=True,
        text=True,
    )
    if done.returncode == -9:
        return None
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def contents(directory):
    return {path.name: path.read_text(errors="replace") for path in directory.iterdir() if path.is_file()}


FIRST = {"data": "first data", "index": "first index"}
SECOND = {name: f"second {name}" for name in ("data", "index", "new")}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["ends", "fails"])
def test_killed_at_every_point(tmp_path, ending):
    """Afterwards the files are the old ones or the new ones, and nothing is left."""
    seen = []
    for deadly in range(1, 100):
        directory = tmp_path / str(deadly)
        directory.mkdir()
        for name, text in FIRST.items():
            (directory / name).write_text(text)
        calls = write(directory, deadly, ending)
        if calls is not None:
            assert calls < deadly
            break
        finish_interrupted(directory / ".x.saving")
        assert contents(directory) in (FIRST, SECOND)
        assert [path.name for path in directory.iterdir() if path.is_dir()] == []
        seen.append(contents(directory) == SECOND)
    assert len(seen) > 20
    assert contents(directory) == (FIRST if ending == "fails" else SECOND)
    assert seen == sorted(seen) or ending == "fails"  # until some point nothing happens, from then on all does
    assert True in seen and False in seen


def test_the_next_writer_finishes_what_the_last_one_left(tmp_path):
    for name, text in FIRST.items():
        (tmp_path / name).write_text(text)
    deadly = 1
    while write(tmp_path, deadly, "ends") is None:
        deadly += 1
    assert contents(tmp_path) == SECOND
    assert sorted(os.listdir(tmp_path)) == sorted(SECOND)


def test_a_living_writer_is_left_alone(tmp_path):
    (tmp_path / "data").write_text("first")
    with replacing_together(tmp_path / ".x.saving", ["data"]) as replacement:
        replacement.temporary("data").write_text("second")
        for use in (lambda j: finish_interrupted(j), lambda j: replacing_together(j, ["data"]).__enter__()):
            with pytest.raises(BlockingIOError):
                use(tmp_path / ".x.saving")
        assert replacement.temporary("data").read_text() == "second"
        replacement.put_in_place([(replacement.temporary("data"), tmp_path / "data")])
    assert contents(tmp_path) == {"data": "second"}


@pytest.mark.parametrize(
    "content",
    [
        b"a file of somebody's",
        b'{"kind": "caramel journal", "temporary": ["data"]}\n',
        b'{"kind": "caramel journal", "temporary": ["x.writing-0123456*"]}\n',
        b'{"kind": "caramel journal", "temporary": ["../x.writing-01234567"]}\n',
        b'{"kind": "caramel journal", "temporary": []}\n{"moves": [["a", "../data", null]]}\n',
        b'{"kind": "caramel journal", "temporary": []}\n{"moves": [["a", "b", "data"]]}\n',
        b'{"kind": "caramel journal", "temporary": []}\n{"moves": 3}\n',
        b'{"kind": "caramel journal", "temporary": 5}\n',
        b'{"kind": "caramel journal"}]\n',
        b'{"kind": "caramel journal", \xff}\n',
    ],
)
def test_what_is_no_journal_removes_nothing(tmp_path, content):
    place = tmp_path / "place"
    place.mkdir()
    (place / "data").write_text("precious")
    (place / "x.writing-01234567").write_text("precious")
    (tmp_path / "x.writing-01234567").write_text("precious")
    (place / ".x.saving").write_bytes(content)
    with pytest.raises(OSError, match=r"\.x\.saving"):
        finish_interrupted(place / ".x.saving")
    assert contents(place).keys() == {"data", "x.writing-01234567", ".x.saving"}
    assert contents(tmp_path).keys() == {"x.writing-01234567"}


def test_a_journal_that_was_cut_off(tmp_path):
    """What its last line was to say has not begun."""
    begin = json.dumps({"kind": "caramel journal", "temporary": ["x.writing-01234567"]}) + "\n"
    moves = json.dumps({"moves": [["x.writing-01234567", "x", None]]}) + "\n"
    for cut in range(len(begin + moves)):
        (tmp_path / "x.writing-01234567").write_text("half")
        (tmp_path / ".x.saving").write_text((begin + moves)[:cut])
        finish_interrupted(tmp_path / ".x.saving")
        assert contents(tmp_path) == ({} if cut >= len(begin) else {"x.writing-01234567": "half"})


# -- locks -----------------------------------------------------------------------------------

HOLDER = """
    import os, sys, time
    from pathlib import Path
    from caramel.util.file_locks import LockFile

    held = LockFile(Path(sys.argv[1]), "a run")
    if os.fork() == 0:  # a child that outlives it
        print("held", flush=True)  # not before the child has let go, which it does within fork
        time.sleep(5)
        os._exit(0)
    time.sleep(60)
"""


def test_a_lock_goes_with_its_process(tmp_path):
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError) as caught:
            LockFile(path, "another")
        assert caught.value.strerror == "a run"
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    assert path.exists()
    held = LockFile(path, "another")
    assert path.read_text() == "another\n"
    with pytest.raises(BlockingIOError):
        LockFile(path, "a third, in the same process")
    held.release()
    assert not path.exists()
    LockFile(path, "a fourth").release()
