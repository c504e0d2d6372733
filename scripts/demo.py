"""The demo: one program for one device, trained on one device and on four workers.

Shows the plan, the test accuracy, how closely the two loss curves agree and how long a step takes where, and writes a
report and a timeline.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "build" / "demo"
WORKERS = 4
BATCH = 96
LINK_BYTES_PER_S = 1e9 / 8
STEPS = 300
WANTED_ACCURACY = 0.97
WANTED_DIFFERENCE = 0.02
"""Float32 rounding differs between one batch of 96 and four of 24, and training amplifies it."""

WRITTEN = {
    "report.html": "open it in a browser: the step, predicted and measured, what would help, loss, plan",
    "timeline.json": "open it in Perfetto or chrome://tracing: every op and transfer of a step",
    "loss.png": "both loss curves",
    "plan.json": "the plan, for caramel run --plan",
    "losses.json": "the losses",
}
"""What is in each file."""

sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]


def main() -> int:
    """Run the demo; 0 if the accuracy is reached and the curves agree."""
    from rich.console import Console

    from caramel.cli.quiet import load_quietly

    load_quietly()
    import caramel
    import digits_keras
    from caramel.frontend.program_file import load_program
    from caramel.report.chrome_trace import write_timeline
    from caramel.report.content import shared_cores_warning
    from caramel.report.page import write_report
    from caramel.report.run_record import RunRecord
    from caramel.report.training import training_report
    from caramel.runtime.host.environment import usable_cores

    console = Console()
    console.rule("one device")
    alone, alone_s, alone_accuracy = train_alone(digits_keras.program())
    console.print(f"{STEPS} steps in {sum(alone_s):.1f} s, test accuracy {alone_accuracy:.2%}")

    console.rule(f"{WORKERS} workers, the same file")
    program = f"{ROOT / 'examples' / 'digits_keras.py'}:program"
    loaded = load_program(program)
    here, elsewhere = planned(loaded)
    console.print(here.plan.table(), highlight=False, markup=False, soft_wrap=True)
    cluster = caramel.InProcess()
    started = time.perf_counter()
    with here.session(cluster) as session:
        record = RunRecord(session)
        results = session.run(loaded.batches(STEPS), on_run=record.note)
        elapsed = time.perf_counter() - started
        accuracy = float(session.evaluate(*loaded.evaluation_data)["accuracy"])
    together = [r.loss for r in results]
    difference = max(abs(a - b) for a, b in zip(alone, together))
    console.print(f"\n{STEPS} steps in {elapsed:.1f} s, test accuracy {accuracy:.2%}")
    console.print(
        f"loss curves of one device and of {WORKERS} workers differ by at most {difference:.2g}: float32 rounds four "
        "small batches otherwise than a large one, and training amplifies it; a few test images may be classed anew"
    )

    console.rule("how long a step takes")
    console.print(table(statistics.median(alone_s[3:]), here, record.median_step_s, elsewhere))
    console.print(why(shared_cores_warning(WORKERS, usable_cores())), highlight=False)

    REPORT.mkdir(parents=True, exist_ok=True)
    report = training_report(
        "examples/digits_keras.py:program", here.plan, caramel.__version__, here.facts, record, cluster
    )
    write_report(REPORT / "report.html", report)
    write_timeline(
        REPORT / "timeline.json", here.plan, [s for s in (report.predicted, report.measured) if s is not None]
    )
    (REPORT / "plan.json").write_text(here.plan.to_json() + "\n")
    (REPORT / "losses.json").write_text(json.dumps({"one_device": alone, "workers": together}) + "\n")
    plot(alone, together, accuracy, REPORT / "loss.png")
    console.rule("written")
    for name, what in WRITTEN.items():
        console.print(f"{REPORT.relative_to(ROOT) / name}: {what}", highlight=False, soft_wrap=True)
    if accuracy < WANTED_ACCURACY:
        console.print(f"[red]test accuracy is below {WANTED_ACCURACY:.0%}")
        return 1
    if difference > WANTED_DIFFERENCE:
        console.print(f"[red]the loss curves differ by more than {WANTED_DIFFERENCE}")
        return 1
    return 0


def train_alone(parts: dict[str, Any]) -> tuple[list[float], list[float], float]:
    """Train on one device: the loss and the seconds of each step, and the test accuracy."""
    losses, seconds = [], []
    for batch, _ in zip(parts["data"](), range(STEPS)):
        started = time.perf_counter()
        losses.append(float(parts["step"](*batch)))
        seconds.append(time.perf_counter() - started)
    accuracy = float(parts["evaluation"]["function"](*parts["evaluation"]["data"])["accuracy"])
    return losses, seconds, accuracy


def planned(loaded: Any) -> tuple[Any, Any]:
    """The program for workers that share this machine, and for as many machines; both with predictions."""
    import caramel
    from caramel.measure.netbench import Settings, measure_network

    settings = Settings(sizes=(4096, 2**18), algorithms=("shuffle",), depths=(1,), rounds=3, contention=False)
    memory = measure_network(caramel.InProcess(), [WORKERS], settings, "the memory of this machine")
    batch = next(loaded.batches(1))
    options: dict[str, Any] = {"workers": WORKERS, "runs": 5, "steps": 15, "orders": False, "progress": False}
    shared = caramel.trace(loaded.context, *batch, **options)
    alone = caramel.trace(loaded.context, *batch, workers_on_host=1, **options)
    here = caramel.ARModel(loaded.context, WORKERS, trace=shared, network=memory)
    links = caramel.NetworkModel.from_link_rate(LINK_BYTES_PER_S)
    return here, caramel.ARModel(loaded.context, WORKERS, trace=alone, network=links)


def table(alone_s: float, here: Any, measured_s: float, elsewhere: Any) -> Any:
    """What a step of one whole batch takes in three places."""
    from rich.table import Table

    rows = Table(show_edge=False, pad_edge=False)
    rows.add_column("the same batch of 96 on")
    for name in ("predicted", "measured", "examples/s"):
        rows.add_column(name, justify="right")
    here_s, elsewhere_s = (model.plan.prediction.timeline.iteration_s for model in (here, elsewhere))
    for where, predicted_s, step_s in (
        ("one device, this machine", None, alone_s),
        (f"{WORKERS} workers, this machine", here_s, measured_s),
        (f"{WORKERS} machines like it, links of 1 Gbit/s", elsewhere_s, None),
    ):
        cells = ["" if each is None else f"{each * 1e3:.2f} ms" for each in (predicted_s, step_s)]
        rows.add_row(where, *cells, f"{BATCH / (step_s or predicted_s):,.0f}")
    return rows


def why(warning: str | None) -> str:
    """Why this is no faster here."""
    shared = warning or "Each worker has a core of its own here, and one device uses all cores for each of its ops."
    return (
        f"{shared} The demo shows that the result is the same. A step of a network this small takes milliseconds, so "
        "there is little to win elsewhere, too."
    )


def plot(alone: list[float], together: list[float], accuracy: float, path: Path) -> None:
    """The two loss curves, and their difference."""
    import matplotlib

    from benchmarks import colors

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 5), sharex=True, height_ratios=[3, 1])
    steps = range(1, len(alone) + 1)
    top.plot(steps, alone, color="0.6", linewidth=4, label="one device, batch 96")
    top.plot(steps, together, color=colors.OURS, linewidth=1.2, label=f"{WORKERS} workers, batch 24 each")
    top.set_yscale("log")
    top.yaxis.set_major_formatter(lambda loss, _: f"{loss:g}")
    top.set_ylabel("training loss")
    top.set_title(f"handwritten digits, test accuracy {accuracy:.1%}")
    top.legend()
    bottom.semilogy(steps, [max(abs(a - b), 1e-9) for a, b in zip(alone, together)], color="0.4", linewidth=1)
    bottom.set_ylabel("difference\nof the losses")
    bottom.set_xlabel("step")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    sys.exit(main())
