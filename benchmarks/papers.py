"""``python -m benchmarks.papers``: the figures of the papers behind this library, simulated from published numbers.

Nothing is measured: the same data give the same record anywhere, in half a minute. MG-WFBP's figure 9 is in
`benchmarks.published`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from benchmarks.figures import bytescheduler, caramel, tictac
from benchmarks.figures.networks import PaperNetwork, paper_networks
from benchmarks.output import errors_for_click, markdown_table, write_json

BYTESCHEDULER_PROCESSOR = "P100"
"""That of published training steps which is nearest to the paper's V100."""


def record_of_all() -> dict[str, Any]:
    """What `benchmarks/results/papers.json` has."""
    networks, faster = paper_networks(), paper_networks(BYTESCHEDULER_PROCESSOR)
    return {
        "networks": [_described(name, network) for each in (networks, faster) for name, network in each.items()],
        _CARAMEL: caramel.record_of(networks),
        _TICTAC: tictac.record_of(networks),
        _BYTESCHEDULER: bytescheduler.record_of(faster),
    }


def _described(name: str, network: PaperNetwork) -> dict[str, Any]:
    return {
        "name": name,
        "layers": len(network.layers),
        "size_bytes": network.size_bytes,
        "compute_s": network.compute_s,
        "source": network.source,
    }


def networks_table(record: Mapping[str, Any]) -> str:
    """The networks, and where their times are from."""
    rows = [
        [
            each["name"],
            str(each["layers"]),
            f"{each['size_bytes'] / 2**20:.1f}",
            f"{each['compute_s'] * 1e3:.0f}",
            each["source"],
        ]
        for each in record["networks"]
    ]
    return markdown_table(["network", "layers", "MiB", "computation [ms]", "times"], rows)


def _of(paper: str, table: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda record: table(record[paper])


_CARAMEL, _TICTAC, _BYTESCHEDULER = "caramel", "tictac", "bytescheduler"

TABLES: Mapping[str, Callable[[Any], str]] = {
    "paper_networks": networks_table,
    "caramel_iterations": _of(_CARAMEL, caramel.iterations_table),
    "caramel_links": _of(_CARAMEL, caramel.links_table),
    "caramel_overlap": _of(_CARAMEL, caramel.overlap_table),
    "caramel_ablation": _of(_CARAMEL, caramel.ablation_table),
    "caramel_ablations": _of(_CARAMEL, caramel.ablations_table),
    "caramel_reductions": _of(_CARAMEL, caramel.reductions_table),
    "caramel_scaling": _of(_CARAMEL, caramel.scaling_table),
    "tictac_gains": _of(_TICTAC, tictac.gains_table),
    "tictac_batches": _of(_TICTAC, tictac.batches_table),
    "tictac_efficiencies": _of(_TICTAC, tictac.efficiencies_table),
    "tictac_spread": _of(_TICTAC, tictac.spread_table),
    "bytescheduler_speeds": _of(_BYTESCHEDULER, bytescheduler.speeds_table),
    "bytescheduler_sweeps": _of(_BYTESCHEDULER, bytescheduler.sweeps_table),
}
"""What makes a table of the record, by the table's name in the documents."""

PLOTS: Mapping[str, Callable[[Any, Path], None]] = {
    "papers_caramel": lambda record, path: caramel.plot(record[_CARAMEL], str(path)),
    "papers_tictac": lambda record, path: tictac.plot(record[_TICTAC], str(path)),
    "papers_bytescheduler": lambda record, path: bytescheduler.plot(record[_BYTESCHEDULER], str(path)),
}
"""What draws the record, by the name of the picture."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "json_file", metavar="FILE", help="Write the results.")
@click.option("--plots", "folder", metavar="DIRECTORY", help="Draw them into a directory.")
@errors_for_click
def main(json_file: str | None, folder: str | None) -> None:
    """Simulate the figures of the papers from published numbers."""
    record = record_of_all()
    for name, table in TABLES.items():
        click.echo(f"{name}\n\n{table(record)}\n")
    if json_file is not None:
        write_json(record, json_file)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, draw in PLOTS.items():
            draw(record, Path(folder) / f"{name}.png")


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.papers"))
