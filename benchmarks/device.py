"""``python -m benchmarks.device``: the library on a real accelerator, one GPU as four logical devices against one.

For digits, a small BERT and ResNet-50: weights and bits are those of one device, ops are where the graph asks for
them, traces are read right, and steps are timed beside MirroredStrategy's on the same logical devices. Where
TensorFlow sees no GPU nothing is done; ``--platform cpu`` does the same on logical devices of the host.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from benchmarks.device_programs import NETWORKS, SMALL, Sizes
from benchmarks.device_times import ALONE, CONTENDERS, MIRRORED, MIRRORED_HUB, OURS
from benchmarks.device_worker import CHECKS, STAGES, TIMES
from benchmarks.output import errors_for_click, markdown_table, write_json
from benchmarks.statistics import paired_ratio
from benchmarks.training.records import commit_here, now, program_here
from caramel.errors import CaramelError

WHOLE = {CHECKS: ("weights", "bits", "placement", "trace"), TIMES: ("times",)}
"""What each process finds of a network."""

MOST_S = 480.0
"""Seconds that all of it may take."""

_ROOT = Path(__file__).resolve().parents[1]
_COUNT_GPUS = "import tensorflow as tf; print('GPUs:', len(tf.config.list_physical_devices('GPU')))"


def number_of_gpus() -> int:
    """The number of GPUs that TensorFlow sees, asked in a process of its own: it would keep their memory.

    Raises:
        CaramelError: TensorFlow cannot be asked.
    """
    done = subprocess.run([sys.executable, "-c", _COUNT_GPUS], capture_output=True, text=True, env=_environment("gpu"))
    if done.returncode:
        raise CaramelError(f"TensorFlow cannot be asked for GPUs: {_last_line(done.stderr)}")
    return int(done.stdout.rpartition("GPUs:")[2])


def _environment(platform: str) -> dict[str, str]:
    """Variables of a process; a warning is no line that says why it ended."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(paths)}
    return {**quiet, "CUDA_VISIBLE_DEVICES": ""} if platform == "cpu" else quiet


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def answers(request: Mapping[str, Any], timeout_s: float) -> Iterator[tuple[str, Any]]:
    """What a process finds, one thing after the other.

    Args:
        request: what `benchmarks.device_worker` is to do.
        timeout_s: seconds after which it is ended.

    Raises:
        CaramelError: it has failed, or has not ended in time.
    """
    command = [sys.executable, "-m", "benchmarks.device_worker", json.dumps(request)]
    is_late = threading.Event()
    with tempfile.TemporaryFile("w+") as log:
        environment = _environment(request["platform"])
        process = subprocess.Popen(
            command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, errors="replace"
        )

        def end() -> None:
            is_late.set()
            process.kill()

        timer = threading.Timer(max(timeout_s, 0.0), end)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                answer = json.loads(line)
                yield answer["what"], answer["found"]
            process.wait()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
        if is_late.is_set():
            raise CaramelError("there was no time left for it")
        if process.returncode:
            log.seek(0)
            raise CaramelError(f"it ended with {process.returncode}: {_last_line(log.read())}")


def measure(
    names: Sequence[str],
    stages: Sequence[str],
    request: Mapping[str, Any],
    most_s: float,
    say: Callable[[str], None],
    keep: Callable[[Mapping[str, Any]], None],
) -> dict[str, Any]:
    """Check and time networks, each in processes of its own.

    Args:
        names: of networks.
        stages: some of `STAGES`.
        request: what all processes are told.
        most_s: seconds that all of it may take.
        say: told what was done.
        keep: given the record whenever there is more of it.

    Returns:
        The record.
    """
    begin_s = time.perf_counter()
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    record: dict[str, Any] = {
        "began_at": now(),
        "commit": commit_here(),
        "program": program_here(),
        "sizes": request["sizes"],
        "hardware": None,
        "networks": found,
        "failures": [],
    }
    for name in names:
        for stage in stages:
            full = {**request, "network": name, "stage": stage}
            full["record_trace"] = request["record_trace"] if name == names[0] else None
            try:
                for what, each in answers(full, most_s - (time.perf_counter() - begin_s)):
                    if what == "hardware":
                        record["hardware"] = each
                    elif what == "progress":
                        say(f"{name}: {each}")
                    else:
                        found[name][what] = each
                        record["failures"] += [f"{name}, {what}: {wrong}" for wrong in each["failures"]]
                        say(f"{name}: {what}: {'; '.join(each['failures']) or 'done'}")
            except CaramelError as error:
                missing = [what for what in WHOLE[stage] if what not in found[name]]
                record["failures"].append(f"{name}, {' and '.join(missing) or stage}: {error}")
                say(record["failures"][-1])
            record["took_s"] = time.perf_counter() - begin_s
            keep(record)
    return record


# -- tables ----------------------------------------------------------------------------------------


