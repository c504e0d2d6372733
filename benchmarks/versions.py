"""``python -m benchmarks.versions`` (`make matrix`): the built wheel with each version of TensorFlow that it allows.

Each pair of TensorFlow and Keras gets an environment of its own outside the checkout, and runs
`scripts/versions_check.py` there. What is in the record already, for the same wheel, is not run again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from email.parser import Parser
from pathlib import Path

import click

from benchmarks.output import errors_for_click, markdown_table
from caramel.errors import InputError
from caramel.util.text_files import write_whole

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks/results/versions.json"
CHECK = ROOT / "scripts/versions_check.py"
WHEELS = ROOT / "build/matrix"

PAIRS = (
    ("2.16.*", "3.2.*"),
    ("2.16.*", ""),
    ("2.17.*", "3.2.*"),
    ("2.17.*", ""),
    ("2.18.*", "3.5.*"),
    ("2.18.*", ""),
    ("2.19.*", "3.5.*"),
    ("2.19.*", ""),
    ("2.20.*", "3.10.*"),
    ("2.20.*", ""),
    ("2.21.*", "3.12.*"),
    ("2.21.*", ""),
)
"""TensorFlow and Keras; without a version it is the newest that can be installed."""

_TIMEOUT_S = 1800

_VERSIONS = (
    "import json, platform; from importlib.metadata import version; "
    "print(json.dumps({**{n: version(n) for n in ('tensorflow', 'keras', 'numpy')}, "
    "'python': platform.python_version()}))"
)
"""Program that prints the versions of an environment."""

_PYTHON = "import sys; print(*sys.version_info[:2])"
"""Program that prints the version of an interpreter, without what does not count."""


@click.command()
@click.option("--only", default="", help="Only versions of TensorFlow that begin so, such as 2.18.")
@click.option("--python", default=sys.executable, help="The interpreter of the environments.  [default: this one]")
@click.option("--record", "path", type=click.Path(dir_okay=False), default=str(RECORD), help="File of the results.")
@errors_for_click
def main(only: str, python: str, path: str) -> None:
    """Install the wheel beside each version of TensorFlow, train with it, and compare with one device."""
    wheel = _built_wheel()
    done = json.loads(Path(path).read_text(encoding="utf-8")) if Path(path).exists() else {}
    chosen = [pair for pair in PAIRS if pair[0].startswith(only)]
    if not chosen:
        raise InputError(f"no version of TensorFlow begins with {only!r}; there are {', '.join(p for p, _ in PAIRS)}")
    minor = ".".join(_run(python, "-c", _PYTHON).split())
    tried = []
    for number, (tensorflow, keras) in enumerate(chosen):
        key = f"TensorFlow {tensorflow}, {f'Keras {keras}' if keras else 'newest Keras'}, Python {minor}"
        click.echo(f"[{number + 1} of {len(chosen)}] {key}")
        known = done.get(key, {})
        if known.get("wheel") != _digest(wheel) or known["failed"]:
            done[key] = {"wheel": _digest(wheel), **_tried(wheel, python, tensorflow, keras)}
            write_whole(Path(path), json.dumps(done, indent=1, sort_keys=True) + "\n")
        tried.append(key)
        click.echo(f"    {done[key]['failed'] or 'right'}")
    failed = [key for key in tried if done[key]["failed"]]
    if failed:
        raise InputError(f"these failed: {'; '.join(failed)}")


def table(record: Mapping[str, Mapping[str, str]]) -> str:
    """What was tried, as Markdown.

    Args:
        record: what came of each pair, by its name.
    """
    names = ("tensorflow", "keras", "numpy", "python")
    results = [(*(result[name] for name in names), result["failed"] or "right") for result in record.values()]
    rows = sorted(dict.fromkeys(results), key=_by_versions)  # the oldest Keras and the newest may be the same
    return markdown_table(("TensorFlow", "Keras", "NumPy", "Python", "result"), rows)


def _by_versions(row: Sequence[str]) -> list[tuple[int, ...]]:
    return [tuple(int(part) for part in version.split(".") if part.isdecimal()) for version in row[:-1]]


def _built_wheel() -> Path:
    shutil.rmtree(WHEELS, ignore_errors=True)
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(WHEELS), str(ROOT))
    (wheel,) = WHEELS.glob("*.whl")
    return wheel


def _tried(wheel: Path, python: str, tensorflow: str, keras: str) -> dict[str, str]:
    """What came of a pair: the versions, and what failed ("" if nothing did)."""
    found = {"tensorflow": tensorflow, "keras": keras or "newest", "numpy": "", "python": ""}
    with tempfile.TemporaryDirectory(prefix="caramel-versions-") as folder:
        inside = os.path.join(folder, "venv/bin/python")
        pip = (inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        wanted = [f"tensorflow=={tensorflow}", f"keras=={keras}" if keras else "keras", *_other_requirements(wheel)]
        try:
            _run(python, "-m", "venv", os.path.join(folder, "venv"))
            _run(*pip, *wanted)
            _run(*pip, "--no-deps", str(wheel))
            found.update(json.loads(_run(inside, "-c", _VERSIONS, folder=folder)))
            _run(inside, str(CHECK), folder=folder)
        except subprocess.CalledProcessError as error:
            return {**found, "failed": _last_error(error.stderr or error.stdout)}
        except subprocess.TimeoutExpired:
            return {**found, "failed": f"it took more than {_TIMEOUT_S} s"}
    return {**found, "failed": ""}


def _other_requirements(wheel: Path) -> list[str]:
    """What the wheel needs besides TensorFlow and Keras, whose versions are those that are tried."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    needed = [text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text]
    return [text for text in needed if not text.startswith(("tensorflow", "keras"))]


def _run(*command: str, folder: str | None = None) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, cwd=folder, env=clean, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    return done.stdout


def _last_error(text: str) -> str:
    """The last line of a text that names an error, or else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it ended without a word"]
    errors = [line for line in lines if re.match(r"(ERROR|[\w.]*(Error|Exception|Exit))\b", line)]
    return [*lines[-1:], *errors[-1:]][-1][:400]


def _digest(wheel: Path) -> str:
    """Of the files in a wheel, not of the times at which they were put there."""
    hasher = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            hasher.update(name.encode() + archive.read(name))
    return hasher.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main(prog_name="python -m benchmarks.versions"))
