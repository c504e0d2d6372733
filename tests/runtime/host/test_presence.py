"""Which drivers a server takes for gone: a server, drivers of its own process, and each look at them by hand."""

import pytest

pytestmark = pytest.mark.processes

START = """
import time
import tensorflow as tf
from caramel.runtime.host import presence

task = "/job:worker/replica:0/task:0"
server = tf.distribute.Server({"worker": ["127.0.0.1:2222"]}, job_name="worker", task_index=0)
watch = presence.Watch(server.target, task)

class Driver:
    def __init__(self, name):
        self.presence = presence.Presence(task, name)
        self.session = self.presence.open(server.target)
        self.presence.stay(self.session)

    def leave(self):
        self.presence.leave(self.session)

    def end(self):
        self.session.close()

def looks(count):
    freed = set()
    for _ in range(count):
        time.sleep(0.1)
        freed |= watch.look()
    return sorted(freed)
"""


@pytest.fixture
def said(network):
    """Function that runs what drivers do at a server; the lines that it prints."""

    def run(text):
        ended = network.run("-c", START + text)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.splitlines()

    return run


def test_a_driver_that_ends_without_a_word_is_gone(said):
    text = """
a = Driver("process 1 on here, session 0")
print(looks(8))
a.end()
print(looks(8))
"""
    assert said(text) == ["[]", "['process 1 on here, session 0']"]


def test_a_driver_that_has_left_is_not_gone_though_its_name_stays_a_while(said):
    """Its run ends only after it has said so, and may put the name into the queue once more."""
    text = """
a = Driver("process 1 on here, session 0")
print(looks(3))
a.leave()
print(looks(3))
a.end()
print(looks(10))
"""
    assert said(text) == ["[]", "[]", "[]"]


def test_nothing_is_freed_while_another_driver_is_there(said):
    text = """
a = Driver("process 1 on here, session 0")
b = Driver("process 2 on here, session 0")
print(looks(3))
a.end()
print(looks(8))
b.end()
print(looks(8))
"""
    assert said(text) == ["[]", "[]", "['process 1 on here, session 0', 'process 2 on here, session 0']"]


def test_one_that_has_left_keeps_nobody_from_being_freed(said):
    text = """
a = Driver("process 1 on here, session 0")
b = Driver("process 2 on here, session 0")
print(looks(3))
b.leave()
a.end()
print(looks(8))
"""
    assert said(text) == ["[]", "['process 1 on here, session 0']"]


def test_a_driver_is_there_until_its_process_ends(said):
    """Not only while it has a session; names of processes have no session. It can ask for the server's version."""
    text = """
process = Driver("process 1 on here")
session = Driver("process 1 on here, session 0")
print(looks(3), watch.is_over)
print(process.presence.version(process.session) == tf.__version__)
session.leave()
session.end()
print(looks(8), watch.is_over)
process.leave()
print(looks(1), watch.is_over)
"""
    assert said(text) == ["[] False", "True", "[] False", "[] True"]


@pytest.mark.soak  # as the command, on servers that end with their driver
def test_a_driver_whose_process_was_killed_is_gone(said):
    text = """
process = Driver("process 1 on here")
session = Driver("process 1 on here, session 0")
print(looks(3), watch.is_over)
process.end()
session.end()
print(looks(8), watch.is_over)
"""
    assert said(text) == ["[] False", "['process 1 on here, session 0'] True"]


@pytest.mark.soak
def test_a_server_is_not_over_while_another_driver_is_there(said):
    text = """
a, b = Driver("process 1 on here"), Driver("process 2 on here")
print(looks(3), watch.is_over)
a.leave()
a.end()
print(looks(3), watch.is_over)
b.leave()
print(looks(3), watch.is_over)
"""
    assert said(text) == ["[] False", "[] False", "[] True"]


SERVER = """
import time
import tensorflow as tf
server = tf.distribute.Server({"worker": ["127.0.0.1:2222"]}, job_name="worker", task_index=0)
print("listens", flush=True)
time.sleep(600)
"""

FIT = """
import os
import keras
import numpy as np
import caramel

model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
model.compile("sgd", "mse")
caramel.fit(model, np.ones([4, 2]), np.ones(4), cluster=caramel.Servers(["127.0.0.1:2222"]), verbose=0)
print(os.getpid())
"""

WHO_HAS_LEFT = """
from caramel.runtime.host.presence import Presence
presence = Presence("/job:worker/replica:0/task:0")
with presence.open("grpc://127.0.0.1:2222") as session:
    print(*sorted(presence.left(session)), sep="\\n")
"""


@pytest.mark.slow
def test_a_fit_leaves_at_the_end_of_its_process(network):
    """Its session is closed then, when the threads that ask servers have ended."""
    server = network.start("-c", SERVER)
    assert network.line_of(server) == "listens\n"
    fitted = network.run("-c", FIT)
    assert fitted.returncode == 0, fitted.stderr
    left = network.run("-c", WHO_HAS_LEFT).stdout.splitlines()
    process = f"process {fitted.stdout.strip()} on "
    assert [name.startswith(process) for name in left] == [True, True], left
    assert sorted(", session" in name for name in left) == [False, True], left
