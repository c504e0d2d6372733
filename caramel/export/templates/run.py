"""Run an exported training program with TensorFlow alone: see README.md beside this file."""

import argparse
import contextlib
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
import zipfile
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
NEEDED = {"graph.pb", "initial.index", "plan.json", "signature.json"}
FOR_READERS = {"README.md", "run.py"}  # these may be changed
MOST_BYTES = 200000000  # of a JSON file: more is none of an export
STEPS_KEY = "caramel/steps"  # in a checkpoint: the number of steps
OLD = ".before-save"  # end of the name of the checkpoint that a save replaces: none that a user would give


def check_files(only=None):
    """Compare the files beside this one with the digests in export.json; ends the program if one is damaged."""
    try:
        content = read_json("export.json")
        files = {name: (facts["size_bytes"], facts["sha256"]) for name, facts in content["files"].items()}
        if content["kind"] != "caramel export" or content["version"] != 1 or not files.keys() >= NEEDED:
            raise ValueError("it says nothing of an export")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged("export.json", getattr(error, "strerror", None) or error) from error
    for name, facts in sorted(files.items()):
        if name not in FOR_READERS and only in (None, name):
            try:
                found = facts_of(os.path.join(HERE, name))
            except (OSError, ValueError) as error:
                raise damaged(name, getattr(error, "strerror", None) or error) from error
            if found != facts:
                raise damaged(name, "it has another content than was exported")


def read_json(name):
    """What is in a JSON file beside this one."""
    path = os.path.join(HERE, name)
    if os.path.getsize(path) > MOST_BYTES:
        raise ValueError("it has %d bytes, at most %d make sense" % (os.path.getsize(path), MOST_BYTES))
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def facts_of(path):
    """Size and digest of a file."""
    size, digest = 0, hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            block = file.read(1 << 20)
            if not block:
                return size, digest.hexdigest()
            size += len(block)
            digest.update(block)


def damaged(name, why):
    """The error for a file of the export."""
    text = "this export is damaged: %s: %s. Copy the export again, or export it again" % (name, why)
    return SystemExit(text.replace("\n", " "))


if __name__ == "__main__":  # before TensorFlow is loaded, which takes seconds; a server needs the signature only
    check_files("signature.json" if sys.argv[1:2] == ["serve"] else None)

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

v1 = tf.compat.v1
TF_CONFIG = "tf-config"
TF_CONFIG_EXAMPLE = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'


def load(in_process):
    """The graph and its signature; workers become virtual CPUs if they all run in this process."""
    signature = read_json("signature.json")
    graph_def = v1.GraphDef()
    with open(os.path.join(HERE, "graph.pb"), "rb") as file:
        graph_def.ParseFromString(file.read())
    if in_process:
        places = virtual_cpus(signature)
        for node in graph_def.node:
            if node.device:
                own = places.get(node.device)
                node.device = places.get(worker_of(node.device), "/device:CPU:0") if own is None else own
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    return graph, signature


def worker_of(device):
    """Job and task of a device string (the device itself where it names neither)."""
    job, task = re.search(r"/job:([^/]+)", device), re.search(r"/task:(\d+)", device)
    return (job.group(1), int(task.group(1))) if job and task else device


def virtual_cpus(signature):
    """A virtual CPU of this process for each worker's device, and for whatever else is in a worker's process."""
    places = {}
    for number, device in enumerate(all_devices(signature)):
        places[device] = "/device:CPU:%d" % number
        places.setdefault(worker_of(device), places[device])
    return places


def all_devices(signature):
    """The device of each worker, and of each parameter server."""
    return [*signature["devices"], *signature["servers"]]


def cpu_devices(signature, worker):
    """How many CPU devices a server needs for the workers in it."""
    named = [re.search(r"/device:CPU:(\d+)", d) for d in all_devices(signature) if worker_of(d) == worker]
    return 1 + max(int(found.group(1)) if found else 0 for found in named)


