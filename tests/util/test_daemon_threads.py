"""Threads for calls that may never return, and what becomes of these calls where no thread starts any more."""

import threading

import pytest

from caramel.util.daemon_threads import DaemonThreads


def test_calls_run_in_other_threads():
    threads = DaemonThreads(2, "testing")
    met = threading.Barrier(2, timeout=10)
    waiting = [threads.submit(met.wait) for _ in range(2)]
    assert sorted(each.result(10) for each in waiting) == [0, 1]
    assert threads.submit(threading.current_thread).result(10) is not threading.current_thread()


def test_at_the_end_of_the_interpreter_calls_run_at_once(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    threads = DaemonThreads(2, "testing")
    for _ in range(2):
        assert threads.submit(threading.current_thread).result(0) is threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result(0)


def test_a_thread_that_runs_takes_what_another_would_have_taken(monkeypatch):
    threads = DaemonThreads(2, "testing")
    first = threads.submit(threading.current_thread).result(10)

    def refuse(thread):
        raise RuntimeError

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert threads.submit(threading.current_thread).result(10) is first
