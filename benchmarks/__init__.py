"""Benchmarks: what is measured, and what it is compared with."""

import os

# Before anything imports numpy or TensorFlow: a process that has threads cannot enter a user namespace.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
