"""What a trace of ``python -m benchmarks.device`` says: which rows there are, and whether they are read right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.device_programs import Sizes, program
from benchmarks.placements import HOST
from caramel.graph.devices import Device

_MOST_SHOWN = 20


def traced(name: str, sizes: Sizes, devices: Sequence[str]) -> tuple[bytes, dict[str, str]]:
    """What TensorFlow says of a traced step, serialized, and the device that the graph asks for, by op.

    Ops have the names that they have in the graph: it is not optimised.

    Args:
        name: of a network.
        sizes: of what is trained.
        devices: of the workers.
    """
    import tensorflow as tf

    import caramel

    one = program(name, sizes, dropout=0.1)
    context = caramel.capture(tf.function(one.step), one.inputs)
    (batch,) = one.batches(1, sizes.checked_examples)
    metadata: list[bytes] = []
    named = caramel.InProcess(caramel.RunOptions(optimize_graph=False))
    model = caramel.ARModel(context, len(devices), device_list=devices)
    with model.session(named) as session:
        for _ in range(2):
            session.step(*batch)
        session.trace_next(metadata.append)
        session.step(*batch)
    return metadata[0], {node.name: node.device for node in model.graph_def.node}


def check_trace(metadata: bytes, asked: Mapping[str, str], devices: Sequence[str]) -> dict[str, Any]:
    """Which devices a trace has rows of, and whether this library reads them right.

    Args:
        metadata: a serialized RunMetadata.
        asked: the device that the graph asks for, by op.
        devices: of the workers.
    """
    from tensorflow.core.protobuf import config_pb2

    from caramel.measure.step_stats import step_of

    there: Counter[str] = Counter()
    for each in config_pb2.RunMetadata.FromString(metadata).step_stats.dev_stats:
        there[each.device] += len(each.node_stats)
    step = step_of(metadata)
    read: Counter[str] = Counter()
    failures, on_host = [], set()
    for row in step.rows:
        if row.node not in asked:
            continue
        wanted, found = Device.parse(asked[row.node]), Device.parse(row.device)
        read[f"/{found.type}:{found.index}"] += 1
        if wanted.type is not None and (wanted.type, wanted.index) != (found.type, found.index):
            if found.type == HOST != wanted.type:
                on_host.add(row.node)
            else:
                failures.append(f"{row.node} ran on {found}, not on {wanted}")
    failures += [f"the trace has no row of an op on {device}" for device in devices if not read[device]]
    return {
        "rows_by_device": dict(sorted(there.items())),
        "rows_read": dict(sorted(read.items())),
        "streams": sorted(device for device in there if "/stream:" in device),
        "ran_on_host": sorted(on_host),
        "step_s": step.time_s,
        "failures": failures[:_MOST_SHOWN],
    }


def recorded(metadata: bytes, rows: int = 8) -> str:
    """A trace with a few rows of each device, as the JSON of a RunMetadata.

    Args:
        metadata: a serialized RunMetadata.
        rows: number of rows of each device to keep; they are spread over the step.
    """
    from google.protobuf import json_format
    from tensorflow.core.protobuf import config_pb2

    whole = config_pb2.RunMetadata.FromString(metadata)
    small = config_pb2.RunMetadata()
    for each in whole.step_stats.dev_stats:
        kept = small.step_stats.dev_stats.add(device=each.device)
        kept.node_stats.extend(each.node_stats[:: len(each.node_stats) // rows or 1][:rows])
        kept.thread_names.update(each.thread_names)
    return json_format.MessageToJson(small, indent=1) + "\n"