def cluster_spec(signature, addresses):
    """Addresses by job and task, in the order of the workers; several workers may be in one task."""
    workers = list(dict.fromkeys(worker_of(device) for device in all_devices(signature)))
    if len(workers) != len(addresses):
        raise SystemExit("the cluster needs %d addresses, got %d" % (len(workers), len(addresses)))
    jobs = {}
    for (job, task), address in zip(workers, addresses):
        jobs.setdefault(job, {})[task] = address
    return workers, tf.train.ClusterSpec(jobs)


def members(signature, cluster, task):
    """Addresses of the cluster's servers, and which of them is this process's (None if none is)."""
    if cluster != TF_CONFIG:
        return cluster.split(","), task
    if task is not None:
        raise SystemExit("--task belongs to --cluster HOST:PORT,...; TF_CONFIG says the task itself")
    workers = {worker_of(device) for device in signature["devices"]}
    others = {worker_of(device) for device in signature["servers"]} - workers
    return from_tf_config(os.environ.get("TF_CONFIG", ""), len(others))


def from_tf_config(text, servers):
    """The members that TF_CONFIG names: the chief in front, then the workers, then so many parameter servers."""
    try:
        config = json.loads(text)
        jobs, task = config["cluster"], config.get("task") or {}
        tasks = {job: in_order(found) for job, found in jobs.items()}
        workers = [address for job in ("chief", "master", "worker") for address in tasks.get(job, ())]
        addresses = [*workers, *tasks.get("ps", ())[:servers]]
        job, index = task.get("type"), int(task.get("index", 0))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise SystemExit("TF_CONFIG is not set, or not as in %s (%r)" % (TF_CONFIG_EXAMPLE, error)) from error
    unknown = sorted(set(tasks) - {"chief", "master", "worker", "ps", "evaluator"})
    chiefs = len(workers) - len(tasks.get("worker", ()))
    if unknown or chiefs > 1 or not workers or len(set(addresses)) < len(addresses):
        raise SystemExit("TF_CONFIG needs workers, at most one chief and no other job, each address once: %s" % text)
    if job is None:
        return addresses, None
    if job == "evaluator" or (job == "ps" and index >= servers):
        raise SystemExit("TF_CONFIG makes this process a %s, which takes no part: start nothing here" % job)
    if not 0 <= index < len(tasks.get(job, ())):
        raise SystemExit("TF_CONFIG makes this process task %d of job %r, which is not in it: %s" % (index, job, text))
    return addresses, index + {"worker": chiefs, "ps": len(workers)}.get(job, 0)


def in_order(found):
    """The addresses of a job's tasks, from a list or an object by task number."""
    addresses = [found[str(number)] for number in range(len(found))] if isinstance(found, dict) else found
    if not isinstance(addresses, list) or any(":" not in address for address in addresses):
        raise ValueError("%r is no list of addresses host:port" % (found,))
    return addresses


def is_listening(address):
    """Whether a server runs there."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), 2.0):
            return True
    except OSError:
        return False


def started_server(signature, addresses, task):
    """The server of one task."""
    workers, spec = cluster_spec(signature, addresses)
    if not 0 <= task < len(workers):
        raise SystemExit("--task must be between 0 and %d, got %d" % (len(workers) - 1, task))
    job, number = workers[task]
    config = v1.ConfigProto(device_count={"CPU": cpu_devices(signature, (job, number))})
    config.experimental.collective_group_leader = signature["group_leader"]
    return tf.distribute.Server(spec, job_name=job, task_index=number, protocol="grpc", config=config)


def check_dealing(signature, rows, cut_by_worker=False):
    """End the program if a step that cuts its batch into micro-batches cannot do so with so many rows."""
    count, leaves, wanted = (signature["dealing"][key] for key in ("micro_batches", "leaves_remainder", "rows"))
    if wanted is not None and rows != wanted:
        raise SystemExit("a batch has %d examples: the step takes rows by their numbers, of %d" % (rows, wanted))
    if count > 1 and (rows < count or (rows % count and (cut_by_worker or not leaves))):
        raise SystemExit("a batch of %d examples cannot be cut into %d micro-batches of one size" % (rows, count))


def dealt(array, workers, micro_batches):
    """Each worker's part of an array: its part of each micro-batch, one after the other."""
    size = len(array) // micro_batches
    cut = [np.array_split(array[size * i : size * (i + 1)], workers) for i in range(micro_batches)]
    return [np.concatenate([parts[rank] for parts in cut]) for rank in range(workers)]


