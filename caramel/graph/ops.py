"""What Caramel knows about TensorFlow's ops; everything else comes from their OpDefs, which TensorFlow has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from caramel.errors import InvariantError
from caramel.graph.graph import NodeDef, parse_input


def op_names(text: str) -> frozenset[str]:
    """A set of op types.

    Args:
        text: op types with spaces between them.
    """
    return frozenset(text.split())


DT_HALF, DT_RESOURCE, DT_VARIANT = 19, 20, 21
"""Numbers of types in a GraphDef (types.proto of TensorFlow)."""

VARIABLE = "VarHandleOp"
"""Op of a resource variable's handle."""

REFERENCE_VARIABLES = frozenset({"VariableV2", "Variable"})
"""Variables of TensorFlow 1 that hand out references to their buffer."""

READS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp", "DisableCopyOnRead"}
)
"""Ops that take a variable's handle and leave the variable as it is."""

PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"})

ZERO_COST_OPS = frozenset(
    {
        *("Const", "Identity", "IdentityN", "NoOp", "PreventGradient", "Snapshot", "StopGradient", "ReadVariableOp"),
        *("Shape", "ShapeN", "Size", "Rank", "Reshape", "ExpandDims", "Squeeze", "FloorMod", "Range"),
        *("BroadcastGradientArgs", "ConcatOffset"),
        VARIABLE,
        *PLACEHOLDERS,
    }
)
"""Ops that cost no time; TensorFlow's graph optimizers remove many of them, together with their control edges."""

LEGACY_LOOPS = frozenset({"Enter", "RefEnter", "Exit", "RefExit", "NextIteration", "RefNextIteration", "LoopCond"})
"""Ops of loops of TensorFlow 1."""

INLINED_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
"""Calls that run one function once, so that its body can stand in their place."""

BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
"""Calls whose first input chooses the function; the function gets the other inputs."""

LOOPS = frozenset({"While", "StatelessWhile"})

CALLS = INLINED_CALLS | BRANCHES | LOOPS
"""Ops that call the functions named in their attributes, and do nothing else."""

NATIVE_ALL_REDUCE = "CollectiveReduceV2"
"""TensorFlow's own all-reduce."""

TABLE = "MutableHashTableV2"
"""The op that makes a copy of a lookup table."""

_HARMLESS_STATEFUL = frozenset(
    {
        VARIABLE,
        TABLE,
        "LookupTableFindV2",
        "LookupTableSizeV2",
        "Assert",
        "Print",
        "PrintV2",
        "NoOp",
        "CheckNumerics",
        "CheckNumericsV2",
        "Empty",
        "GuaranteeConst",
        "StatelessRandomGetAlg",
    }
)
"""Ops that TensorFlow marks stateful only to keep them from being folded or dropped; a copy means the same."""

PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
"""Ops that call Python of the process that made them."""

_TOUCH_FILES_OR_PYTHON = frozenset(
    {
        *("PyFuncStateless", "ReadFile", "MatchingFiles", "GenerateVocabRemapping", "LoadAndRemapMatrix"),
        *("DebugIdentity", "DebugNanCount", "DebugNumericSummary", "ReaderRead", "ReaderReadUpTo", "ReaderReset"),
        *("ReaderRestoreState", "ReaderSerializeState", "ReaderNumRecordsProduced", "ReaderNumWorkUnitsCompleted"),
    }
)
"""Ops that read files, write them or run Python, and that TensorFlow does not mark stateful."""

_TABLE_PREFIXES = ("HashTable", "AnonymousHashTable", "MutableHashTable", "InitializeTable", "LookupTable")
"""Beginnings of the names of the ops of lookup tables. The file of a vocabulary is an asset of the program."""

_RANDOM_RESOURCE_OPS = frozenset(
    {
        "RngReadAndSkip",
        "RngSkip",
        "StatefulUniform",
        "StatefulUniformFullInt",
        "StatefulUniformInt",
        "StatefulStandardNormal",
        "StatefulStandardNormalV2",
        "StatefulTruncatedNormal",
        "StatefulRandomBinomial",
    }
)

_WRITE_PREFIXES = (
    "Assign",
    "ResourceApply",
    "ResourceCountUpTo",
    "ResourceScatter",
    "ResourceSparseApply",
    "ResourceStridedSlice",
)

_STATELESS_RANDOM_PREFIXES = (
    "StatelessRandom",
    "StatelessTruncated",
    "StatelessMultinomial",
    "StatelessSample",
    "StatelessParameterized",
    "StatelessShuffle",
)


@cache
def op_def(op: str) -> Any:
    """The OpDef of an op.

    Raises:
        InvariantError: this TensorFlow has no such op.
    """
    definition = _registered(op)
    if definition is None:
        raise InvariantError(f"op type {op!r} is not part of this TensorFlow")
    return definition


def is_known(op: str) -> bool:
    """Whether this TensorFlow has an op of that name."""
    return _registered(op) is not None


def _registered(op: str) -> Any:
    """The OpDef of an op; None where there is no such op. The first call imports TensorFlow."""
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(op)


def is_stateful(node: NodeDef) -> bool:
    """Whether the op has state or effects, so that a copy of it is not just a copy of a value."""
    return bool(op_def(node.op).is_stateful)


def is_seeded_random(node: NodeDef) -> bool:
    """Whether the op draws from a hidden generator that its ``seed`` attributes start."""
    return _has_seeds(node.op)


