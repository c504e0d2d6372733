"""Compile many programs and keep a digest of all that comes out, to show that a change of the code changes none of it.

    python scripts/replay.py dump before.json           # in a checkout of the code before the change
    python scripts/replay.py dump after.json            # in one of the code after it
    python scripts/replay.py compare before.json after.json

Run it from the root of a checkout: it compiles the programs of that checkout's ``examples/``, ``tests/exact`` and
``benchmarks``. Of each case it keeps digests of the plan's JSON, the signature's JSON and the GraphDef's bytes, and of
one case of each program those of the files of an export; where a case is refused, the text of the error. Times of ops
are made up from their names, so that every machine plans alike.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
ROOT = Path.cwd()
sys.path[:0] = [str(ROOT / place) for place in ("", "tests", "tests/exact", "tests/fit", "tests/keras", "examples")]

WORKERS = (1, 2, 3, 8)
TWO_OF_MATRIX = ("sgd", "adam")
"""Optimizers with which every feature is compiled in all variants."""

Program = tuple[str, Callable[[], Any], Mapping[str, Any]]
"""Name, what captures it, and options that all of its compilations have."""


def sha(data: bytes | str) -> str:
    """A short digest."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:16]


def number_of(text: str, below: int) -> int:
    """A number that depends on a text alone."""
    return int(hashlib.sha256(text.encode()).hexdigest(), 16) % below


def defined(*names: str) -> Any:
    """What the library defines under one of these names, in whichever of its modules."""
    definition = re.compile(rf"^(?:def|class) ({'|'.join(names)})\b", re.MULTILINE)
    places = [(file, definition.search(file.read_text())) for file in sorted((ROOT / "caramel").rglob("*.py"))]
    ((file, match),) = [(file, match) for file, match in places if match is not None]
    return getattr(importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts)), match.group(1))


# -- what is compiled ------------------------------------------------------------------------------


def examples() -> Iterator[Program]:
    """The program files."""
    from caramel import capture  # noqa: F401 - first, so that a defect of the library shows as itself

    load = defined("load_program")
    # The graph of TensorFlow 1 comes last of all: its file switches eager execution off.
    for spec in ("digits_keras.py:program", "transformer.py:program", "word_vectors.py:program", "digits_tf1.py:build"):
        yield f"examples/{spec}", lambda spec=spec: load(f"examples/{spec}").context, {}


def matrix() -> Iterator[Program]:
    """Keras' optimizers with all features of a step."""
    import exact_matrix
    from exact_steps import fresh

    import caramel

    for feature in exact_matrix.FEATURE:
        for optimizer in exact_matrix.OPTIMIZERS:

            def make(feature: str = feature, optimizer: str = optimizer) -> Any:
                program = fresh(exact_matrix.program(optimizer, feature))
                return caramel.capture(program.step, program.specs, **program.options)

            yield f"matrix/{optimizer}/{feature}", make, {}


def graphs() -> Iterator[Program]:
    """Graphs of TensorFlow 1."""
    import exact_tf1
    import tensorflow as tf
    from exact_common import LOCAL, SAME, Case

    features = [(), *((f,) for f in (*SAME, *LOCAL)), (*SAME, *LOCAL)]
    optimizers = [*exact_tf1.OPTIMIZERS, *exact_tf1.FURTHER_OPTIMIZERS]
    cases = [Case(features=f, references=r) for f in features for r in (False, True)]
    cases += [Case(optimizer=o, features=("schedule",)) for o in optimizers]
    cases += [Case(dtype=d, reduction="sum") for d in ("float32", "float64")]
    for case in cases:

        def make(case: Any = case) -> Any:
            with tf.Graph().as_default():
                return exact_tf1.capture(case)[0]

        kind = "references" if case.references else "resources"
        yield f"tf1/{case.optimizer}/{'+'.join(case.features)}/{case.dtype}/{case.reduction}/{kind}", make, {}


def data() -> Iterator[Program]:
    """Datasets that the workers run."""
    import tensorflow as tf
    import test_data_exact

    import caramel

    for name, dataset in test_data_exact.DATASETS.items():

        def make(dataset: Any = dataset) -> Any:
            tf.random.set_seed(3)
            return caramel.capture(test_data_exact.Program().step, data=dataset())

        for sharding in ("slice", "batches"):
            yield f"data/{name}/{sharding}", make, {"sharding": sharding}