def feeds_for(signature, arrays):
    """Feeds of one step: each worker's part of a global batch; and the parts' sizes, if there are any."""
    workers, feeds, shares, rows = signature["workers"], {}, None, None
    for feed in signature["feeds"]:
        if feed["name"] not in arrays:
            if feed["optional"]:
                continue
            raise SystemExit("the data has no array %r: --data FILE.npz has one of each input" % feed["name"])
        array = arrays[feed["name"]].astype(tf.as_dtype(feed["dtype"]).as_numpy_dtype)
        parts = [array] * workers
        if feed["split"]:
            check_dealing(signature, len(array))
            micro_batches = signature["dealing"]["micro_batches"]
            parts = dealt(array, workers, micro_batches)
            rows = len(array) if rows is None else rows
            if len(array) != rows and workers > 1:
                raise SystemExit("array %r has %d examples, another has %d" % (feed["name"], len(array), rows))
            shares = shares or [len(part) for part in parts]
            parts = [part if len(part) else array[:micro_batches] for part in parts]  # of the weight 0
        feeds.update(zip(feed["placeholders"], parts))
    if shares is not None and sum(shares) == 0:
        raise SystemExit("a batch needs at least one example")
    return feeds, shares


def weights_for(workers, shares, reduction):
    """What each worker's value counts, 1 on average (in a sum: 0 without examples)."""
    if not shares or sum(shares) == 0:
        return [1.0] * workers
    if reduction == "sum":
        return [float(share > 0) for share in shares]
    return [workers * share / sum(shares) for share in shares]


def weight_feeds(signature, shares):
    """The feeds that say what each worker's gradients count."""
    weights = weights_for(signature["workers"], shares, signature["reduction"])
    if any(weight != 1 for weight in weights) and not signature["weights"]:
        raise SystemExit("a batch of %d examples cannot be split over %d workers" % (sum(shares), signature["workers"]))
    return dict(zip(signature["weights"], weights))


def loss_of(signature, losses, shares):
    """The loss of the whole batch."""
    weights = weights_for(signature["workers"], shares, signature["reported"])
    losses = [weight * float(np.sum(np.real(loss))) for weight, loss in zip(weights, losses) if weight]
    return sum(losses) / (1 if signature["reported"] == "sum" else len(weights))


