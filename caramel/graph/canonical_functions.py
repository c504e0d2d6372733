"""Library functions under names that follow from their bodies, so that libraries can be merged.

TensorFlow numbers traced functions in the order in which a process traces them. Named after their
content instead, the same pipeline always gives the same bytes, and functions of the same name have
the same body.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tensorflow.core.framework import function_pb2

from caramel.errors import InvariantError
from caramel.graph import ops
from caramel.graph.graph import NodeDef, copied

_DIGEST_DIGITS = 12
"""Hexadecimal digits of SHA-256 in a name; with a thousand functions two names collide once in 10^8 programs."""

_DATASET_OP_SUFFIXES = ("Dataset", "DatasetV2", "DatasetV3", "DatasetV4")

_TRACE_AFFIXES = re.compile(rf"^(__inference_|__forward_)+|_[0-9a-f]{{{_DIGEST_DIGITS}}}$|_\d+$")
"""Prefixes and suffixes that TensorFlow, or this module, adds to the name of a Python function."""

_MARK = "_caramel_"
"""Prefix of the attributes that a capture gives nodes; their numbers are of the process, and bodies need none later."""

_NUMBERS = re.compile(r"_\d+(?=_|$)")
"""Numbers in the name of a function that was made of another one, and in those of Keras' layers."""


def canonical(nodes: Iterable[NodeDef], library: Any) -> tuple[list[NodeDef], Any]:
    """Copies of nodes and of the functions that they use, with names that follow from the bodies.

    Devices inside functions are dropped, because the caller of a function decides where it runs.
    """
    renaming = _Renaming({f.signature.name: f for f in library.function})
    renamed_nodes = []
    for original in nodes:
        copy = copied(original)
        renaming.apply(copy)
        renamed_nodes.append(copy)
    functions = function_pb2.FunctionDefLibrary()
    functions.function.extend(renaming.functions[name] for name in sorted(renaming.functions))
    return renamed_nodes, functions


class _Renaming:
    def __init__(self, bodies: Mapping[str, Any]) -> None:
        self._bodies = bodies
        self._names: dict[str, str] = {}
        self.functions: dict[str, Any] = {}

    def apply(self, node: NodeDef) -> None:
        """Make a node call functions by their new names, and drop the number that tf.data gave it."""
        if "metadata" in node.attr and node.op.endswith(_DATASET_OP_SUFFIXES):
            node.attr["metadata"].s = b""
        for reference in ops.function_references(node):
            reference.name = self._name(reference.name)
        if node.op in self._bodies:
            node.op = self._name(node.op)

    def _name(self, name: str) -> str:
        if name not in self._bodies:
            return name
        if name not in self._names:
            body = function_pb2.FunctionDef()
            body.CopyFrom(self._bodies[name])
            for inner in body.node_def:
                inner.device = ""
                for mark in [key for key in inner.attr if key.startswith(_MARK)]:
                    del inner.attr[mark]
                self.apply(inner)
            _rename_arguments(body)
            stem = _NUMBERS.sub("", _TRACE_AFFIXES.sub("", name))
            body.signature.name = stem
            digest = hashlib.sha256(body.SerializeToString(deterministic=True)).hexdigest()[:_DIGEST_DIGITS]
            body.signature.name = f"{stem}_{digest}"
            self._names[name] = body.signature.name
            self.functions[body.signature.name] = body
        return self._names[name]


def _rename_arguments(body: Any) -> None:
    """Name arguments by position, because TensorFlow writes numbers of the process into the names of some."""
    taken = {n.name for n in body.node_def}
    names = {argument.name: f"argument_{p}" for p, argument in enumerate(body.signature.input_arg)}
    if taken & set(names.values()):
        return
    for argument in body.signature.input_arg:
        argument.name = names[argument.name]
    for node in body.node_def:
        node.input[:] = [_renamed_input(text, names) for text in node.input]
    for key in sorted(body.ret):
        body.ret[key] = _renamed_input(body.ret[key], names)


def _renamed_input(text: str, names: Mapping[str, str]) -> str:
    control = "^" if text.startswith("^") else ""
    name = text.removeprefix("^")
    return control + names.get(name, name)


def merged_libraries(*libraries: Any) -> Any:
    """One library with the functions of all.

    Raises:
        InvariantError: two different functions have one name.
    """
    union = function_pb2.FunctionDefLibrary()
    known: dict[str, Any] = {}
    for library in libraries:
        if library is None:
            continue
        for function in library.function:
            name = function.signature.name
            if name not in known:
                known[name] = function
                union.function.add().CopyFrom(function)
            elif known[name] != function:
                raise InvariantError(f"graph: two different functions are named {name!r}")
        for gradient in library.gradient:
            if gradient not in union.gradient:
                union.gradient.add().CopyFrom(gradient)
    return union
