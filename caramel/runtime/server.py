"""One worker: a TensorFlow server that lives as long as the launcher that started it."""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    """``python -m caramel.runtime.server JSON``"""
    settings = json.loads(sys.argv[1])
    import tensorflow as tf

    jobs = {job: {int(task): address for task, address in tasks.items()} for job, tasks in settings["jobs"].items()}
    server = tf.distribute.Server(
        tf.train.ClusterSpec(jobs),
        job_name=settings["job"],
        task_index=settings["task"],
        config=tf.compat.v1.ConfigProto.FromString(bytes.fromhex(settings["config"])),
        protocol="grpc",
    )
    sys.stdout.write(f"caramel server ready at {server.target}\n")
    sys.stdout.flush()
    while os.getppid() == settings["parent"]:
        time.sleep(0.5)
    os._exit(0)


if __name__ == "__main__":
    main()
