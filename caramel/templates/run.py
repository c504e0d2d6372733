"""Run an exported training program with TensorFlow alone: see README.md beside this file."""

import argparse
import json
import os
import re

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
HERE = os.path.dirname(os.path.abspath(__file__))


def load(in_process):
    """The graph and its signature; workers become virtual CPUs if they all run in this process."""
    with open(os.path.join(HERE, "signature.json")) as file:
        signature = json.load(file)
    graph_def = v1.GraphDef()
    with open(os.path.join(HERE, "graph.pb"), "rb") as file:
        graph_def.ParseFromString(file.read())
    if in_process:
        workers = list(dict.fromkeys(worker_of(device) for device in signature["devices"]))
        for node in graph_def.node:
            if node.device:
                node.device = "/device:CPU:%d" % workers.index(worker_of(node.device))
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    return graph, signature


def worker_of(device):
    """Job and task of a device string (the device itself where it names neither)."""
    job, task = re.search(r"/job:([^/]+)", device), re.search(r"/task:(\d+)", device)
    return (job.group(1), int(task.group(1))) if job and task else device


def cluster_spec(signature, addresses):
    """Addresses by job and task, in the order of the workers."""
    workers = list(dict.fromkeys(worker_of(device) for device in signature["devices"]))
    if len(workers) != len(addresses):
        raise SystemExit("--cluster needs %d addresses, got %d" % (len(workers), len(addresses)))
    jobs = {}
    for (job, task), address in zip(workers, addresses):
        jobs.setdefault(job, {})[task] = address
    return workers, tf.train.ClusterSpec(jobs)


def feeds_for(signature, arrays):
    """Feeds of one step: each worker's part of a global batch, and its weight."""
    workers, feeds, shares = signature["workers"], {}, None
    for feed in signature["feeds"]:
        if feed["name"] not in arrays:
            if feed["optional"]:
                continue
            raise SystemExit("the data has no array %r" % feed["name"])
        array = arrays[feed["name"]].astype(feed["dtype"])
        parts = np.array_split(array, workers) if feed["split"] else [array] * workers
        if feed["split"]:
            if shares is not None and sum(shares) != len(array):
                raise SystemExit("array %r has %d examples, another has %d" % (feed["name"], len(array), sum(shares)))
            shares = [len(part) for part in parts]
        feeds.update(zip(feed["placeholders"], parts))
    if shares is not None:
        if min(shares) == 0 or (
            max(shares) != min(shares) and not signature["weights"] and signature["reduction"] == "mean"
        ):
            raise SystemExit("a batch of %d examples cannot be split over %d workers" % (sum(shares), workers))
        feeds.update((name, workers * share / sum(shares)) for name, share in zip(signature["weights"], shares))
    return feeds, shares


def restore(session, signature, prefix, initial):
    """Start from a checkpoint: worker 0 reads it, the others get its values."""
    feeds = {signature["restore_prefix"]: os.path.abspath(prefix)}
    first, *others = signature["restore"]
    for op in [first, *([signature["restore_unsaved"]] if initial else []), *others]:
        session.run(op, feeds)


def train(arguments):
    """Train on one global batch for some steps and print the losses."""
    addresses = arguments.cluster.split(",") if arguments.cluster else None
    graph, signature = load(in_process=addresses is None)
    config = v1.ConfigProto(allow_soft_placement=True, isolate_session_state=True)
    config.device_count["CPU"] = signature["workers"] if addresses is None else 1
    if signature["group_leader"]:
        here = "/job:localhost/replica:0/task:0"
        config.experimental.collective_group_leader = here if addresses is None else signature["group_leader"]
    target = "" if addresses is None else "grpc://" + addresses[0]
    with np.load(arguments.data) as data:
        feeds, shares = feeds_for(signature, dict(data))
    with v1.Session(target, graph=graph, config=config) as session:
        restore(session, signature, os.path.join(HERE, "initial"), initial=True)
        if arguments.restore:
            restore(session, signature, arguments.restore, initial=False)
        for step in range(1, arguments.steps + 1):
            losses, _ = session.run([signature["losses"], signature["step"]], feeds)
            losses = [float(np.sum(loss)) for loss in losses]
            loss = sum(losses) if signature["reduction"] == "sum" else float(np.average(losses, weights=shares))
            print("step %d loss %.9g" % (step, loss), flush=True)
        for op in signature["flush"]:
            session.run(op)
        if arguments.save:
            saved = {
                signature["save_prefix"]: os.path.abspath(arguments.save),
                signature["save_steps"]: arguments.steps,
            }
            session.run(signature["save"], saved)


def serve(arguments):
    """Run one worker's server until it is killed."""
    with open(os.path.join(HERE, "signature.json")) as file:
        signature = json.load(file)
    workers, spec = cluster_spec(signature, arguments.cluster.split(","))
    job, task = workers[arguments.task]
    config = v1.ConfigProto()
    config.experimental.collective_group_leader = signature["group_leader"]
    server = tf.distribute.Server(spec, job_name=job, task_index=task, protocol="grpc", config=config)
    print("serving", server.target, flush=True)
    server.join()


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    serving = commands.add_parser("serve", help="run one worker's server")
    serving.add_argument("--cluster", required=True, help="host:port of every worker, with commas")
    serving.add_argument("--task", type=int, required=True, help="which of them this is")
    serving.set_defaults(run=serve)
    training = commands.add_parser("train", help="train on one global batch")
    training.add_argument("--cluster", help="host:port of every worker; default: all in this process")
    training.add_argument("--data", required=True, help=".npz file with an array for each input")
    training.add_argument("--steps", type=int, default=1)
    training.add_argument("--restore", help="checkpoint to start from instead of the initial values")
    training.add_argument("--save", help="checkpoint to write at the end")
    training.set_defaults(run=train)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
