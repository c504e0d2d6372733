"""A kernel that allows no network namespace: refusal, or open ports if the user says so.

The kernel is this one, with a filter on system calls that refuses `unshare`, as containers have. So that
no port is opened to the outside, the filter is put on inside a network namespace.
"""

import json
import os
import platform
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow]

UNSHARE = {"x86_64": (0xC000003E, 272), "aarch64": (0xC00000B7, 97)}
"""Architecture's name in a filter, and the number of the system call."""

NO_FILTER = 77

# In a process of its own, because a filter cannot be taken off again; it holds for all children.
CHILD = """
import ctypes, fcntl, json, os, socket, struct, sys, time

architecture, number, is_isolated = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "isolated"
NO_FILTER = 77


def bring_up_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh", b"lo", 0).ljust(40, bytes(1))
        flags = struct.unpack_from("16sh", fcntl.ioctl(control, 0x8913, request))[1]
        fcntl.ioctl(control, 0x8914, struct.pack("16sh", b"lo", flags | 1).ljust(40, bytes(1)))


def no_namespaces():
    instruction = struct.Struct("HBBI").pack
    program = b"".join(
        [
            instruction(0x20, 0, 0, 4),             # load the architecture
            instruction(0x15, 0, 2, architecture),  # another one: allow
            instruction(0x20, 0, 0, 0),             # load the number of the system call
            instruction(0x15, 1, 0, number),        # unshare: skip to the refusal
            instruction(0x06, 0, 0, 0x7FFF0000),    # allow
            instruction(0x06, 0, 0, 0x00050001),    # fail with EPERM
        ]
    )
    code = ctypes.create_string_buffer(program, len(program))
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 6, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, filters, 0, 0) != 0:  # no new privileges; the filter
        sys.exit(NO_FILTER)
    assert libc.unshare(0x40000000) == -1


def three_free_ports():
    for _ in range(100):
        with socket.socket() as first, socket.socket() as second, socket.socket() as third:
            try:
                first.bind(("127.0.0.1", 0))
                port = first.getsockname()[1]
                second.bind(("127.0.0.1", port + 1))
                third.bind(("127.0.0.1", port + 2))
                return port
            except (OSError, OverflowError):
                pass


if is_isolated:
    bring_up_loopback()
no_namespaces()
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
import caramel

v1 = tf.compat.v1
with caramel.capture() as context:
    x = v1.placeholder(tf.float32, [None, 3], "x")
    w = v1.get_variable("w", [3], initializer=tf.ones_initializer())
    v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.linalg.matvec(x, w) ** 2))
armodel = caramel.ARModel(context, 2)
said = {}


def attempt(name, **options):
    start = time.monotonic()
    try:
        with armodel.session(caramel.LocalProcesses(**options)) as session:
            losses = [session.step(np.ones([4, 3], np.float32)).loss for _ in range(2)]
            ports = {
                int(line.split()[1].rpartition(":")[2], 16)
                for table in ("tcp", "tcp6")
                for line in open(f"/proc/{session._executor.worker_pids()[0]}/net/{table}").readlines()[1:]
                if line.split()[3] == "0A"
            }
            said[name] = {"losses": losses, "ports": sorted(ports)}
    except caramel.CaramelError as error:
        said[name] = {"error": type(error).__name__, "message": str(error)}
    said[name]["seconds"] = time.monotonic() - start


port = three_free_ports() + 1
with socket.socket() as taken:
    taken.bind(("127.0.0.1", port))
    taken.listen()
    attempt("refused")
    attempt("refused with a port", base_port=port)
    attempt("taken", base_port=port, allow_open_ports=True)
    attempt("second taken", base_port=port - 1, allow_open_ports=True)
if is_isolated:
    attempt("allowed", base_port=port, allow_open_ports=True)
said["port"] = port
said["children"] = open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said():
    """What happened in each attempt."""
    if not sys.platform.startswith("linux") or platform.machine() not in UNSHARE:
        pytest.skip(f"no filter of system calls is written for {sys.platform} on {platform.machine()}")
    architecture, number = UNSHARE[platform.machine()]
    prefix = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
    try:
        is_isolated = subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
    except OSError:
        is_isolated = False
    command = [sys.executable, "-c", CHILD, str(architecture), str(number), "isolated" if is_isolated else "open"]
    result = subprocess.run(
        [*prefix, *command] if is_isolated else command, capture_output=True, text=True, timeout=300
    )
    if result.returncode == NO_FILTER:
        pytest.skip("this kernel has no filters of system calls")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("attempt", ["refused", "refused with a port"])
def test_refusal(said, attempt):
    found = said[attempt]
    assert found.get("error") == "ClusterError"
    for words in ("refuse to start", "namespace", "listen on every interface", "in-process", "--allow-open-ports"):
        assert words in found["message"]
    assert found["seconds"] < 60


def test_a_port_in_use(said):
    found = said["taken"]
    assert found.get("error") == "ClusterError"
    for words in (f"port {said['port']}", "worker 0", "in use", "another base_port", "free ports"):
        assert words in found["message"]
    assert found["seconds"] < 60


def test_the_port_of_the_second_worker_in_use(said):
    found = said["second taken"]
    assert found.get("error") == "ClusterError"
    for words in (f"port {said['port']}", "worker 1", "in use"):
        assert words in found["message"]


def test_open_ports_if_the_user_says_so(said):
    if "allowed" not in said:
        pytest.skip("no network namespace here, so the ports would be open to the outside")
    found = said["allowed"]
    assert found.get("losses") == pytest.approx([9.0, 9.0 * 0.4**2]), found
    assert {said["port"], said["port"] + 1} <= set(found["ports"])


def test_nothing_is_left_behind(said):
    assert said["children"] == []