@cache
def _has_seeds(op: str) -> bool:
    definition = op_def(op)
    return definition.is_stateful and {"seed", "seed2"} <= {a.name for a in definition.attr}


def is_generator_op(node: NodeDef) -> bool:
    """Whether the op draws from, or moves, the state of a ``tf.random.Generator``."""
    return node.op in _RANDOM_RESOURCE_OPS


def is_stateless_random(node: NodeDef) -> bool:
    """Whether the op is a pure function of a seed tensor."""
    return node.op.startswith(_STATELESS_RANDOM_PREFIXES)


def is_reference_op(node: NodeDef) -> bool:
    """Whether the op makes or takes a TF1 reference variable."""
    definition = op_def(node.op)
    return any(a.is_ref for a in (*definition.input_arg, *definition.output_arg))


def is_replicable(node: NodeDef) -> bool:
    """Whether a copy of the op on each worker means what it meant on one device."""
    if node.op in PYTHON_OPS:
        return False
    if not is_stateful(node) or node.op in _HARMLESS_STATEFUL or node.op in READS:
        return True
    if is_seeded_random(node) or is_generator_op(node):
        return True
    return is_variable_write(node)


def is_harmless_initializer(node: NodeDef) -> bool:
    """Whether an op may run to find an initial value: it touches no files but a table's vocabulary, and no Python."""
    if node.op in _TOUCH_FILES_OR_PYTHON:
        return False
    if node.op == "PrintV2":
        return not node.attr["output_stream"].s.startswith(b"file:")
    is_variable = node.op in REFERENCE_VARIABLES
    return is_replicable(node) or is_call(node) or is_variable or node.op.startswith(_TABLE_PREFIXES)


def is_call(node: NodeDef) -> bool:
    """Whether the op calls library functions and does nothing else."""
    return node.op in CALLS


def is_variable_write(node: NodeDef) -> bool:
    """Whether the op writes the variables whose handles it takes."""
    if node.op in READS or not (node.op.startswith(_WRITE_PREFIXES) or node.op in _RANDOM_RESOURCE_OPS):
        return False
    return bool(op_def(node.op).is_stateful)


@cache
def calls_functions(op: str) -> bool:
    """Whether nodes of an op name library functions."""
    return any(a.type in ("func", "list(func)") for a in op_def(op).attr)


def function_references(node: NodeDef) -> Iterator[Any]:
    """The attributes' references to library functions, in the order of the attributes' names."""
    for key in sorted(node.attr):
        value = node.attr[key]
        if value.HasField("func"):
            yield value.func
        yield from value.list.func


def functions_of(node: NodeDef) -> list[str]:
    """Names of the library functions that the node calls by its attributes."""
    return [reference.name for reference in function_references(node)]


@dataclass(frozen=True, slots=True)
class _Argument:
    """An input or output argument of an op, without what its OpDef also says: looking there takes longer."""

    name: str
    dtype: int
    type_attr: str
    number_attr: str
    type_list_attr: str


@cache
def _input_arguments(op: str) -> tuple[_Argument, ...]:
    return _arguments(op_def(op).input_arg)


@cache
def _output_arguments(op: str) -> tuple[_Argument, ...]:
    return _arguments(op_def(op).output_arg)


def _arguments(arguments: Any) -> tuple[_Argument, ...]:
    return tuple(_Argument(a.name, a.type, a.type_attr, a.number_attr, a.type_list_attr) for a in arguments)


def _typed_arguments(arguments: Iterable[_Argument], node: NodeDef) -> list[tuple[str, int]]:
    """(argument name, DataType) for every tensor of the given input or output arguments."""
    typed: list[tuple[str, int]] = []
    for argument in arguments:
        if argument.type_list_attr:
            typed.extend((argument.name, t) for t in node.attr[argument.type_list_attr].list.type)
            continue
        dtype = argument.dtype or node.attr[argument.type_attr].type
        count = node.attr[argument.number_attr].i if argument.number_attr else 1
        typed.extend([(argument.name, dtype)] * count)
    return typed


def output_types(node: NodeDef) -> list[int]:
    """DataType of each output."""
    return [t for _, t in _typed_arguments(_output_arguments(node.op), node)]


def output_names(node: NodeDef) -> list[str]:
    """Name of the output argument of each output."""
    return [name for name, _ in _typed_arguments(_output_arguments(node.op), node)]


def input_types(node: NodeDef) -> list[tuple[str, int]]:
    """(argument name, DataType) of each data input."""
    return _typed_arguments(_input_arguments(node.op), node)


def data_inputs(node: NodeDef) -> list[tuple[str, int]]:
    """(producer, output index) of each data input, in order."""
    return [(n, i) for n, i in map(parse_input, node.input) if i >= 0]


def dtype_name(enum: int) -> str:
    """TensorFlow's name for a DataType, such as ``float32``."""
    import tensorflow as tf

    return tf.as_dtype(enum).name


def dtype_enum(name: str) -> int:
    """The DataType for a name such as ``float32``."""
    import tensorflow as tf

    return int(tf.as_dtype(name).as_datatype_enum)


def item_bytes(name: str) -> int:
    """Bytes per element of a dtype given by name; 0 where the size varies (strings)."""
    import tensorflow as tf

    try:
        return int(tf.as_dtype(name).size)
    except TypeError:
        return 0
