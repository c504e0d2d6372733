"""All checks, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from caramel.doctor.finding import Finding, State, guarded, ok, problem
from caramel.doctor.machine import check_cores, check_memory, check_namespaces
from caramel.doctor.open_ports import check_open_ports
from caramel.doctor.versions import check_versions
from caramel.runtime.host.environment import load_tensorflow


def examine(
    addresses: Sequence[str] = (),
    own_task: int | None = None,
    checkpoint_directory: str | None = None,
    load: Callable[[], Any] = load_tensorflow,
) -> Iterator[Finding]:
    """Look at this machine and, with addresses, at the servers of a cluster.

    TensorFlow is loaded on the way, unless it is already.

    Args:
        addresses: address ``host:port`` of each server.
        own_task: number of the task that TF_CONFIG says this process is; None without it.
        checkpoint_directory: directory for checkpoints, or None.
        load: function that loads TensorFlow.

    Yields:
        What each check has found, as soon as it is known.
    """
    # Forks, so it comes before TensorFlow's threads.
    yield from guarded("network namespaces", check_namespaces)
    yield from guarded("versions", check_versions)
    yield from guarded("cores", check_cores)
    yield from guarded("memory", check_memory)
    yield from guarded("open ports", check_open_ports)
    loaded = guarded("TensorFlow itself", _check_loading, load)
    yield from loaded
    if any(finding.state is State.PROBLEM for finding in loaded):
        return
    if addresses:
        from caramel.doctor.cluster import Members, check_cluster

        yield from check_cluster(Members(tuple(addresses), own_task), checkpoint_directory)
    elif checkpoint_directory is not None:
        from caramel.doctor.directories import check_here

        yield from guarded("checkpoint directory", check_here, "checkpoint directory", checkpoint_directory)


def as_values(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings for programs.

    Args:
        findings: what was found.
    """
    problems = sum(finding.state is State.PROBLEM for finding in findings)
    return {"problems": problems, "findings": [finding.as_dict() for finding in findings]}


def _check_loading(load: Callable[[], Any]) -> Iterator[Finding]:
    """Whether TensorFlow can be loaded."""
    try:
        load()
        import tensorflow as tf

        devices = [device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices()]
    except Exception as error:  # of its libraries, too
        text = f"it cannot be loaded: {type(error).__name__}: {error}"
        yield problem("TensorFlow itself", text, "install it anew: pip install --force-reinstall tensorflow")
    else:
        yield ok("TensorFlow itself", f"can be loaded, and sees {', '.join(devices)}")
