"""How much is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from benchmarks.training import names
from caramel.measure.netbench import SMALLEST_SIZE
from caramel.measure.netbench import Settings as NetworkSettings


@dataclass(frozen=True)
class Effort:
    """What a run takes its time for.

    Attributes:
        rounds: of all contenders, in a cell.
        steps: of each contender in a round, after one that does not count.
        computed_bursts: of the computation alone, with batches of either size, before a workload's first cell.
        network: what this library measures of a network.
        trace_runs: traced steps of a workload.
        trace_steps: plain ones, and for each order of gradients.
        pack_bytes: tried for MultiWorkerMirroredStrategy, whose default is all gradients in one pack (0).
        fusion: bytes of a buffer and milliseconds of a cycle that are tried for Horovod, besides its default of
            128 MiB and 1 ms.
        bursts: of each setting that is tried, after two steps that do not count.
        contenders: who takes part; None for everybody but `names.ON_REQUEST`.
    """

    rounds: int
    steps: int
    computed_bursts: int
    network: NetworkSettings
    trace_runs: int
    trace_steps: int
    pack_bytes: tuple[int, ...]
    fusion: tuple[tuple[int, float], ...]
    bursts: int
    contenders: tuple[str, ...] | None = None

    def takes_part(self, name: str) -> bool:
        """Whether a contender does."""
        return name not in names.ON_REQUEST if self.contenders is None else name in self.contenders

    @property
    def settings(self) -> Mapping[str, int | float | str | bool]:
        """What two runs must have in common for their cells to be compared."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: each if isinstance(each, int) else str(each) for name, each in given.items()}


FULL = Effort(
    rounds=5,
    steps=1,
    computed_bursts=3,
    network=NetworkSettings(sizes=(SMALLEST_SIZE, *(2**k for k in (12, 15, 18, 20))), depths=(1, 4), rounds=2),
    trace_runs=3,
    trace_steps=15,
    pack_bytes=(2**18, 2**19, 2**20, 2**21),
    fusion=((2**20, 1.0), (2**20, 5.0), (2**22, 1.0)),
    bursts=2,
)

QUICK = Effort(
    rounds=2,
    steps=1,
    computed_bursts=2,
    network=NetworkSettings(
        sizes=(SMALLEST_SIZE, *(2**k for k in (12, 18, 20))),
        algorithms=("ring", "shuffle"),
        depths=(1,),  # thus nothing is cut
        rounds=1,
    ),
    trace_runs=2,
    trace_steps=3,
    pack_bytes=(2**19,),
    fusion=(),
    bursts=1,
    contenders=(
        names.COMPUTE,
        names.COMPUTE_HOROVOD,
        names.OURS,
        "caramel_nothing",
        names.MIRRORED,
        names.MIRRORED_BEST,
        names.HOROVOD,
    ),
)

EMULATED = replace(
    FULL,
    network=replace(FULL.network, contention=False),  # computation takes no processor from transfers
    contenders=(
        names.COMPUTE,
        names.COMPUTE_HOROVOD,
        names.COMPUTE_IN_GRAPH,
        names.OURS,
        "caramel_paper",
        "caramel_nothing",
        names.MIRRORED,
        names.MIRRORED_BEST,
        names.HOROVOD,
        names.HOROVOD_BEST,
        "ps_all",
    ),
)
"""With emulated accelerators."""
