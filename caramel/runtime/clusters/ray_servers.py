"""Servers on an existing Ray cluster: each is an actor, in one placement group, for as long as they are needed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from caramel.errors import ClusterError, InputError
from caramel.runtime.host.membership import Membership
from caramel.runtime.host.ray_actor import ServerActor
from caramel.runtime.host.server import START_TIMEOUT_S
from caramel.util.arguments import whole_number

if TYPE_CHECKING:
    from caramel.runtime.clusters.existing import Servers

ROOM_TIMEOUT_S = 60.0
"""Seconds in which Ray must find room for all servers."""

_ON_THIS_NODE = 0.001
"""Amount of a node's own resource that ties something to the node; there is 1 of it."""


@contextmanager
def connected() -> Iterator[Any]:
    """Ray, connected to the cluster that runs, until the end of a ``with`` statement; as it is if it is connected.

    Raises:
        InputError: Ray is not installed, or there is no cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise InputError("Ray is not installed here: pip install 'ray>=2.40,<3'") from error
    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError) as error:
        raise InputError(
            f"there is no Ray cluster to connect to ({str(error).splitlines()[0]}): run this on one of its nodes, or "
            "set RAY_ADDRESS"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def number_of_nodes() -> int:
    """The number of nodes of the Ray cluster.

    Raises:
        InputError: there is no cluster.
    """
    with connected() as ray:
        return sum(bool(node["Alive"]) for node in ray.nodes())


@contextmanager
def ray_servers(workers: int | None = None, *, cpus_per_worker: int = 1) -> Iterator[Servers]:
    """Servers on an existing Ray cluster, spread over its nodes, until the end of a ``with`` statement.

    The first one is on the node of this process, with which it exchanges values through files. Nodes need Caramel in
    the environment of their Ray.

    Args:
        workers: number of servers, each with one worker; default: one for each node.
        cpus_per_worker: number of Ray's CPUs that each of them reserves.

    Yields:
        The `caramel.Servers`, for `caramel.fit` or `caramel.ARModel.session`.

    Raises:
        InputError: there is no Ray, or no cluster.
        ClusterError: Ray has no room for them, or one does not start.

    Examples:
        >>> import caramel
        >>> try:
        ...     with caramel.ray_servers(workers=2) as cluster:
        ...         print(cluster.addresses)
        ... except caramel.InputError as error:
        ...     print("Ray" in str(error))  # it is not installed, or does not run
        True
    """
    with ray_membership(workers, cpus_per_worker=cpus_per_worker) as membership:
        from caramel.runtime.clusters.existing import Servers

        yield Servers(membership.addresses)


@contextmanager
def ray_membership(workers: int | None = None, *, cpus_per_worker: int = 1) -> Iterator[Membership]:
    """The servers of `ray_servers`, without TensorFlow in this process.

    Args:
        workers: see `ray_servers`.
        cpus_per_worker: see `ray_servers`.

    Raises:
        InputError: there is no Ray, or no cluster.
        ClusterError: Ray has no room for them, or one does not start.
    """
    whole_number(cpus_per_worker, "cpus_per_worker")
    with connected() as ray:
        number = number_of_nodes() if workers is None else whole_number(workers, "workers")
        group = _group(ray, number, cpus_per_worker)
        actors: list[Any] = []
        try:
            actors += _actors(ray, group, number, cpus_per_worker)
            yield _started(ray, actors)
        finally:
            for actor in actors:
                ray.kill(actor)
            ray.util.remove_placement_group(group)


def _group(ray: Any, number: int, cpus: int) -> Any:
    """A placement group with a bundle for each server.

    Raises:
        ClusterError: there is no room for it.
    """
    here = f"node:{ray.util.get_node_ip_address()}"
    bundles: list[dict[str, float]] = [{"CPU": cpus} for _ in range(number)]
    bundles[0][here] = _ON_THIS_NODE
    group = ray.util.placement_group(bundles, strategy="SPREAD")
    if not group.wait(ROOM_TIMEOUT_S):
        ray.util.remove_placement_group(group)
        free = ray.available_resources().get("CPU", 0)
        raise ClusterError(
            f"Ray has had no room for {number} servers of {cpus} CPUs each for {ROOM_TIMEOUT_S:g} s ({free:g} CPUs are "
            "free, and the first server must be on this node): take fewer workers, or wait until others have ended"
        )
    return group


def _actors(ray: Any, group: Any, number: int, cpus: int) -> list[Any]:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    actor = ray.remote(ServerActor)
    return [
        actor.options(
            num_cpus=cpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        ).remote()
        for index in range(number)
    ]


def _started(ray: Any, actors: list[Any]) -> Membership:
    """Start the server of each actor, and wait until all listen.

    Raises:
        ClusterError: one does not, or its actor is lost.
    """
    try:
        membership = Membership(tuple(ray.get([actor.address.remote() for actor in actors], timeout=START_TIMEOUT_S)))
        starting = [actor.start.remote(membership, task, START_TIMEOUT_S) for task, actor in enumerate(actors)]
        troubles = ray.get(starting, timeout=START_TIMEOUT_S + ROOM_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ClusterError(f"an actor of Ray cannot start a server: {type(error).__name__}: {reason}") from error
    for address, trouble in zip(membership.addresses, troubles):
        if trouble:
            raise ClusterError(f"the server at {address} did not start on its node of Ray: {trouble}")
    return membership