class WorkerData:
    """The workers' own input pipelines; what their parts are for, the signature's keys say."""

    def __init__(self, session, signature, restore_from):
        self.session, self.signature, self.data = session, signature, signature["data"]
        self.seed, self.passes, self.taken, self.going = 1 + secrets.randbelow(2**62), 0, 0, False
        self.built = self.replay = False
        session.run([self.data["clear"], self.data["forget"]])
        position = self.position(restore_from) if restore_from else None
        if position is not None:
            self.seed, passes, taken, going = *position[:3], position[3] > 0
            draws = not self.data["anew"] and self.data["draws"] != "never"
            if going and self.data["resumes"]:
                self.passes = passes - 1
                self.begin()
                session.run(self.data["restore"], {signature["restore_prefix"]: os.path.abspath(restore_from)})
                self.taken, self.replay = taken, draws
            else:
                self.passes = passes - going
                self.replay = self.passes > 0 and draws
                if going:
                    self.begin(taken)

    def position(self, prefix):
        """Where a checkpoint's data was, if it is that of these pipelines."""
        reader = read(prefix)
        if reader.has_tensor(self.data["position_key"]):
            position = [int(number) for number in reader.get_tensor(self.data["position_key"])]
            same = reader.get_tensor(self.data["digest_key"]).decode() == self.data["digest"]
            fits = same and position[5] == self.signature["workers"]
            if not position[3] or (fits and position[4] == self.data["resumes"]):
                return position
        print("the data starts from its beginning", flush=True)
        return None

    def begin(self, skip=0):
        """Begin a pass, at some element; after a restore, seeds are first drawn as for the passes before it."""
        if self.replay:
            passes, self.passes, self.built, self.replay = self.passes, 0, False, False
            for _ in range(passes):
                self.begin()
                if self.data["draws"] == "often":
                    self.session.run(self.data["advance"], dict.fromkeys(self.data["start"], 2**62))
        if self.data["anew"] or not self.built:
            seed = self.seed + (self.passes if self.data["anew"] else 0)
            self.session.run(self.data["build"], dict.fromkeys(self.data["seed"], seed))
        self.session.run(self.data["begin"], dict.fromkeys(self.data["skip"], skip))
        self.built, self.passes, self.taken, self.going = True, self.passes + 1, skip, True

    def shares(self):
        """Take the next elements: the number of examples of each worker."""
        for _ in range(2):
            if not self.going:
                self.begin()
            counts, _ = self.session.run([self.data["counts"], self.data["advance"]])
            indices = [int(count[0]) for count in counts]
            self.going = max(indices) >= 0
            if self.going:
                if self.data["sharding"] != "own" and len(set(indices)) > 1:
                    raise SystemExit("the workers read different data: elements %s" % indices)
                self.taken = max(indices) + (len(counts) if self.data["sharding"] == "batches" else 1)
                for count in counts:
                    if count[0] >= 0 and len(count) > 2:
                        check_dealing(self.signature, int(count[2]), self.data["sharding"] != "slice")
                return [int(count[1]) for count in counts]
        raise SystemExit("the dataset is empty")

    def saved(self):
        """Put down the position for `save`; what to feed to it. Between passes there is none."""
        has_state = self.going and self.data["resumes"]
        if has_state:
            self.session.run(self.data["snapshot"])
        numbers = [self.seed, self.passes, self.taken, self.going, has_state, self.signature["workers"]]
        return {self.data["position"]: np.array(numbers, np.int64)}


def read(prefix):
    """A reader for a checkpoint."""
    try:
        return tf.train.load_checkpoint(prefix)
    except (tf.errors.OpError, RuntimeError, ValueError, IndexError) as error:
        raise SystemExit("checkpoint %r is damaged: %s" % (prefix, in_one_line(error))) from error


def restore(session, signature, prefix, initial):
    """Start from a checkpoint: worker 0 reads it, the others get its values. Returns the number of steps in it."""
    feeds = {signature["restore_prefix"]: os.path.abspath(prefix)}
    first, *others = signature["restore"]
    load = [signature["data"]["load"]] if initial and signature["data"] else []
    reader = read(prefix)
    # What is local to each worker: a checkpoint of another number of workers has other keys, and is of no use.
    kept = {key for key in reader.get_variable_to_shape_map() if key.startswith("caramel/worker_")}
    local = [signature["restore_local"]] if kept and kept == set(signature["local_keys"]) else []
    # The momentum of exchanges is the same on all workers, so of any number of them.
    momentum = {*signature["momentum_keys"]}
    if momentum and momentum <= reader.get_variable_to_shape_map().keys():
        local.append(signature["restore_momentum"])
    for op in [first, *([signature["restore_unsaved"]] if initial else []), *others, *load, *local]:
        try:
            session.run(op, feeds)
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
            raise SystemExit("checkpoint %r cannot be restored: %s" % (prefix, in_one_line(error))) from error
    # The program's own counter may leave out steps: it says how many they were where one device has saved.
    keys = [key for key in (STEPS_KEY, signature["steps_key"]) if reader.has_tensor(key)]
    return int(reader.get_tensor(keys[0])) if keys else 0


