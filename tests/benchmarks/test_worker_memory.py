"""Where a machine is short of memory, the peers' processes give back what they do not use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.training import worker as module
from benchmarks.training.worker import Worker, give_back_memory, is_short_of_memory


def test_the_peers_processes_need_no_more_than_tensorflow_and_numpy():
    """Horovod's environment has an older TensorFlow, and nothing of this library's dependencies."""
    theirs = "{'rich', 'networkx', 'click', 'sklearn', 'scipy', 'matplotlib', 'jinja2'}"
    code = f"import sys, benchmarks.training.worker; assert not {theirs} & sys.modules.keys()"
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("available, is_short", [(0, True), (399, True), (400, False), (1000, False)])
def test_memory_is_short_if_less_than_a_part_of_it_is_available(tmp_path, available, is_short):
    path = tmp_path / "meminfo"
    path.write_text(f"MemTotal:  1000 kB\nMemFree:  10 kB\nMemAvailable:  {available} kB\nHugePages_Total:  0\n")
    assert is_short_of_memory(str(path)) is is_short


def test_what_was_freed_between_what_is_kept_goes_back_to_the_system():
    blocks = [bytearray(60_000) for _ in range(4000)]
    kept = [bytearray(60_000)]  # above them, so that the allocator does not shrink by itself
    full = resident_bytes()
    blocks.clear()
    give_back_memory()
    assert resident_bytes() < full - 100e6 and len(kept) == 1


@pytest.mark.parametrize("is_short", [False, True])
def test_a_worker_gives_back_after_each_request_if_memory_is_short(monkeypatch, is_short):
    given = []
    monkeypatch.setattr(module, "is_short_of_memory", lambda: is_short)
    monkeypatch.setattr(module, "give_back_memory", lambda: given.append(True))
    worker = Worker(None, lambda replica, options: None, 1, 0)
    assert worker.answer({"do": "begin"}) is None
    with pytest.raises(KeyError):
        worker.answer({"do": "drop", "name": "nothing"})
    assert len(given) == 2 * is_short
