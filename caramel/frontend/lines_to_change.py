"""What to change in a script that is no program file and does not call Keras' ``fit``: four lines, for its own names.

The script is only parsed, never run.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from caramel.errors import listed

_DIFFERENTIATES = frozenset({"GradientTape"})
_MINIMIZES = frozenset({"minimize", "Session", "placeholder"})
_TENSORFLOW = "tensorflow"
_CALLED_BY_FIT = "train_step"
"""Name of the method of a model that Keras' ``fit`` calls, wherever that is called."""

_ENTRY = "program"
"""Name of the function in the example."""


@dataclass(frozen=True)
class ScriptParts:
    """What a script has of a training program.

    Attributes:
        functions: names of its functions without required arguments, of which one may be an entry already: only those
            that look like one, if there are any.
        step: name of the function that differentiates with a GradientTape, or None; no method.
        step_arguments: names of that function's arguments.
        differentiates: whether there is a GradientTape anywhere.
        builds_graph: whether it has what programs of TensorFlow 1 have: placeholders, ``minimize``, a Session; not
            those of other packages.
        calls_fit: whether there is a ``fit`` anywhere.
        has_loop: whether there is a GradientTape outside a model's ``train_step``, which ``fit`` calls; or the script
            calls that itself.
    """

    functions: tuple[str, ...] = ()
    step: str | None = None
    step_arguments: tuple[str, ...] = ()
    differentiates: bool = False
    builds_graph: bool = False
    calls_fit: bool = False
    has_loop: bool = False

    @property
    def trains_by_itself(self) -> bool:
        """Whether it has a training of its own, and none by ``fit``."""
        return (self.has_loop or self.builds_graph) and not self.calls_fit


def script_parts(source: str | bytes, file: str = "<text>") -> ScriptParts:
    """Find the parts of a training program in the text of a script.

    Args:
        source: text of a Python file; bytes in the encoding that they say.
        file: name of it in errors.

    Raises:
        SyntaxError: it is no Python.
    """
    tree = ast.parse(source, file)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    steps = [function for function in functions if _names(function) & _DIFFERENTIATES and not _is_method(function)]
    inner = [
        function for function in steps if not any(other in ast.walk(function) for other in steps if other != function)
    ]
    step = inner[0] if inner else None
    entries = [node for node in tree.body if isinstance(node, ast.FunctionDef) and _may_be_entry(node)]
    return ScriptParts(
        functions=tuple(node.name for node in [node for node in entries if _has_step(node)] or entries),
        step=None if step is None else step.name,
        step_arguments=() if step is None else tuple(argument.arg for argument in step.args.args),
        differentiates=bool(_names(tree) & _DIFFERENTIATES),
        builds_graph=_builds_graph(tree),
        calls_fit="fit" in _names(tree),
        has_loop=_has_loop(tree),
    )


def _names(tree: ast.AST) -> set[str]:
    """Names and attributes in a tree."""
    nodes = list(ast.walk(tree))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


def _builds_graph(tree: ast.AST) -> bool:
    """Whether it has names of `_MINIMIZES` that no other package than TensorFlow gives it."""
    nodes = list(ast.walk(tree))
    other: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] != _TENSORFLOW:
            other |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.Import):
            packages = [each for each in node.names if each.name.split(".")[0] != _TENSORFLOW]
            other |= {each.asname or each.name.split(".")[0] for each in packages}
    return any(_is_one_of(node, _MINIMIZES) and _origin(node) not in other for node in nodes)


def _is_one_of(node: ast.AST, names: frozenset[str]) -> bool:
    """Whether it is a name, or an attribute, of these."""
    if isinstance(node, ast.Attribute):
        return node.attr in names
    return isinstance(node, ast.Name) and node.id in names


def _origin(node: ast.AST) -> str | None:
    """The name with which a chain of attributes and calls begins; None where it begins with something else."""
    while isinstance(node, (ast.Attribute, ast.Call)):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else None