def fits() -> Iterator[Program]:
    """What `caramel.fit` compiles; nothing is trained."""
    import fit_common

    import caramel

    class Compiled(Exception):
        """With the ARModel."""

    def stop(armodel: Any, *_: Any, **__: Any) -> Any:
        raise Compiled(armodel)

    def make(**options: Any) -> Any:
        model = fit_common.compiled(**options)
        before, caramel.ARModel.session = caramel.ARModel.session, stop  # type: ignore[method-assign]
        try:
            caramel.fit(model, fit_common.dataset(), workers=2, verbose=0)
        except Compiled as done:
            return done.args[0].context
        finally:
            caramel.ARModel.session = before  # type: ignore[method-assign]
        raise AssertionError("fit opened no session")

    yield "fit/plain", make, {}
    yield "fit/weighted metrics", lambda: make(weighted=("accuracy",)), {}


def networks() -> Iterator[Program]:
    """Large models of Keras."""
    import caramel
    from benchmarks.networks import NAMES, VGG_LIKE
    from benchmarks.networks import make as made

    for name in (VGG_LIKE, *NAMES):

        def make(name: str = name) -> Any:
            network = made(name)
            return caramel.capture(network.step, network.inputs)

        yield f"models/{name}", make, {}


GROUPS: dict[str, Callable[[], Iterator[Program]]] = {
    "tf1": graphs,
    "data": data,
    "fit": fits,
    "matrix": matrix,
    "models": networks,
    "examples": examples,
}


# -- in which ways ---------------------------------------------------------------------------------


def made_up_trace(model: Any) -> Any:
    """A trace in which an op's time depends on its name alone."""
    from caramel.facts import Trace

    op_s = {node.name: 1e-6 * number_of(node.name, 300) for node in model.graph}
    total_s = sum(op_s.values())
    ordered = {"none": total_s, "updates": 1.001 * total_s, "total": 1.01 * total_s}
    return Trace(model.digest, op_s, {}, total_s, total_s, 3, 1, None, "made up", ordered_step_s=ordered)


def made_up_network(workers: int) -> Any:
    """A network that looks measured: three algorithms, two depths, a jump."""
    from caramel.netmodel.line import Curve, Sample
    from caramel.netmodel.model import NetworkModel

    def samples(start_s: float, s_per_byte: float) -> list[Any]:
        jump = 1.3
        return [Sample(2**n, start_s + s_per_byte * 2**n * (jump if n > 18 else 1.0)) for n in range(6, 26, 2)]

    curves = [
        Curve.fitted(workers, algorithm, depth, samples(start_s * depth**0.3, s_per_byte / depth**0.2))
        for algorithm, start_s, s_per_byte in (("shuffle", 2e-3, 8e-9), ("ring", 3e-3, 7e-9), ("star", 1e-3, 2e-8))
        for depth in (1, 4)
    ]
    return NetworkModel("made up", tuple(curves))


