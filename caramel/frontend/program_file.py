"""Program files: ``FILE.py:ENTRY`` names a function that builds a training program.

ENTRY takes no arguments and either builds a TF1-style graph or returns the step with its input
specs. What it may return is a dict with some of these keys:

- ``step``, ``inputs``: the training step and the tf.TensorSpec of each argument (not for graphs);
- ``data``: the batches. A tf.data.Dataset runs on the workers (so do iterators in a graph, without
  ``data``); ``inputs`` are then not needed. Or an iterable or a function that makes one; each batch is a
  tuple of arrays in the order of the inputs, or a dict from placeholders or names to arrays;
- ``evaluation``: a dict with ``function`` (a step program) or ``outputs`` (tensors of a graph), and
  ``data``, the arrays to evaluate on; ``inputs`` are the function's tf.TensorSpec;
- ``loss``, ``train_op``, ``loss_reduction``, ``replicated``, ``checkpoint``: as for `caramel.capture`.

The program's own training loop belongs under ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caramel.errors import InputError, ProgramError
from caramel.frontend.user_code import guarded
from caramel.util.python_files import executed_module

if TYPE_CHECKING:
    from caramel.frontend.context import Context

_PROGRAM_KEYS = frozenset(
    {"step", "inputs", "data", "evaluation", "loss", "train_op", "loss_reduction", "replicated", "checkpoint"}
)
_EVALUATION_KEYS = frozenset({"function", "outputs", "inputs", "data"})


@dataclass(frozen=True)
class Program:
    """A captured program file.

    Attributes:
        context: the captured program.
        data: batches of the program, or None.
        evaluation_data: arrays for the program's evaluation (a tuple or a dict), or None.
        why_here: reason for which this process, not the workers, reads the dataset; or None.
    """

    context: Context
    data: Iterable[Any] | Callable[[], Iterable[Any]] | None
    evaluation_data: Any
    why_here: str | None = None

    @property
    def on_workers(self) -> bool:
        """Whether the workers read the data themselves."""
        return self.context.given is not None

    def first_batch(self) -> tuple[Any, ...]:
        """The arguments of a step on the first batch; none where the workers read the data themselves.

        Raises:
            ProgramError: there is no batch.
        """
        return () if self.on_workers else arguments_of(next(self.batches(1)))

    def batches(self, steps: int | None, taken: int = 0) -> Iterator[Any]:
        """The batches of ``steps`` steps; the data starts over as often as needed.

        Args:
            steps: number of steps; None for the rest of the present pass over the data.
            taken: number of batches that earlier steps took, over all passes: they are read and left out.

        Raises:
            ProgramError: there is no data, it is empty, or it ends and cannot be started over.
        """
        if self.data is None:
            raise ProgramError(
                "the program has no data: let its entry return {'data': batches}, each a tuple of arrays or a feed dict"
            )
        done = passes = 0
        left_out = taken % len(self.data) if isinstance(self.data, Sequence) and self.data else taken
        while done != steps:
            seen = 0
            for batch in _guarded_batches(self.data):
                seen += 1
                if left_out > 0:
                    left_out -= 1
                    continue
                yield batch
                done += 1
                if done == steps:  # before the next batch is made, which nobody needs
                    return
            if steps is None and done > 0:
                return
            if seen == 0:
                again = " a second time (return a list or a function that makes an iterator)" if passes else ""
                wanted = "" if steps is None else f"; {done} of {steps} steps are done"
                earlier = f", after {taken} earlier ones" if taken else ""
                raise ProgramError(f"the program's data gives no batch{again}{wanted}{earlier}")
            passes += 1


def arguments_of(batch: Any) -> tuple[Any, ...]:
    """The arguments of a step, or of an evaluation, for a batch of a program's data.

    Args:
        batch: a tuple of arrays, one array, or a dict.
    """
    return batch if isinstance(batch, tuple) else (batch,)


def _guarded_batches(data: Iterable[Any] | Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """One pass over the data; what the user's code raises becomes a ProgramError."""
    batches = guarded(data, "the program's data") if callable(data) else data
    if not isinstance(batches, Iterable):
        raise ProgramError(
            f"the program's data is {type(batches).__name__}, not batches: return a list of them, or a function that "
            "makes an iterator"
        )
    iterator = guarded(lambda: iter(batches), "the program's data")
    while True:
        batch = guarded(lambda: next(iterator, iterator), "the program's data")
        if batch is iterator:
            return
        yield batch


def load_program(spec: str) -> Program:
    """Load and capture ``FILE.py:ENTRY``.

    Args:
        spec: path of the program file and name of the function in it, with a colon between them.

    Raises:
        ProgramError: the file or the entry is not there, raises, or returns something else.
        CaptureError: the program cannot be captured.
    """
    name, colon, entry_name = spec.rpartition(":")
    if not colon or not name or not entry_name:
        raise ProgramError(
            f"{spec!r} is not FILE.py:ENTRY: name the file and the function in it that makes the program, as in "
            "train.py:build. (A script that trains a Keras model by itself is named without a function: train.py)"
        )
    path = Path(name)
    entry = _entry(_module(path), entry_name, path)
    return _program(entry, f"{path}:{entry_name}")


def _module(path: Path) -> Any:
    if not path.is_file():
        raise ProgramError(f"there is no program file {str(path)!r}")
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)  # as `python FILE.py` does, so that its neighbours can be imported
    module = guarded(lambda: executed_module(path, path.stem), f"program file {str(path)!r}")
    if module is None:
        raise ProgramError(f"{str(path)!r} is not a Python file")
    return module