def table(record: Mapping[str, Any]) -> str:
    """What was found of each network: what was checked, and then what was timed.

    Args:
        record: what `measure` has found.
    """
    networks = record["networks"]
    checked = markdown_table(
        ["network", "weights off", "bits", "ops, of kinds", "kinds on the host", "rows of a trace, of streams"],
        [[name, *_checked(found)] for name, found in networks.items()],
    )
    head = [*(f"{contender} [ms]" for contender in CONTENDERS), f"{OURS} / the faster {MIRRORED}"]
    timed = markdown_table(["network", *head], [[name, *_timed(found)] for name, found in networks.items()])
    return f"{checked}\n\n{timed}"


def _checked(found: Mapping[str, Any]) -> list[str]:
    """The cells of a network in the first table; a dash for what is missing, or has failed before it had a result."""
    weights, bits, placed, trace = (found.get(what, {}) for what in WHOLE[CHECKS])
    cells = ["-"] * 5
    if "off" in weights:
        cells[0] = f"{weights['off']:.1g}"
    if "differing" in bits:
        same = sum(number == 0 for number in bits["differing"].values())
        cells[1] = f"the same in {same} of {len(bits['differing'])}"
    if "graphs" in placed:
        graphs = placed["graphs"].values()
        cells[2] = f"{sum(graph['ops'] for graph in graphs)}, {max(graph['kinds'] for graph in graphs)}"
        cells[3] = ", ".join(placed["on_host"]) or "none"
    if "rows_by_device" in trace:
        rows = trace["rows_by_device"]
        cells[4] = f"{sum(rows.values())}, {sum(rows[device] for device in trace['streams'])}"
    return cells


def _timed(found: Mapping[str, Any]) -> list[str]:
    """The cells of a network in the second table."""
    times_s = found.get("times", {}).get("times_s", {})
    medians_s = {contender: statistics.median(each) for contender, each in times_s.items()}
    cells = [
        f"{medians_s[name] * 1e3:.2f}" if name in medians_s else "-" for name in (OURS, ALONE, MIRRORED, MIRRORED_HUB)
    ]
    theirs = [name for name in (MIRRORED, MIRRORED_HUB) if name in medians_s]
    if OURS not in medians_s or not theirs:
        return [*cells, "-"]
    ratio = paired_ratio(times_s[OURS], times_s[min(theirs, key=lambda name: medians_s[name])])
    return [*cells, f"{ratio.median:.2f} ({ratio.bounds(2)})"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--platform", type=click.Choice(["gpu", "cpu"]), default="gpu", show_default=True, help="cpu: devices of the host."
)
@click.option("--network", "names", type=click.Choice(NETWORKS), multiple=True, default=NETWORKS, show_default=True)
@click.option("--stage", "stages", type=click.Choice(STAGES), multiple=True, default=STAGES, show_default=True)
@click.option("--small", is_flag=True, help="Sizes for a machine with few cores.")
@click.option("--rounds", type=click.IntRange(min=1), help="How often each contender has its turn.")
@click.option("--steps", type=click.IntRange(min=1), help="Timed steps in a turn.")
@click.option("--memory", "memory_mib", type=click.IntRange(min=256), help="MiB of each logical device of a GPU.")
@click.option("--contender", "contenders", type=click.Choice(CONTENDERS), multiple=True, default=CONTENDERS)
@click.option("--most", "most_s", type=float, default=MOST_S, show_default=True, help="Seconds that it may take.")
@click.option("--record-trace", metavar="FILE", help="Write a few rows of each device of the first network's trace.")
@click.option("--json", "path", type=click.Path(dir_okay=False), help="File to write the record to.")
@errors_for_click
def main(
    platform: str,
    names: tuple[str, ...],
    stages: tuple[str, ...],
    small: bool,
    rounds: int | None,
    steps: int | None,
    memory_mib: int | None,
    contenders: tuple[str, ...],
    most_s: float,
    record_trace: str | None,
    path: str | None,
) -> None:
    """Check the library on one GPU as four logical devices, and time its steps."""
    if platform == "gpu" and number_of_gpus() == 0:
        click.echo("skipped: TensorFlow sees no GPU here (--platform cpu does the same on four devices of the host)")
        return
    given = {"rounds": rounds, "steps": steps, "memory_mib": memory_mib}
    sizes = replace(SMALL if small else Sizes(), **{name: value for name, value in given.items() if value is not None})
    trace_file = None if record_trace is None else str(Path(record_trace).absolute())
    request = {"platform": platform, "sizes": asdict(sizes), "contenders": contenders, "record_trace": trace_file}

    def keep(record: Mapping[str, Any]) -> None:
        if path is not None:
            write_json(record, path)

    record = measure(names, stages, request, most_s, lambda text: click.echo(text, err=True), keep)
    click.echo(table(record))
    if record["failures"]:
        raise CaramelError("\n".join(["these checks failed:", *record["failures"]]))


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.device"))
