"""Whether all servers have the driver's version of TensorFlow, as far as they say which they have."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from caramel.errors import ClusterError, listed
from caramel.runtime.clusters.heartbeat import Member
from caramel.runtime.executor import caramel_error
from caramel.runtime.host.presence import Presence


def check_versions(members: Sequence[Member]) -> None:
    """Refuse servers with another version of TensorFlow, before they get a graph.

    Args:
        members: servers that answer.

    Raises:
        ClusterError: one has another version, or cannot be asked.
    """
    try:
        with ThreadPoolExecutor(len(members)) as pool:
            versions = list(pool.map(_version, members))
    except tf.errors.OpError as error:
        raise caramel_error(error, "while opening the session") from error
    if all(version in (None, tf.__version__) for version in versions):
        return
    names_of: dict[str, list[str]] = {}
    for member, version in zip(members, versions):
        if version:
            names_of.setdefault(version, []).append(member.name)
    elsewhere = "; ".join(f"{version} on {listed(names)}" for version, names in sorted(names_of.items()))
    raise ClusterError(
        f"the hosts have different versions of TensorFlow: {tf.__version__} here, where the program runs; {elsewhere}. "
        "Install the same one on all"
    )


def _version(member: Member) -> str | None:
    presence = Presence(member.task)
    with presence.open(member.target) as session:
        return presence.version(session)