def variants(model: Any, workers: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """Options of ARModel by a name for them."""
    import caramel

    names = [g.name for g in model.gradients]
    trace = made_up_trace(model)
    fast = caramel.NetworkModel.from_link_rate(1.25e8)
    slow = caramel.NetworkModel.from_link_rate(1.25e6)
    planned = {"trace": trace, "network": fast}
    return {
        "plain": dict,
        "planned": lambda: planned,
        "measured": lambda: {"trace": trace, "network": made_up_network(workers)},
        "paper": lambda: {"trace": trace, "network": slow, "policy": "paper"},
        "deterministic": lambda: {**planned, "deterministic": True},
        "postponed": lambda: {"postponed": postponable(model)[::2], "deterministic": True},
        "network": lambda: {"network": slow},
        "trace": lambda: {"trace": trace, "uneven_batches": "refuse", "statistics": "mean"},
        "by hand": lambda: {"algorithm": "ring", "depth": 2, "batching": False, "wire": "bfloat16"},
        "no order": lambda: {**planned, "serialization": False},
        "no windows": lambda: {**planned, "scheduling": False},
        "unknown": lambda: {"postponed": [names[0], "no such gradient"]},
    }


def postponable(model: Any) -> list[str]:
    """Gradients that may travel in the next step."""
    return [name for name, why in defined("find_dependencies")(model).postponable.items() if not why]


def chosen(program: str, names: list[str], workers: int, most: int) -> list[str]:
    """The first variant, and some of the others that the program's name decides."""
    rest = names[1:]
    first = number_of(f"{program} {workers}", len(rest))
    return [names[0], *(rest[(first + n) % len(rest)] for n in range(most))]


# -- dump and compare ------------------------------------------------------------------------------


def outcome(context: Any, workers: int, options: dict[str, Any], export: bool) -> dict[str, Any]:
    """Digests of what is compiled, or the error."""
    import caramel

    try:
        armodel = caramel.ARModel(context, workers, **options)
    except caramel.CaramelError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    found = {
        "plan": sha(armodel.plan.to_json()),
        "table": sha(armodel.plan.table()),
        "signature": sha(armodel.signature.to_json()),
        "graph": sha(armodel.graph_def.SerializeToString(deterministic=True)),
    }
    if export:
        with tempfile.TemporaryDirectory() as folder:
            armodel.export(Path(folder) / "out")
            files = sorted(p for p in Path(folder).rglob("*") if p.is_file())
            found["export"] = {str(p.relative_to(folder)): sha(p.read_bytes()) for p in files}
    return found


def computation(context: Any, workers: int, sharding: str | None) -> dict[str, str]:
    """Digests of a host's computation alone."""
    alone = defined("computation_alone", "make_computation")(context, workers, None, sharding, 2 * workers)
    return {
        "signature": sha(alone.signature.to_json()),
        "graph": sha(alone.graph_def.SerializeToString(deterministic=True)),
    }


def cases(group: str, part: int, parts: int) -> Iterator[tuple[str, Any]]:
    """Everything of a group of programs."""
    for number, (name, make, fixed) in enumerate(GROUPS[group]()):
        if number % parts != part:
            continue
        context = make()
        in_full = group != "matrix" or name.split("/")[1] in TWO_OF_MATRIX or name.endswith("/uneven")
        numbers = WORKERS if in_full else (WORKERS[number_of(name, len(WORKERS))],)
        most = {"examples": 11}.get(group, 2)
        for workers in numbers:
            made = variants(context.model, workers)
            for variant in chosen(name, list(made), workers, most) if in_full else chosen(name, list(made), workers, 1):
                export = group != "models" and workers == 2 and variant == "plain"
                yield (
                    f"{name} N={workers} {variant}",
                    outcome(context, workers, {**fixed, **made[variant]()}, export),
                )
        if in_full and group != "fit":
            yield f"{name} alone", computation(context, 2, fixed.get("sharding"))


def dump(file: str, groups: list[str], part: int, parts: int) -> None:
    """Compile everything, and write the digests."""
    made: dict[str, Any] = {}
    for group in groups:
        for name, found in cases(group, part, parts):
            assert name not in made, name
            made[name] = found
            print(f"\r{len(made)} {name[:90]:90}", end="", file=sys.stderr, flush=True)
    Path(file).write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    print(f"\n{len(made)} cases, {sum('error' in each for each in made.values())} of them refused", file=sys.stderr)


def compare(before: list[str], after: list[str]) -> int:
    """Say what differs; the number of cases that do."""

    def merged(files: list[str]) -> dict[str, Any]:
        return {name: found for file in files for name, found in json.loads(Path(file).read_text()).items()}

    old, new = merged(before), merged(after)
    different = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    for name in different[:20]:
        print(f"{name}\n  {old.get(name)}\n  {new.get(name)}")
    print(f"{len(old)} and {len(new)} cases, {len(different)} differ")
    return len(different)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("dump")
    one.add_argument("file")
    one.add_argument("--group", action="append", choices=GROUPS, help="default: all")
    one.add_argument("--part", default="0/1", help="K/N: every N-th program, from the K-th on")
    two = commands.add_parser("compare")
    two.add_argument("--before", nargs="+", required=True)
    two.add_argument("--after", nargs="+", required=True)
    given = parser.parse_args()
    if given.command == "compare":
        return 1 if compare(given.before, given.after) else 0
    part, _, parts = given.part.partition("/")
    dump(given.file, given.group or list(GROUPS), int(part), int(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