def _has_loop(tree: ast.AST) -> bool:
    """Whether something differentiates that Keras' ``fit`` does not call."""
    nodes = list(ast.walk(tree))
    calls = [node.func for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    called = [each for each in calls if each.attr == _CALLED_BY_FIT and _origin(each) != "super"]
    models = [] if called else [node for node in nodes if isinstance(node, ast.ClassDef) and node.bases]
    steps = [part for model in models for part in model.body if getattr(part, "name", None) == _CALLED_BY_FIT]
    of_fit = {id(node) for step in steps for node in ast.walk(step)}
    return any(_is_one_of(node, _DIFFERENTIATES) and id(node) not in of_fit for node in nodes)


def _is_method(function: ast.FunctionDef) -> bool:
    return bool(function.args.args) and function.args.args[0].arg == "self"


def _has_step(function: ast.FunctionDef) -> bool:
    """Whether a dict in it has a step, as what an entry returns."""
    keys = [key for node in ast.walk(function) if isinstance(node, ast.Dict) for key in node.keys]
    return any(isinstance(key, ast.Constant) and key.value == "step" for key in keys)


def _may_be_entry(function: ast.FunctionDef) -> bool:
    arguments = function.args
    required = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    return required == 0 and all(default is not None for default in arguments.kw_defaults)


def lines_to_change(path: Path, parts: ScriptParts, workers: int = 2) -> str:
    """What to do about a script that is no program file and calls no ``fit``.

    Args:
        path: path of the script.
        parts: what was found in it.
        workers: number of workers to train on.

    >>> print(lines_to_change(Path("train.py"), ScriptParts(step="step", step_arguments=("x", "y"))))
    Call model.fit of a compiled Keras model, or make it a program file by four lines:
      def program():                 # above what makes data, variables and step, which move into it
          return {"step": step, "inputs": [tf.TensorSpec([None, ...]), tf.TensorSpec([None, ...])], "data": batches}
      if __name__ == "__main__":     # above your own training loop
          parts = program()          # your own loop takes the step and the data from it
    inputs: a tf.TensorSpec for each of x, y, with None for the number of examples
    data: a list of batches, a function that makes an iterator, or a tf.data.Dataset
    Then: caramel run train.py:program --workers 2. More: "Program files" in the documentation, or `caramel init`
    """
    is_graph = parts.builds_graph and not parts.differentiates
    what = "what builds the graph, which moves" if is_graph else "what makes data, variables and step, which move"
    lines = [
        (f"def {_ENTRY}():", f"above {what} into it"),
        (f"    return {_returned(parts, is_graph)}", ""),
        ('if __name__ == "__main__":', "above your own training loop"),
        (f"    parts = {_ENTRY}()", f"your own loop takes {'' if is_graph else 'the step and '}the data from it"),
    ]
    shown = [f"  {code:<31}# {comment}" if comment else f"  {code}" for code, comment in lines]
    either = "Call model.fit of a compiled Keras model, or make it a program file by four lines"
    return "\n".join(
        [
            f"{either}{_perhaps(path, parts)}:",
            *shown,
            _keys(parts, is_graph),
            f'Then: caramel run {path}:{_ENTRY} --workers {workers}. More: "Program files" in the documentation, or '
            "`caramel init`",
        ]
    )


def _returned(parts: ScriptParts, is_graph: bool) -> str:
    """The dict that the function returns."""
    if is_graph:
        return '{"data": batches}'
    specs = ", ".join(["tf.TensorSpec([None, ...])"] * max(len(parts.step_arguments), 1))
    return f'{{"step": {parts.step or "step"}, "inputs": [{specs}], "data": batches}}'


def _keys(parts: ScriptParts, is_graph: bool) -> str:
    """What the values of that dict are."""
    data = "data: a list of batches, a function that makes an iterator, or a tf.data.Dataset"
    if is_graph:
        return f"{data}; a batch is a dict from placeholders to arrays"
    arguments = ", ".join(parts.step_arguments) or "the step's arguments"
    return f"inputs: a tf.TensorSpec for each of {arguments}, with None for the number of examples\n{data}"


def _perhaps(path: Path, parts: ScriptParts) -> str:
    """The functions that may be the entry already."""
    if not parts.functions:
        return ""
    is_one = len(parts.functions) == 1
    names = parts.functions[0] if is_one else f"one of {listed(parts.functions)}"
    return f" (if {names} returns the program already, say {path}:{parts.functions[0] if is_one else 'ENTRY'} instead)"
