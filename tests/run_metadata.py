"""What TensorFlow says of a run: the graphs as its optimizers leave them, cut by device, and the ops that ran."""

import tensorflow as tf

v1 = tf.compat.v1


def metadata_of(executor, *names):
    """The RunMetadata of one run of a `SessionExecutor`.

    Args:
        executor: the executor.
        names: tensors and ops to run.
    """
    executor._growing.take_in(names)
    metadata = v1.RunMetadata()
    options = v1.RunOptions(output_partition_graphs=True, trace_level=v1.RunOptions.FULL_TRACE)
    fetches = [executor._graph.as_graph_element(name) for name in names]
    executor._session.run(fetches, options=options, run_metadata=metadata)
    return metadata
