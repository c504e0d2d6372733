"""When a local server that a signal has stopped counts as lost, by a clock of the test's own."""

from types import SimpleNamespace

import pytest

from caramel.runtime.clusters import launcher


@pytest.fixture
def looks(monkeypatch, tmp_path):
    """Function that looks at a server at some seconds at which it is stopped; what it says last."""
    servers = launcher.Launcher(1, tmp_path)
    servers._servers = [("worker 0", SimpleNamespace(pid=7, exitcode=None))]
    now = SimpleNamespace(s=0.0, is_stopped=True)
    monkeypatch.setattr(launcher.time, "monotonic", lambda: now.s)
    monkeypatch.setattr(launcher, "is_stopped", lambda pid: now.is_stopped)

    def look(*seconds, is_stopped=True):
        for now.s in seconds:
            now.is_stopped = is_stopped
            said = servers._long_stopped()
        return said

    return look


def every(begin_s, end_s, step_s=0.2):
    return [begin_s + step_s * n for n in range(round((end_s - begin_s) / step_s) + 1)]


def test_after_five_seconds(looks):
    assert looks(*every(100.0, 105.0)) == ""
    assert looks(105.2) == "worker 0, process 7, is stopped by a signal"


def test_also_after_the_seconds_that_tensorflow_has_to_report_it(looks):
    assert looks(*every(100.0, 105.2)) and looks(107.2)


def test_one_that_went_on_begins_anew(looks):
    assert looks(*every(100.0, 104.0)) == ""
    assert looks(104.2, is_stopped=False) == ""
    assert looks(*every(104.4, 109.0)) == ""


def test_between_two_calls_nobody_looks(looks):
    assert looks(*every(100.0, 103.0)) == ""
    assert looks(*every(110.0, 115.0)) == ""
    assert looks(115.2)
