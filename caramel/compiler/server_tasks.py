"""How many tasks of a cluster options ask for as parameter servers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from caramel.errors import CaramelError
from caramel.graph.devices import Device
from caramel.plan import Plan


def server_tasks(options: Mapping[str, Any]) -> int | None:
    """The number of tasks that options ask for as parameter servers, besides those of the workers.

    Args:
        options: options of `caramel.ARModel`, by name, not checked yet. A plan that cannot be read counts as none: it
            is refused where it is used.

    Returns:
        The number; 0 where servers are on devices that are named. None where there are to be none.
    """
    servers, plan = options.get("servers"), None
    if options.get("plan") is not None:
        with suppress(CaramelError):
            plan = options["plan"] if isinstance(options["plan"], Plan) else Plan.load(options["plan"])
    if servers is None and (plan is None or plan.servers is None):
        return None
    if options.get("server_list") is not None:
        return 0
    if plan is None:
        return servers if isinstance(servers, int) else 0
    tasks, of_servers = ({Device.parse(text).process for text in each} for each in (plan.devices, plan.server_devices))
    return len(of_servers - tasks)
