"""Export: a directory that trains with TensorFlow alone."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from string import Template

import tensorflow as tf

from caramel.compiler.distributed_model import DistributedModel
from caramel.errors import ExportError, listed
from caramel.graph.devices import Device
from caramel.runtime import checkpoint
from caramel.signature import Signature
from caramel.util.journal import finish_interrupted, replacing_together
from caramel.util.whole_files import refuse_remote, sync

GRAPH, VALUES, SIGNATURE, PLAN, README, RUNNER, MANIFEST = OWN_NAMES = (
    "graph.pb",
    "initial",
    "signature.json",
    "plan.json",
    "README.md",
    "run.py",
    "export.json",
)
"""Names of the files of an export; of the values the beginning of the names."""

_VALUE_PARTS = r"initial\.(index|data-\d{5}-of-\d{5})"
"""Names of the files of the values."""

_KIND = "caramel export"
"""What the manifest of an export calls itself."""

_JOURNAL = ".export.saving"
"""Name of the journal of an export that replaces another one."""

_BLOCK_BYTES = 1 << 20
"""Bytes that are read at once."""


def export(distributed: DistributedModel, path: str | os.PathLike[str]) -> None:
    """Write everything under temporary names, then put it in place.

    Args:
        distributed: distributed model to export.
        path: path of the directory. The files of an earlier export there are replaced; what else is in it stays.

    Raises:
        ExportError: the directory cannot be written, is no export, or its files were changed since they were exported;
            nothing has changed then.
    """
    shown = os.fspath(path)
    try:
        refuse_remote(path)
        target = Path(os.path.realpath(path))
        if not os.path.lexists(target):
            _export_anew(distributed, target, shown)
        elif not target.is_dir():
            raise ExportError(f"{shown!r} exists and is no directory, so it is not an export: choose another directory")
        else:
            _export_into(distributed, target, shown)
    except (OSError, tf.errors.OpError) as error:
        raise ExportError(f"the export to {shown!r} failed: {error}") from error


def _export_anew(distributed: DistributedModel, target: Path, shown: str) -> None:
    """Write a directory that did not exist. If the process is killed meanwhile, the next export to it clears up."""
    target.mkdir(parents=True)
    try:
        _export_into(distributed, target, shown)
        sync(target.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            target.rmdir()
        raise


def _export_into(distributed: DistributedModel, target: Path, shown: str) -> None:
    """Replace the files of an earlier export in a directory, or write into one that is empty."""
    journal = target / _JOURNAL
    finish_interrupted(journal)
    old_names = _checked_files(target, shown)
    with replacing_together(journal, OWN_NAMES) as replacement:
        names = _write(distributed, replacement.temporary)
        there = [name for name in names if name not in old_names and os.path.lexists(target / name)]
        if there:
            raise ExportError(f"{shown!r} has {listed(there)}, which the export did not write: move them away")
        replacement.put_in_place([(_named(replacement.temporary, name), target / name) for name in names])
        for name in set(old_names) - set(names):  # parts of the values, if there are fewer now
            (target / name).unlink(missing_ok=True)


def _checked_files(target: Path, shown: str) -> list[str]:
    """Names of the files of an earlier export.

    Raises:
        ExportError: there is something else in the directory, or somebody has changed the files.
    """
    if not any(target.iterdir()):
        return []
    try:
        manifest = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
        files = {name: (entry["size_bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
        is_export = manifest["kind"] == _KIND and all(_is_own(name) for name in files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_export = False
    if not is_export:
        raise ExportError(f"{shown!r} exists and is not an export: choose another directory, or remove it")
    changed = [n for n, facts in files.items() if os.path.lexists(target / n) and _facts_of(target / n) != facts]
    if changed:
        raise ExportError(
            f"in {shown!r} these were changed since they were exported: {listed(changed)}. Move them away, or remove "
            "them, if they may be replaced"
        )
    return [*files, MANIFEST]


def _is_own(name: str) -> bool:
    return name in (GRAPH, SIGNATURE, PLAN, README, RUNNER) or re.fullmatch(_VALUE_PARTS, name) is not None


def _facts_of(file: Path) -> tuple[int, str] | None:
    """Size and digest of a file; None if it is none."""
    if file.is_symlink() or not file.is_file():
        return None
    digest = hashlib.sha256()
    with open(file, "rb") as content:
        while block := content.read(_BLOCK_BYTES):
            digest.update(block)
    return file.stat().st_size, digest.hexdigest()


def _processes(signature: Signature) -> int:
    """Number of processes that run the workers, which may share one, and the parameter servers."""
    parsed = {text: Device.parse(text) for text in (*signature.devices, *signature.servers)}
    return len({text if device.task is None else device.process for text, device in parsed.items()})


def _write(distributed: DistributedModel, path_of: Callable[[str], Path]) -> list[str]:
    """Write all files.

    Args:
        distributed: distributed model to export.
        path_of: path under which a file is written, by its name in the export.

    Returns:
        The names of the files, in the order in which they may be put in place.
    """
    path_of(GRAPH).write_bytes(distributed.graph_def.SerializeToString(deterministic=True))
    arrays = {} if distributed.pipeline is None else distributed.pipeline.values
    all_values = {**distributed.model.values.load(), **arrays}
    checkpoint.write_values(path_of(VALUES), all_values, distributed.model.variables)
    path_of(SIGNATURE).write_text(distributed.signature.to_json() + "\n", encoding="utf-8")
    path_of(PLAN).write_text(distributed.plan.to_json() + "\n", encoding="utf-8")
    templates = resources.files("caramel.export") / "templates"
    path_of(RUNNER).write_text((templates / "run.py").read_text(encoding="utf-8"), encoding="utf-8")
    signature = distributed.signature
    inputs = "" if signature.data is None else f"The workers read {', '.join(signature.data.inputs)} from datasets.\n\n"
    inputs += "\n".join(
        f"- `{f.name}`: {f.dtype} {'of any rank' if f.shape is None else list(f.shape)}"
        + (", split over the workers" if f.split else ", the same for every worker")
        for f in signature.feeds
    )
    text = Template((templates / "README.md").read_text(encoding="utf-8")).substitute(
        workers=signature.workers,
        devices="\n".join(_listed_devices(signature)),
        inputs=inputs.strip() or "- none",
        data="" if signature.data is not None else " --data batch.npz",
        reduction={"mean": "the mean", "sum": "the sum"}[signature.reported],
        weight={"mean": "`N * b / B`", "sum": "1, or 0 if b is 0,"}[signature.reduction],
        plan=distributed.plan.table(),
        version=tf.__version__,
        cluster=",".join(f"HOST{number}:2222" for number in range(_processes(signature))),
    )
    path_of(README).write_text(text, encoding="utf-8")
    values = path_of(VALUES)
    parts = sorted(values.parent.glob(glob.escape(values.name) + ".*"))
    names = [GRAPH, SIGNATURE, PLAN, RUNNER, README, *(VALUES + part.name[len(values.name) :] for part in parts)]
    _write_manifest(path_of, names)
    return [*names, MANIFEST]


def _listed_devices(signature: Signature) -> Iterator[str]:
    yield from (f"- worker {rank}: `{device}`" for rank, device in enumerate(signature.devices))
    yield from (f"- parameter server {number}: `{device}`" for number, device in enumerate(signature.servers))


def _write_manifest(path_of: Callable[[str], Path], names: Sequence[str]) -> None:
    """Write down size and digest of each file."""
    files = {}
    for name in sorted(names):
        facts = _facts_of(_named(path_of, name))
        assert facts is not None  # it was just written
        files[name] = {"size_bytes": facts[0], "sha256": facts[1]}
    text = json.dumps({"kind": _KIND, "version": 1, "files": files}, indent=1)
    path_of(MANIFEST).write_text(text + "\n", encoding="utf-8")


def _named(path_of: Callable[[str], Path], name: str) -> Path:
    """The path under which a file is written, one of the values included."""
    if not name.startswith(f"{VALUES}."):
        return path_of(name)
    values = path_of(VALUES)
    return values.with_name(values.name + name[len(VALUES) :])