def arrays_in(path):
    """The arrays of an .npz file."""
    try:
        with np.load(path) as data:
            return dict(data)
    except (OSError, ValueError, TypeError, AttributeError, EOFError, NotImplementedError) as error:
        raise SystemExit("%r is no .npz file with arrays: %s" % (path, in_one_line(error))) from error
    except (zipfile.BadZipFile, zlib.error) as error:
        raise SystemExit("%r is damaged: %s" % (path, in_one_line(error))) from error


def in_one_line(error):
    """What an error says."""
    return " ".join(str(getattr(error, "message", error)).split()) or type(error).__name__


def check_paths(arguments):
    """Refuse what cannot be read or written before any training."""
    for path in (arguments.restore, arguments.save):
        if path and re.match("[A-Za-z][A-Za-z0-9+.-]+:/", path):
            raise SystemExit("%r is an address, not a path of this machine: name files, or mount it" % path)
    if arguments.restore and not os.path.isfile(arguments.restore + ".index"):
        raise SystemExit(
            "there is no checkpoint at %r: it has no .index file%s" % (arguments.restore, hint(arguments.restore))
        )
    if arguments.save and not os.access(os.path.dirname(os.path.abspath(arguments.save)), os.W_OK):
        raise SystemExit("%r cannot be written: there is no such directory, or it is not yours" % arguments.save)


@contextlib.contextmanager
def readable(prefix):
    """A prefix under which TensorFlow can read a checkpoint: it takes brackets in a path for a pattern."""
    prefix = os.path.abspath(prefix)
    if "\\" not in prefix and glob.escape(prefix) == prefix:
        yield prefix
        return
    with tempfile.TemporaryDirectory() as directory:
        alias = os.path.join(directory, "checkpoint")
        for part in glob.glob(glob.escape(prefix) + ".*"):
            os.symlink(part, alias + part[len(prefix) :])
        try:
            yield alias
        except SystemExit as error:
            raise SystemExit(str(error.code).replace(alias, prefix)) from error


@contextlib.contextmanager
def kept(prefix):
    """Keep the checkpoint of this name until the new one is there: TensorFlow replaces its files one by one."""
    if is_whole(prefix):  # otherwise a save was interrupted, and the one before it is still there
        remove(prefix + OLD)
        # The index comes last: without it, there is no checkpoint.
        for part in sorted(parts_of(prefix), key=lambda path: path.endswith(".index")):
            old = prefix + OLD + part[len(prefix) :]
            try:
                os.link(part, old)
            except OSError:  # not on this file system
                shutil.copyfile(part, old)
    yield
    if is_whole(prefix):
        remove(prefix + OLD)


def parts_of(prefix):
    """The files of a checkpoint."""
    found = glob.glob(glob.escape(prefix) + ".data-*-of-*")
    return [*found, *([prefix + ".index"] if os.path.isfile(prefix + ".index") else [])]


def remove(prefix):
    """Remove a checkpoint, its index first."""
    for part in sorted(parts_of(prefix), key=lambda path: not path.endswith(".index")):
        os.remove(part)


def is_whole(prefix):
    """Whether there is a checkpoint all of which can be read; its values have checksums."""
    if not os.path.isfile(prefix + ".index"):
        return False
    try:
        with readable(prefix) as name:
            reader = read(name)
            for key in reader.get_variable_to_shape_map():
                reader.get_tensor(key)
    except (SystemExit, tf.errors.OpError, RuntimeError, ValueError, IndexError):
        return False
    return True


def hint(prefix):
    """Where the checkpoint before an interrupted save is."""
    old = prefix + OLD
    return "; a save was interrupted, and the checkpoint before it is %r" % old if is_whole(old) else ""


