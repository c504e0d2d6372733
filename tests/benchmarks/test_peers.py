"""The peers' processes: whatever happens, none of them stays, and the error says what it was."""

import subprocess
from types import SimpleNamespace

import pytest

from benchmarks.peers import MirroredWorkers
from caramel.errors import ClusterError


class Hosts:
    """A testbed whose processes are others than those asked for, rank by rank."""

    def __init__(self, *commands):
        self.started = []
        self.log = None
        self.hosts = [SimpleNamespace(address="127.0.0.1", popen=self._popen(command)) for command in commands]

    def _popen(self, command):
        def popen(_, **options):
            self.log = options["stderr"]
            self.started.append(subprocess.Popen(command, **options))
            return self.started[-1]

        return popen

    def is_clean(self):
        """Whether all processes ended, and nothing of theirs is open."""
        pipes = [pipe for process in self.started for pipe in (process.stdin, process.stdout)]
        ended = [process.returncode is not None for process in self.started]
        return all(ended) and self.log.closed and all(pipe.closed for pipe in pipes)


@pytest.fixture
def hosts():
    """Makes testbeds, and ends what they leave."""
    made = []

    def make(*commands):
        made.append(Hosts(*commands))
        return made[-1]

    yield make
    for testbed in made:
        for process in testbed.started:
            process.kill()
            process.wait()


def test_a_worker_that_cannot_start_takes_the_others_with_it(hosts):
    testbed = hosts(["cat"], ["cat"], ["/no/such/program"])
    with pytest.raises(FileNotFoundError):
        MirroredWorkers(3, testbed)
    assert len(testbed.started) == 2 and testbed.is_clean()


def test_a_worker_that_does_not_answer_is_not_said_to_have_ended(hosts):
    testbed = hosts(["cat"], ["sleep", "60"])
    with pytest.raises(ClusterError, match=r"did not answer within 0\.2 s"):
        MirroredWorkers(2, testbed, timeout_s=0.2)
    assert testbed.is_clean()


def test_a_worker_that_ends_says_why(hosts):
    testbed = hosts(["cat"], ["sh", "-c", "echo no luck >&2"])
    with pytest.raises(ClusterError, match="Strategy ended: no luck"):
        MirroredWorkers(2, testbed)
    assert testbed.is_clean()


def test_nothing_stays_open(hosts):
    testbed = hosts(["cat"], ["cat"])  # which answer with the question
    with MirroredWorkers(2, testbed) as workers:
        workers.load(64, 1)
    assert testbed.is_clean()
    workers.close()
