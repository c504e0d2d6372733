"""Shared by all tests: quiet TensorFlow, and one thread inside an op.

TensorFlow has one pool of such threads for all sessions of a process, as large as the first session
asks for. Results that are compared bit for bit need the same number in every process, so tests fix it here.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
