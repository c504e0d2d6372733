"""Training steps of this library and of its peers, on hosts with shaped links: ``python -m benchmarks.training``.

What runs in the peers' processes (`layers`, `workloads`, `steps`, `worker`) imports nothing of this library but what
needs no other package: Horovod has a Python environment of its own, with an older TensorFlow.
"""
