"""``python -m benchmarks.build``: what it costs to emit the all-reduces of a large model and to run them first.

The gradients of a ResNet-50 (161 tensors; the shapes are those of the architecture, no weights) travel
in 25 buckets by a ring. Building is measured in a process of its own for each number of workers, with its
memory; the first run is that of local server processes.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from benchmarks.output import errors_for_click, markdown_row, markdown_table, write_json

if TYPE_CHECKING:
    from caramel.collectives.lower import Emitter
    from caramel.graph.graph import NodeDef

BUCKETS = 25


def resnet50_sizes() -> list[int]:
    """Elements of the 161 trainable tensors of a ResNet-50 (He et al. 2015, table 1), 25.6 million in all.

    53 convolutions without biases, each with batch normalisation's scale and offset, and a dense layer with a bias.
    """
    sizes = [7 * 7 * 3 * 64, 64, 64]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolutions = [(1, channels, width), (3, width, width), (1, width, 4 * width)]
            if block == 0:
                convolutions.append((1, channels, 4 * width))
            for kernel, given, made in convolutions:
                sizes += [kernel * kernel * given * made, made, made]
            channels = 4 * width
    return [*sizes, 2048 * 1000, 1000]


def buckets(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Neighbouring tensors in buckets of about equal size."""
    target = sum(sizes) / count
    found: list[list[int]] = [[]]
    total = 0
    for number, size in enumerate(sizes):
        is_full = total >= target * len(found)
        are_few_left = len(sizes) - number <= count - len(found)
        if found[-1] and len(found) < count and (is_full or are_few_left):
            found.append([])
        found[-1].append(size)
        total += size
    return found


def _filled(emitter: Emitter, number: int, sizes: Sequence[int], rank: int) -> tuple[list[NodeDef], str]:
    """The gradients of a bucket on a worker: nodes beside the emitter's, and the bucket as one tensor."""
    from caramel.graph.nodes import constant, dtype_attribute

    types = {"T": dtype_attribute("float32"), "index_type": dtype_attribute("int32")}
    nodes, parts = [], []
    for index, size in enumerate(sizes):
        name = f"gradient_{number}_{index}_{rank}/value"
        nodes.append(constant(name, rank + 1.0, "float32", emitter.devices[rank]))
        inputs = [emitter.integers(rank, [size]), name]
        parts.append(emitter.add(rank, f"gradient_{index}_{rank}", "Fill", inputs, **types))
    return nodes, emitter.joined(rank, f"pack_{rank}", parts)


def _assigned(
    emitter: Emitter, number: int, sizes: Sequence[int], rank: int, result: str
) -> tuple[list[NodeDef], list[str]]:
    """What a worker does with a reduced bucket: nodes beside the emitter's, and the names of the assignments."""
    from caramel.graph.nodes import assign, variable

    device = emitter.devices[rank]
    nodes, names = [], []
    for index, (piece, size) in enumerate(zip(emitter.parted(rank, f"unpack_{rank}", result, sizes), sizes)):
        name = f"value_{number}_{index}_{rank}"
        names.append(f"{name}/assign")
        nodes.append(variable(name, "float32", (size,), device))
        nodes.append(assign(names[-1], name, piece, "float32", device))
    return nodes, names


def graph_of(workers: int, algorithm: str) -> tuple[Any, list[str], list[str]]:
    """The graph: gradients (filled on their workers), buckets, all-reduces and assignments of the results.

    Returns:
        The GraphDef, the devices, and the last op of each worker.
    """
    from caramel.collectives.algorithms import Schedules
    from caramel.collectives.emit import emit_all_reduce
    from caramel.collectives.lower import Emitter, Request
    from caramel.graph.devices import default_devices
    from caramel.graph.graph import Graph
    from caramel.graph.nodes import group

    devices = [f"{text}/device:CPU:0" for text in default_devices(workers)]
    schedules = Schedules()
    nodes: list[NodeDef] = []
    done: list[list[str]] = [[] for _ in devices]
    for number, sizes in enumerate(buckets(resnet50_sizes(), BUCKETS)):
        emitter = Emitter(f"bucket_{number}", devices, "float32")
        packed = []
        for rank in range(workers):
            made, bucket = _filled(emitter, number, sizes, rank)
            nodes += made
            packed.append(bucket)
        request = Request(f"bucket_{number}/reduce", packed, devices, "float32", sum(sizes), mean=True)
        lowered = emit_all_reduce(schedules, algorithm, 1, request, turn=number, instance=number + 1)
        for rank, result in enumerate(lowered.results):
            made, names = _assigned(emitter, number, sizes, rank, result)
            nodes += made
            done[rank] += names
        nodes += [node for node, _ in (*emitter.out.nodes, *lowered.nodes)]
    last = [group(f"done_{rank}", names, devices[rank]) for rank, names in enumerate(done)]
    graph = Graph([*nodes, *last])
    return graph.to_graph_def(), devices, [n.name for n in last]


def measure(workers: int, algorithm: str, runs: bool) -> dict[str, Any]:
    """Build, and run for the first and the second time."""
    import caramel.graph.nodes  # noqa: F401 - TensorFlow's import is not part of building
    from caramel.util.gc_pause import paused_gc

    start = time.perf_counter()
    with paused_gc():
        graph_def, devices, targets = graph_of(workers, algorithm)
    build_s = time.perf_counter() - start
    row: dict[str, Any] = {"workers": workers, "nodes": len(graph_def.node), "build_s": build_s}
    row["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if runs:
        from caramel.runtime.clusters.local_processes import LocalProcesses

        tasks = tuple(d.removesuffix("/device:CPU:0") for d in devices)
        start = time.perf_counter()
        executor = LocalProcesses().start(graph_def, tasks, 600.0)
        row["start_s"] = time.perf_counter() - start
        try:
            for key in ("first_run_s", "second_run_s"):
                start = time.perf_counter()
                executor.run([], targets, {}, 600.0)
                row[key] = time.perf_counter() - start
        finally:
            executor.close()
    return row


HEAD = (
    *("workers", "nodes", "build [s]", "per node [us]", "peak [MiB]"),
    *("start [s]", "first run [s]", "second run [s]"),
)


def _cells(row: Mapping[str, Any]) -> list[str]:
    runs = [f"{row[key]:.2f}" if key in row else "-" for key in ("start_s", "first_run_s", "second_run_s")]
    per_node = f"{row['build_s'] / row['nodes'] * 1e6:.0f}"
    built = [str(row["nodes"]), f"{row['build_s']:.2f}", per_node, f"{row['peak_bytes'] / 2**20:.0f}"]
    return [str(row["workers"]), *built, *runs]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What was measured, by number of workers.

    Args:
        rows: results of `measure`.
    """
    return markdown_table(HEAD, map(_cells, rows))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--workers", "numbers", type=int, multiple=True, default=(2, 4, 8, 16, 32, 64), show_default=True)
@click.option("--algorithm", default="ring", show_default=True)
@click.option("--most-run", type=int, default=16, show_default=True, help="More workers are only built, not run.")
@click.option("--json", "json_file", metavar="FILE", help="Write the results.")
@click.option("--one", is_flag=True, hidden=True)
@errors_for_click
def main(numbers: tuple[int, ...], algorithm: str, most_run: int, json_file: str | None, one: bool) -> None:
    """Build the all-reduces of a ResNet-50 and run them for the first time."""
    if one:
        click.echo(json.dumps(measure(numbers[0], algorithm, numbers[0] <= most_run)))
        return
    rows = []
    click.echo(markdown_table(HEAD))
    for workers in numbers:
        command = [sys.executable, "-m", "benchmarks.build", "--one", "--workers", str(workers)]
        command += ["--algorithm", algorithm, "--most-run", str(most_run)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise click.ClickException(f"{workers} workers: {done.stderr.strip()[-2000:]}")
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        click.echo(markdown_row(_cells(rows[-1])))
    if json_file is not None:
        write_json(rows, json_file)


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.build"))
