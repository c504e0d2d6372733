"""Export: a directory that trains with TensorFlow alone."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

import tensorflow as tf

from caramel.compiler.distributed_model import DistributedModel
from caramel.errors import ExportError
from caramel.graph.devices import Device
from caramel.runtime import checkpoint

GRAPH, VALUES, SIGNATURE, PLAN, README, RUNNER = (
    "graph.pb",
    "initial",
    "signature.json",
    "plan.json",
    "README.md",
    "run.py",
)
"""Names of the files of an export."""


def export(distributed: DistributedModel, path: str | os.PathLike[str]) -> None:
    """Write everything to a new directory, then put it in the place of the old one.

    Args:
        distributed: distributed model to export.
        path: path of the directory; an earlier export there is replaced.

    Raises:
        ExportError: the directory cannot be written, or is no export; nothing has changed then.
    """
    target = Path(path).absolute()
    if target.exists() and not (target / SIGNATURE).is_file() and not (target.is_dir() and not any(target.iterdir())):
        raise ExportError(f"{str(target)!r} exists and is not an export: choose another directory, or remove it")
    tag = uuid.uuid4().hex[:8]
    temporary = target.with_name(f"{target.name}.writing-{tag}")
    previous = target.with_name(f"{target.name}.old-{tag}")
    try:
        temporary.mkdir(parents=True)
        _write(distributed, temporary)
        if target.exists():
            target.rename(previous)
        try:
            temporary.rename(target)
        except OSError:
            if previous.exists():
                previous.rename(target)
            raise
        shutil.rmtree(previous, ignore_errors=True)
    except (OSError, tf.errors.OpError) as error:
        hint = f"; the old export is in {str(previous)!r}" if previous.exists() else ""
        raise ExportError(f"the export to {str(target)!r} failed: {error}{hint}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _processes(devices: Sequence[str]) -> int:
    """Number of servers that run the workers, which may share one."""
    parsed = {text: Device.parse(text) for text in devices}
    return len({text if device.task is None else device.worker for text, device in parsed.items()})


def _write(distributed: DistributedModel, directory: Path) -> None:
    (directory / GRAPH).write_bytes(distributed.graph_def.SerializeToString(deterministic=True))
    arrays = {} if distributed.pipeline is None else distributed.pipeline.values
    checkpoint.write_values(directory / VALUES, {**distributed.model.values.load(), **arrays})
    (directory / SIGNATURE).write_text(distributed.signature.to_json() + "\n")
    (directory / PLAN).write_text(distributed.plan.to_json() + "\n")
    templates = resources.files("caramel.export") / "templates"
    (directory / RUNNER).write_text((templates / "run.py").read_text())
    signature = distributed.signature
    inputs = "" if signature.data is None else f"The workers read {', '.join(signature.data.inputs)} from datasets.\n\n"
    inputs += "\n".join(
        f"- `{f.name}`: {f.dtype} {'of any rank' if f.shape is None else list(f.shape)}"
        + (", split over the workers" if f.split else ", the same for every worker")
        for f in signature.feeds
    )
    text = Template((templates / "README.md").read_text()).substitute(
        workers=signature.workers,
        devices="\n".join(f"- worker {rank}: `{device}`" for rank, device in enumerate(signature.devices)),
        inputs=inputs.strip() or "- none",
        data="" if signature.data is not None else " --data batch.npz",
        reduction={"mean": "the mean", "sum": "the sum"}[signature.reported],
        weight={"mean": "`N * b / B`", "sum": "1, or 0 if b is 0,"}[signature.reduction],
        plan=distributed.plan.table(),
        version=tf.__version__,
        cluster=",".join(f"HOST{number}:2222" for number in range(_processes(signature.devices))),
    )
    (directory / README).write_text(text)
