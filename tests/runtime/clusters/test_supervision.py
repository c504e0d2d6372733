"""Calls that are given up once a worker is lost, with functions in place of sessions."""

import subprocess
import sys
import threading
import time

import pytest

from caramel.errors import ClusterError
from caramel.runtime.clusters.supervision import Supervisor

NEVER_ENDS = """
import threading
from caramel.util.daemon_threads import DaemonThreads
DaemonThreads(2, "stuck").submit(threading.Event().wait)
print("ends")
"""


class Workers:
    """What a supervisor is told of them."""

    def __init__(self):
        self.gone = ""

    def lost(self):
        return self.gone


@pytest.fixture
def stuck():
    """A function that returns only when the test is over."""
    event = threading.Event()
    yield event.wait
    event.set()


def test_results_and_errors_are_those_of_the_function():
    supervisor = Supervisor(str, str)
    assert supervisor.call(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        supervisor.call(divmod, 7, 0)
    assert not supervisor.is_stuck and not supervisor.has_failed


def test_a_call_that_waits_for_a_lost_worker_is_given_up(stuck):
    workers, left = Workers(), []
    supervisor = Supervisor(workers.lost, workers.lost)
    threading.Timer(0.3, setattr, [workers, "gone", "worker 3 has not answered for 7 s"]).start()
    began_s = time.monotonic()
    with pytest.raises(ClusterError, match=r"worker 3 has not answered for 7 s\. Start what is gone once more"):
        supervisor.call(stuck)
    assert 0.25 < time.monotonic() - began_s < 5 and supervisor.is_stuck
    with pytest.raises(ClusterError, match="worker 3"):
        supervisor.call(divmod, 7, 2)
    assert not supervisor.close(lambda: left.append("closed"), lambda: left.append("left"), 60.0)
    assert left == ["left"] and time.monotonic() - began_s < 5


def test_a_worker_that_answers_again_is_not_lost(stuck):
    """While TensorFlow has its time to report something, say."""
    workers = Workers()
    workers.gone = "worker 3 is away"
    supervisor = Supervisor(workers.lost, workers.lost, grace_s=0.5)
    threading.Timer(0.4, setattr, [workers, "gone", ""]).start()
    assert supervisor.call(lambda: time.sleep(1.2) or "done") == "done"


def test_an_error_of_tensorflow_names_the_worker():
    def fails():
        raise ClusterError("a worker cannot be reached")

    supervisor = Supervisor(str, lambda: "nothing listens at host3:2222")
    with pytest.raises(ClusterError, match="nothing listens at host3:2222: a worker cannot be reached"):
        supervisor.call(fails)
    assert supervisor.has_failed and not supervisor.is_stuck


def test_closing_ends_a_call_of_another_thread():
    """As closing TensorFlow's session does with its runs, where all servers are there."""
    supervisor, ended, outcome = Supervisor(str, str), threading.Event(), []
    stepping = threading.Thread(target=lambda: outcome.append(supervisor.call(ended.wait)))
    stepping.start()
    while not supervisor.is_stuck:
        time.sleep(0.01)
    assert supervisor.close(ended.set, lambda: outcome.append("left"), 10.0)
    stepping.join(10)
    assert outcome == [True]


def test_closing_is_not_waited_for_without_end(stuck):
    left = []
    began_s = time.monotonic()
    assert not Supervisor(str, str).close(stuck, lambda: left.append("left"), 0.5)
    assert left == ["left"] and 0.4 < time.monotonic() - began_s < 5


def test_a_process_ends_though_a_call_does_not():
    done = subprocess.run([sys.executable, "-c", NEVER_ENDS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