def train(arguments):
    """Train for some steps and print the losses."""
    check_paths(arguments)
    cluster = arguments.cluster
    addresses, task = members(read_json("signature.json"), cluster, None) if cluster else (None, None)
    if task:
        raise SystemExit("TF_CONFIG makes this process task %d: train on the first worker, and serve here" % task)
    graph, signature = load(in_process=addresses is None)
    config = v1.ConfigProto(allow_soft_placement=True, isolate_session_state=True)
    config.device_count["CPU"] = signature["workers"] if addresses is None else 1
    if signature["group_leader"]:
        here = "/job:localhost/replica:0/task:0"
        config.experimental.collective_group_leader = here if addresses is None else signature["group_leader"]
    target = "" if addresses is None else "grpc://" + addresses[0]
    server = None
    if task == 0 and not is_listening(addresses[0]):
        server = started_server(signature, addresses, task)  # its own, for as long as it trains
        target = server.target
    fed, shares = feeds_for(signature, arrays_in(arguments.data) if arguments.data else {})
    with contextlib.ExitStack() as stack:
        initial = stack.enter_context(readable(os.path.join(HERE, "initial")))
        start = stack.enter_context(readable(arguments.restore)) if arguments.restore else None
        session = stack.enter_context(v1.Session(target, graph=graph, config=config))
        done = restore(session, signature, initial, initial=True)
        if start:
            try:
                done = restore(session, signature, start, initial=False)
            except SystemExit as error:
                raise SystemExit(str(error.code) + hint(arguments.restore)) from error
        data = WorkerData(session, signature, start) if signature["data"] else None
        for step in range(1, arguments.steps + 1):
            if data is not None:
                shares = data.shares()
            feeds = {**fed, **weight_feeds(signature, shares)}
            losses, _ = session.run([signature["losses"], signature["step"]], feeds)
            loss = loss_of(signature, losses, shares)
            print("step %d loss %.9g" % (step, loss), flush=True)
            if signature["sync_every"] and step % signature["sync_every"] == 0 and step < arguments.steps:
                session.run(signature["flush"])
        for op in signature["flush"]:
            session.run(op)
        if arguments.save:
            saved = {
                signature["save_prefix"]: os.path.abspath(arguments.save),
                signature["save_steps"]: done + arguments.steps,
                **({} if data is None else data.saved()),
            }
            with kept(arguments.save):
                session.run(signature["save"], saved)


def serve(arguments):
    """Run one worker's server until it is killed."""
    signature = read_json("signature.json")
    addresses, task = members(signature, arguments.cluster, arguments.task)
    if task is None:
        raise SystemExit("say which server this is: --task, or a task in TF_CONFIG")
    server = started_server(signature, addresses, task)
    print("serving", server.target, flush=True)
    server.join()


def main():
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    serving = commands.add_parser("serve", help="run one worker's server")
    serving.add_argument("--cluster", required=True, help="host:port of every server, with commas; or tf-config")
    serving.add_argument("--task", type=int, help="which of them this is; TF_CONFIG says it itself")
    serving.set_defaults(run=serve)
    training = commands.add_parser("train", help="train on the workers' datasets, or on one global batch")
    training.add_argument("--cluster", help="as for serve; default: all in this process")
    training.add_argument("--data", help=".npz file with an array for each input that is fed")
    training.add_argument("--steps", type=int, default=1)
    training.add_argument("--restore", help="checkpoint to start from instead of the initial values")
    training.add_argument("--save", help="checkpoint to write at the end")
    training.set_defaults(run=train)
    arguments = parser.parse_args()
    if getattr(arguments, "steps", 0) < 0:
        parser.error("--steps must be 0 or more")
    try:
        arguments.run(arguments)
    except (tf.errors.OpError, OSError, ValueError, TypeError) as error:
        raise SystemExit(in_one_line(error)) from error


if __name__ == "__main__":
    main()
