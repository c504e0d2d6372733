"""Collectives: schedules as data, a symbolic checker, and their lowering to native ops.

Import from here: ``from caramel.collectives import ALGORITHMS, check``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from caramel.util.lazy_names import lazy_names

_PLACES = {
    "ALGORITHMS": "algorithms",
    "ALL_REDUCES": "algorithms",
    "AllReduce": "all_reduce",
    "Builder": "schedule",
    "check": "schedule",
    "cuts": "schedule",
    "Factors": "all_reduce",
    "in_chunks": "schedule",
    "Instruction": "schedule",
    "NATIVE": "algorithms",
    "Proof": "schedule",
    "Schedule": "schedule",
    "Schedules": "algorithms",
}

if TYPE_CHECKING:
    from caramel.collectives.algorithms import ALGORITHMS, ALL_REDUCES, NATIVE, Schedules
    from caramel.collectives.all_reduce import AllReduce, Factors
    from caramel.collectives.schedule import Builder, Instruction, Proof, Schedule, check, cuts, in_chunks

__all__ = [
    "ALGORITHMS",
    "ALL_REDUCES",
    "AllReduce",
    "Builder",
    "check",
    "cuts",
    "Factors",
    "in_chunks",
    "Instruction",
    "NATIVE",
    "Proof",
    "Schedule",
    "Schedules",
]

__getattr__, __dir__ = lazy_names(__name__, _PLACES)
