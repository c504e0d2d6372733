"""What is there when a file is written over it: kept whole, kept in kind, or refused."""

import os
import stat

import pytest

import caramel
from caramel.netmodel.file import save
from caramel.util.text_files import write_text, write_whole
from caramel.util.whole_files import check_writable, file_beside


@pytest.fixture(autouse=True)
def umask():
    """As most users have it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_files_beside_each_other():
    assert file_beside("a/lr0.1", "trace") == "a/lr0.1.trace.json"
    assert file_beside("a/plan.json", "trace") == "a/plan.trace.json"
    for nameless in ("", "a/"):
        for refuse in (check_writable, lambda path: file_beside(path, "trace")):
            with pytest.raises(caramel.InputError, match="is no name of a file"):
                refuse(nameless)


def test_a_new_file_has_the_mode_that_any_program_gives(tmp_path):
    write_whole(tmp_path / "new", "text")
    assert ((tmp_path / "new").read_text(), mode(tmp_path / "new")) == ("text", 0o644)
    assert os.listdir(tmp_path) == ["new"]


@pytest.mark.parametrize("bits", [0o600, 0o640, 0o755])
def test_the_mode_stays(tmp_path, bits):
    file = tmp_path / "file"
    file.write_text("old")
    file.chmod(bits)
    write_whole(file, "new")
    assert (file.read_text(), mode(file)) == ("new", bits)


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "target"
    target.write_text("old")
    target.chmod(0o600)
    (tmp_path / "link").symlink_to("there/target")
    (tmp_path / "link to it").symlink_to(tmp_path / "link")
    write_whole(tmp_path / "link to it", "new")
    assert (tmp_path / "link to it").is_symlink() and (tmp_path / "link").is_symlink()
    assert (target.read_text(), mode(target)) == ("new", 0o600)
    assert os.listdir(tmp_path / "there") == ["target"]


def test_a_link_to_nothing_yet(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def pipe(path):
    os.mkfifo(path)


def device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except OSError as error:
        pytest.skip(f"no device can be made here: {error}")


def circle(path):
    path.symlink_to(path.name)


KINDS = [(pipe, "named pipe"), (device, "a device"), (circle, "Too many levels"), (os.mkdir, "a directory")]


@pytest.mark.parametrize("make, word", KINDS, ids=[make.__name__ for make, _ in KINDS])
def test_what_is_no_file_stays(tmp_path, make, word):
    path = tmp_path / "there"
    make(path)
    before = path.lstat()
    with pytest.raises(caramel.InputError, match=word) as caught:
        write_text(path, "text", "the plan", caramel.InputError)
    assert str(path) in str(caught.value)
    after = path.lstat()
    assert (before.st_ino, before.st_mode, before.st_mtime_ns) == (after.st_ino, after.st_mode, after.st_mtime_ns)
    assert os.listdir(tmp_path) == ["there"]


def test_a_pipe_that_has_no_name(tmp_path):
    read, written = os.pipe()
    with pytest.raises(caramel.InputError, match="named pipe"):
        write_text(f"/proc/self/fd/{written}", "text", "the plan", caramel.InputError)
    os.close(written)
    assert os.read(read, 10) == b""
    os.close(read)


def test_an_address_makes_no_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gs:" / "bucket").mkdir(parents=True)
    with pytest.raises(caramel.InputError, match="gs://bucket/network.json.*address"):
        save(caramel.NetworkModel.from_costs(1e-4, 1e-9, 0), "gs://bucket/network.json")
    assert os.listdir(tmp_path / "gs:" / "bucket") == []


def test_content_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: events.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd))
    monkeypatch.setattr(os, "replace", lambda a, b: events.append((str(a), str(b))) or replace(a, b))
    write_whole(tmp_path / "file", "text")
    temporary, moved, directory = events
    assert moved == (temporary, str(tmp_path / "file"))
    assert directory == str(tmp_path)
