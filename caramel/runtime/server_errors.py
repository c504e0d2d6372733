"""Errors that name tasks, where some of these are parameter servers."""

from __future__ import annotations

import re

from caramel.errors import listed
from caramel.graph.devices import Device
from caramel.signature import Signature


def with_servers(message: str, signature: Signature) -> str:
    """A message about lost tasks, which are all called workers, with those among them that are parameter servers.

    Args:
        message: text of an error.
        signature: of the graph that runs.
    """
    tasks = {
        task: number for number, text in enumerate(signature.servers) if (task := Device.parse(text).task) is not None
    }
    own = {Device.parse(text).task for text in signature.devices}
    named = sorted({int(task) for task in re.findall(r"\bworker (\d+)\b", message)} & tasks.keys() - own)
    servers = [f"worker {task} is parameter server {tasks[task]}" for task in named]
    return f"{message} ({listed(servers, 3)})" if servers else message
