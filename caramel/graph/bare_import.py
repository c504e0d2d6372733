"""Nodes taken into a tf.Graph as TensorFlow's runtime has them, without the objects of Python for each of them.

`tf.import_graph_def` makes an object of every node, and gives it its device anew: four fifths of its time. A session
needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from caramel.graph.graph import parse_input


def import_bare(graph: Any, graph_def: Any, there: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Add nodes to a graph, under their own names and on their own devices.

    Args:
        graph: tf.Graph to add them to.
        graph_def: GraphDef with the nodes, and with functions that they call.
        there: what this function has returned of the inputs that are in the graph already.

    Returns:
        TensorFlow's own op of each node, by name; it lives as long as the graph.

    Raises:
        ValueError: a node is not as its op or what it reads wants it, or its name is taken.
    """
    from tensorflow.python.client import pywrap_tf_session as c_api
    from tensorflow.python.framework import c_api_util, errors

    scoped_options = c_api_util.ScopedTFImportGraphDefOptions()
    options = scoped_options.options
    c_api.TF_ImportGraphDefOptionsSetPrefix(options, "")
    c_api.TF_ImportGraphDefOptionsSetUniquifyNames(options, False)
    c_api.TF_ImportGraphDefOptionsSetValidateColocationConstraints(options, False)  # some may be there already
    for text in dict.fromkeys(text for node in graph_def.node for text in node.input if there):
        name, index = parse_input(text)
        if name not in there:
            continue
        if index < 0:
            c_api.TF_ImportGraphDefOptionsRemapControlDependency(options, name, there[name])
        else:
            c_api.TF_ImportGraphDefOptionsAddInputMapping(
                options, name, index, c_api_util.tf_output(there[name], index)
            )
    names = [node.name for node in graph_def.node]
    for name in names:
        c_api.TF_ImportGraphDefOptionsAddReturnOperation(options, name)
    with c_api_util.tf_buffer(graph_def.SerializeToString()) as serialized:
        try:
            with graph._mutation_lock(), graph._c_graph.get() as c_graph:
                results = c_api.TF_GraphImportGraphDefWithResults(c_graph, serialized, options)
        except errors.InvalidArgumentError as error:  # as `tf.import_graph_def` has it
            raise ValueError(str(error)) from error
        scoped_results = c_api_util.ScopedTFImportGraphDefResults(results)
    return dict(zip(names, c_api.TF_ImportGraphDefResultsReturnOperations(scoped_results.results), strict=True))


def op_of(graph: Any, imported: Any) -> Any:
    """The tf.Operation of a node that `import_bare` has added, which is made when it is asked for first."""
    from tensorflow.python.client import pywrap_tf_session as c_api

    name = c_api.TF_OperationName(imported)
    try:
        return graph.get_operation_by_name(name)
    except KeyError:
        return graph._create_op_from_tf_operation(imported, compute_device=False)


def output_shapes(graph: Any, imported: Any) -> list[Any]:
    """The shape that TensorFlow has inferred of each output of a node that `import_bare` has added, as a message."""
    from tensorflow.python.framework.ops import Operation

    return [output.shape.as_proto() for output in Operation._from_c_op(imported, graph).outputs]
