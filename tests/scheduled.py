"""Names of all-reduces that have schedules, for tests that hold for every one."""

from caramel.collectives.algorithms import ALGORITHMS

SCHEDULED = (*ALGORITHMS, "hierarchy_2", "hierarchy_3")
