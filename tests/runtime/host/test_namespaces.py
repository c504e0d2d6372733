"""A network namespace that can be made but not made ready, as where AppArmor restricts user namespaces."""

import subprocess
import sys

import pytest

# In a process of its own, which goes on where it is left. Nothing listens, so nothing is opened to anyone.
CHILD = """
import os, sys

from caramel.errors import ClusterError
from caramel.runtime.host import namespaces
from caramel.runtime.clusters import launcher


def refuse(*_):
    raise PermissionError(1, "Operation not permitted")


setattr(namespaces, sys.argv[1], refuse)
if sys.argv[1] == "_write":
    os.geteuid = lambda: 1  # only a user without privileges needs a user namespace, with maps to write
before = namespaces.network_namespace("/proc/self/ns/net")
settings = {"hosts": None, "allow_open_ports": False}
try:
    launcher.Launcher._isolate(settings)
except ClusterError as error:
    assert "refuse to start" in str(error) and "Operation not permitted" in str(error), error
else:
    sys.exit("it is isolated, or goes on without")
launcher.Launcher._isolate({**settings, "allow_open_ports": True})
assert namespaces.network_namespace("/proc/self/ns/net") == before, "left in a namespace without a network"
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("well")
"""


@pytest.mark.parametrize("fails", ["_write", "_bring_up"])
@pytest.mark.usefixtures("namespaces")
def test_a_namespace_that_is_half_entered_is_left_again(fails):
    done = subprocess.run([sys.executable, "-c", CHILD, fails], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr
