"""``python -m benchmarks.models``: what it costs to compile large Keras models, stage by stage.

Each model is in a process of its own, on a network of 1 Gbit/s. The trace is measured in another process before,
or taken from a file; it does not count. Numbers of parameters are compared with published ones.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from benchmarks.networks import IN_PAPER, NAMES, PUBLISHED, VGG_LIKE, make
from benchmarks.output import errors_for_click, markdown_row, markdown_table, write_json

T = TypeVar("T")

MOST_S = 60.0
"""For capture, analysis, emission and serialisation together."""

MOST_BYTES = 6 * 2**30
"""Of memory at the peak, the model's values and TensorFlow included."""

LINK_BYTES_PER_S = 125e6
STAGES = ("capture_s", "analysis_s", "emission_s", "serialisation_s")
_MIB = 2**20


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_trace(name: str, examples: int, runs: int) -> Any:
    """Measure a model on this machine, with a small batch.

    Args:
        name: of the model.
        examples: of the batch.
        runs: number of traced steps, and of plain ones.
    """
    import caramel

    network = make(name)
    context = caramel.capture(network.step, network.inputs)
    return caramel.trace(context, *network.batch(examples), runs=runs, steps=runs, orders=False, progress=False)


def compile_model(name: str, workers: int, trace_file: str | None) -> dict[str, Any]:
    """Compile a model and measure each stage.

    Args:
        name: of the model.
        workers: number of workers.
        trace_file: of the model; without one nothing is scheduled.
    """
    import tensorflow as tf  # noqa: F401 - its import is part of no stage

    import caramel
    from caramel.analyzers.analyzer import analyse
    from caramel.analyzers.automatic import WANTED
    from caramel.analyzers.cost.network import Network
    from caramel.analyzers.registry import automatic_analyzers
    from caramel.compiler.assemble_plan import make_plan
    from caramel.graph.devices import default_devices
    from caramel.measure.trace_file import as_trace
    from caramel.netmodel.choice import CollectiveOptions

    row: dict[str, Any] = {"model": name, "workers": workers, "traced": trace_file is not None}

    def timed(stage: str, function: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = function()
        row[stage] = time.perf_counter() - start
        return result

    def capture() -> Any:
        context = caramel.capture(network.step, network.inputs)
        assert context.model.digest  # a context makes its Model when it is asked for
        return context

    def plan() -> Any:
        chosen, notes = automatic_analyzers(known, trace)
        facts = analyse(chosen, [context.model, known], WANTED)
        return make_plan(context.model, default_devices(workers), facts, chosen, notes, "weight", "local", None)

    network = make(name)
    row["parameters"] = sum(int(v.shape.num_elements()) for v in _variables(network.model.trainable_variables))
    row["total_parameters"] = sum(int(v.shape.num_elements()) for v in _variables(network.model.weights))
    row["before_bytes"] = peak_bytes()
    context = timed("capture_s", capture)
    trace = as_trace(trace_file, context.model)
    known = Network(CollectiveOptions(network=caramel.NetworkModel.from_link_rate(LINK_BYTES_PER_S)), workers)
    made = timed("analysis_s", plan)
    armodel = timed("emission_s", lambda: caramel.ARModel(context, workers, plan=made))
    row["graph_bytes"] = len(timed("serialisation_s", lambda: armodel.graph_def.SerializeToString()))
    row["nodes"] = len(armodel.graph_def.node)
    row["model_nodes"] = len(context.model.graph)
    row["tensors"] = len(context.model.gradients)
    row["transfers"] = len(made.transfers)
    row["postponed"] = len(made.postponed)
    row["edges"] = len(made.edges)
    if made.prediction is not None:
        row["prediction"] = made.prediction.as_dict()
    row["peak_bytes"] = peak_bytes()
    return row


def _variables(found: Sequence[Any]) -> list[Any]:
    """Those of TensorFlow, without states of random generators (which Keras does not count, either)."""
    return [v.value for v in found if "seed_generator" not in v.path]


# -- judging ---------------------------------------------------------------------------------------


def missed(row: Mapping[str, Any]) -> list[str]:
    """Which limits and published numbers a row misses."""
    found = []
    if total_s(row) > MOST_S:
        found.append(f"{total_s(row):.0f} s, limit {MOST_S:.0f} s")
    if row["peak_bytes"] > MOST_BYTES:
        found.append(f"{row['peak_bytes'] / 2**30:.1f} GiB, limit {MOST_BYTES / 2**30:.0f} GiB")
    trainable, total = _published(row["model"])
    for what, mine, theirs in (
        ("trainable", row["parameters"], trainable),
        ("in all", row["total_parameters"], total),
    ):
        if theirs is not None and mine != theirs:
            found.append(f"{mine:,} parameters {what}, published {theirs:,}")
    return found


def _published(model: str) -> tuple[int | None, int | None]:
    """Numbers of trained parameters and of all; None where nobody has published one."""
    found = PUBLISHED.get(model)
    return (found.trainable, found.total) if found is not None else (None, None)


def total_s(row: Mapping[str, Any]) -> float:
    """Seconds of all stages."""
    return sum(float(row[stage]) for stage in STAGES)


def as_in_paper(name: str, tensors: int, parameters: int) -> tuple[int, float]:
    """Tensors and MiB of a model without what the paper's implementation of it does not have.

    Args:
        name: of the model; one of `IN_PAPER`.
        tensors: number of trainable tensors here.
        parameters: number of their elements.
    """
    theirs = IN_PAPER[name]
    return tensors - theirs.fewer_tensors, (parameters - theirs.fewer_parameters) * 4 / _MIB


# -- tables ----------------------------------------------------------------------------------------

COST_HEAD = (
    *("model", "nodes of a step", "nodes", "GraphDef [MiB]", "capture [s]", "analysis and plan [s]", "emission [s]"),
    *("serialisation [s]", "together [s]", "before [MiB]", "peak [MiB]", "missed"),
)


def cost_row(row: Mapping[str, Any]) -> list[str]:
    """What compiling takes."""
    stages = [f"{row[stage]:.2f}" for stage in STAGES]
    memory = [f"{row[key] / _MIB:.0f}" for key in ("before_bytes", "peak_bytes")]
    sizes = [f"{row['model_nodes']}", f"{row['nodes']}", f"{row['graph_bytes'] / _MIB:.1f}"]
    return [row["model"], *sizes, *stages, f"{total_s(row):.1f}", *memory, "; ".join(missed(row)) or "-"]


def _or_dash(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def parameter_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Numbers of parameters beside published ones, and sizes beside the paper's."""
    lines = []
    for row in rows:
        trainable, total = _published(row["model"])
        cells = [row["model"], f"{row['tensors']}", f"{row['parameters']:,}", _or_dash(trainable)]
        cells += [f"{row['total_parameters']:,}", _or_dash(total), f"{row['parameters'] * 4 / _MIB:.1f}"]
        if row["model"] in IN_PAPER:
            theirs = IN_PAPER[row["model"]]
            tensors, mebibytes = as_in_paper(row["model"], row["tensors"], row["parameters"])
            cells += [f"{tensors}, {mebibytes:.1f}", f"{theirs.tensors}, {theirs.mebibytes}"]
        else:
            cells += ["-", "-"]
        lines.append(cells)
    head = ["model", "tensors", "trainable", "published", "in all", "published", "MiB", "as in the paper", "paper"]
    return markdown_table(head, lines)


# -- running ---------------------------------------------------------------------------------------


def _child(*arguments: str) -> str:
    """Run this module in a process of its own; the last line that it says."""
    command = [sys.executable, "-m", "benchmarks.models", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise click.ClickException(f"{' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
    return done.stdout.splitlines()[-1]


def trace_to_file(name: str, file: Path, examples: int, runs: int) -> None:
    """Measure a trace in a process of its own, unless the file is there.

    Args:
        name: of a model.
        file: to write.
        examples: of the batch.
        runs: number of traced steps.
    """
    if not file.exists():
        _child("--model", name, "--examples", str(examples), "--runs", str(runs), "--trace-to", str(file))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--model", "names", type=click.Choice([*NAMES, VGG_LIKE]), multiple=True, default=NAMES, help="Default: all."
)
@click.option("--workers", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--examples", type=click.IntRange(min=1), default=2, show_default=True, help="Of the batch for tracing.")
@click.option("--runs", type=click.IntRange(min=1), default=2, show_default=True, help="Traced steps.")
@click.option("--traces", "folder", metavar="DIRECTORY", help="Take traces from here, and leave new ones here.")
@click.option("--no-trace", is_flag=True, help="Compile without traces: nothing is scheduled.")
@click.option("--json", "json_file", metavar="FILE", help="Write the results.")
@click.option("--trace-to", metavar="FILE", hidden=True)
@click.option("--one", is_flag=True, hidden=True)
@click.option("--trace", "trace_file", metavar="FILE", hidden=True)
@errors_for_click
def main(
    names: tuple[str, ...],
    workers: int,
    examples: int,
    runs: int,
    folder: str | None,
    no_trace: bool,
    json_file: str | None,
    trace_to: str | None,
    one: bool,
    trace_file: str | None,
) -> None:
    """Compile large Keras models for several workers; the time and memory of each stage."""
    if trace_to is not None:
        from caramel.measure.trace_file import save_trace

        save_trace(measure_trace(names[0], examples, runs), trace_to)
        click.echo("done")
        return
    if one:
        click.echo(json.dumps(compile_model(names[0], workers, trace_file)))
        return
    rows = []
    click.echo(markdown_table(COST_HEAD))
    with tempfile.TemporaryDirectory() as own:
        directory = Path(folder or own)
        directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            arguments = ["--one", "--model", name, "--workers", str(workers)]
            if not no_trace:
                file = directory / f"{name}.json"
                trace_to_file(name, file, examples, runs)
                arguments += ["--trace", str(file)]
            rows.append(json.loads(_child(*arguments)))
            click.echo(markdown_row(cost_row(rows[-1])))
    click.echo()
    click.echo(parameter_table(rows))
    if json_file is not None:
        write_json(rows, json_file)


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.models"))