def _entry(module: Any, name: str, path: Path) -> Callable[[], Any]:
    entry = getattr(module, name, None)
    if not callable(entry):
        here = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", None) == module.__name__]
        raise ProgramError(
            f"{str(path)!r} has no function {name!r}; it has {', '.join(here) if here else 'no function of its own'}"
        )
    return entry  # type: ignore[no-any-return]


def _program(entry: Callable[[], Any], what: str) -> Program:
    import tensorflow as tf

    from caramel.frontend.context import capture

    context = capture()
    if tf.executing_eagerly():
        try:
            with context.watching():
                returned = guarded(entry, what)
        except ProgramError as error:
            if not (isinstance(error.__cause__, RuntimeError) and "eager" in str(error.__cause__)):
                raise
            context = capture()  # TF1 code that leaves it to its caller to make a graph: give it one below
        else:
            is_step = isinstance(returned, Mapping) and "step" in returned
            return _step_program(returned, what) if is_step else _graph_program(context, returned, what)
    with context:
        returned = guarded(entry, what)
    return _graph_program(context, returned, what)


def _checked(returned: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(returned, Mapping):  # a graph program may return what it likes to its own main part
        return {}
    unknown = sorted(str(key) for key in returned if key not in _PROGRAM_KEYS)
    if unknown:
        raise ProgramError(
            f"{what} returns the key {unknown[0]!r}, which is not known; known are {', '.join(sorted(_PROGRAM_KEYS))}"
        )
    evaluation = returned.get("evaluation")
    if evaluation is not None:
        if not isinstance(evaluation, Mapping):
            raise ProgramError(f"{what}: 'evaluation' must be a dict with {', '.join(sorted(_EVALUATION_KEYS))}")
        wrong = sorted(str(key) for key in evaluation if key not in _EVALUATION_KEYS)
        if wrong:
            raise ProgramError(
                f"{what}: 'evaluation' has the key {wrong[0]!r}; known are {', '.join(sorted(_EVALUATION_KEYS))}"
            )
    return returned


def _graph_program(context: Context, returned: Any, what: str) -> Program:
    _refuse_objects(context, returned, what)
    entries = _checked(returned, what)
    if "inputs" in entries:
        raise ProgramError(f"{what} returns 'inputs' without 'step': they go together")
    for key in ("loss", "train_op", "loss_reduction", "replicated", "checkpoint"):
        if entries.get(key) is not None:
            setattr(context, key, entries[key])
    evaluation = entries.get("evaluation") or {}
    if "function" in evaluation:
        raise ProgramError(f"{what} builds a graph: its 'evaluation' takes 'outputs' (tensors), not a 'function'")
    context.evaluation = evaluation.get("outputs")
    data, why_here = _for_workers(entries.get("data"), what)
    context.data = data if why_here is None else None
    return Program(context, entries.get("data"), evaluation.get("data"), why_here)


def _refuse_objects(context: Context, returned: Any, what: str) -> None:
    """Refuse an entry that has built no graph and returns something else than a dict.

    Raises:
        ProgramError: it is such an entry.
    """
    if returned is None or isinstance(returned, Mapping) or context.has_built_graph:
        return
    is_model = any(base.__name__ == "Model" and base.__module__.startswith("keras.") for base in type(returned).__mro__)
    keras_hint = ". (A compiled Keras model is trained by caramel.fit, in a script of your own)" if is_model else ""
    raise ProgramError(
        f"{what} returns {type(returned).__name__}: return a dict with 'step', 'inputs' and 'data', or build a graph "
        f"of TensorFlow 1; docs/how-to/program-files.md has examples{keras_hint}"
    )


def _for_workers(data: Any, what: str) -> tuple[Any, str | None]:
    """The data, if it is a dataset that the workers can run, and the reason for which they cannot, if there is one.

    Raises:
        ProgramError: nor can it be read in this process, for it belongs to a graph.
    """
    import tensorflow as tf

    from caramel.data.components import is_dataset
    from caramel.data.dataset import why_not_on_workers

    if not is_dataset(data):
        return None, None
    why_here = why_not_on_workers(data)
    is_eager = isinstance(tf.data.experimental.to_variant(data), tf.__internal__.EagerTensor)
    if why_here is not None and not is_eager:
        raise ProgramError(
            f"{what}: the workers cannot run the dataset 'data': {why_here}. Nor can this process read a dataset that "
            "was not made eagerly: return a function that makes an iterator of arrays instead"
        )
    return data, why_here


def _step_program(returned: Mapping[str, Any], what: str) -> Program:
    from caramel.frontend.context import capture

    entries = _checked(returned, what)
    if entries.get("train_op") is not None:
        raise ProgramError(f"{what} returns 'train_op' with 'step': the step itself is the training op")
    evaluation = entries.get("evaluation") or {}
    if "outputs" in evaluation:
        raise ProgramError(f"{what} returns a step: its 'evaluation' takes a 'function', not 'outputs'")
    data, why_here = _for_workers(entries.get("data"), what)
    try:
        context = capture(
            entries["step"],
            entries.get("inputs"),
            loss=entries.get("loss"),
            loss_reduction=entries.get("loss_reduction"),
            replicated=entries.get("replicated") or (),
            evaluation=evaluation.get("function"),
            evaluation_inputs=evaluation.get("inputs"),
            checkpoint=entries.get("checkpoint"),
            data=data if why_here is None else None,
        )
    except InputError as error:
        raise ProgramError(f"{what}: {error}") from error
    return Program(context, entries.get("data"), evaluation.get("data"), why_here)
