"""The demo: one program for one device, trained on one device and on four workers.

Shows the plan, the test accuracy and how closely the two loss curves agree, and writes a report.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "build" / "demo"
WORKERS = 4
STEPS = 300
WANTED_ACCURACY = 0.97
WANTED_DIFFERENCE = 0.02
"""Float32 rounding differs between one batch of 96 and four of 24, and training amplifies it."""

sys.path.insert(0, str(ROOT / "examples"))


def main() -> int:
    """Run the demo; 0 if the accuracy is reached and the curves agree."""
    from rich.console import Console

    import caramel
    import digits_keras
    from caramel.frontend.program_file import load_program

    console = Console()
    console.rule("one device")
    started = time.perf_counter()
    alone, alone_accuracy = digits_keras.main(STEPS)
    console.print(f"{STEPS} steps in {time.perf_counter() - started:.1f} s, test accuracy {alone_accuracy:.2%}")

    console.rule(f"{WORKERS} workers, the same file")
    loaded = load_program(f"{ROOT / 'examples' / 'digits_keras.py'}:program")
    armodel = caramel.ARModel(loaded.context, WORKERS)
    console.print(armodel.plan.table(), highlight=False, markup=False, soft_wrap=True)
    started = time.perf_counter()
    with armodel.session() as session:
        results = session.run(loaded.batches(STEPS))
        elapsed = time.perf_counter() - started
        accuracy = float(session.evaluate(*loaded.evaluation_data)["accuracy"])
    together = [r.loss for r in results]
    difference = max(abs(a - b) for a, b in zip(alone, together))
    console.print(f"\n{STEPS} steps in {elapsed:.1f} s, test accuracy {accuracy:.2%}")
    console.print(f"loss curves of one device and of {WORKERS} workers differ by at most {difference:.2g}")

    REPORT.mkdir(parents=True, exist_ok=True)
    (REPORT / "plan.json").write_text(armodel.plan.to_json() + "\n")
    (REPORT / "losses.json").write_text(json.dumps({"one_device": alone, "workers": together}) + "\n")
    plot(alone, together, accuracy, REPORT / "loss.png")
    console.print(f"report: {REPORT / 'loss.png'}, plan.json and losses.json beside it")
    if accuracy < WANTED_ACCURACY:
        console.print(f"[red]test accuracy is below {WANTED_ACCURACY:.0%}")
        return 1
    if difference > WANTED_DIFFERENCE:
        console.print(f"[red]the loss curves differ by more than {WANTED_DIFFERENCE}")
        return 1
    return 0


def plot(alone: list[float], together: list[float], accuracy: float, path: Path) -> None:
    """The two loss curves, and their difference."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 5), sharex=True, height_ratios=[3, 1])
    steps = range(1, len(alone) + 1)
    top.plot(steps, alone, color="0.6", linewidth=4, label="one device, batch 96")
    top.plot(steps, together, color="C0", linewidth=1.2, label=f"{WORKERS} workers, batch 24 each")
    top.set_yscale("log")
    top.set_ylabel("training loss")
    top.set_title(f"handwritten digits, test accuracy {accuracy:.1%}")
    top.legend()
    bottom.semilogy(steps, [max(abs(a - b), 1e-9) for a, b in zip(alone, together)], color="C3", linewidth=1)
    bottom.set_ylabel("difference")
    bottom.set_xlabel("step")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    sys.exit(main())
