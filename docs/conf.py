"""Settings of the documentation: `make docs` builds it with Sphinx, and every warning is an error.

Pages are Markdown (MyST). The reference of names comes from the docstrings (autodoc, Google style), that of commands from
the command itself (sphinx-click), so neither can say something else than the code.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault(
    "TF_CPP_MIN_LOG_LEVEL", "3"
)  # autodoc imports TensorFlow, whose start-up messages say nothing here
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import caramel  # noqa: E402

project = "Caramel"
author = "The Caramel authors"
copyright = author
release = version = caramel.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
html_theme = "furo"
html_title = f"Caramel {release}"
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # links such as clusters.md#slurm-and-kubernetes

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
default_role = "code"  # single backticks in docstrings

nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!caramel).*")
]  # names of Python, NumPy and TensorFlow, which are documented elsewhere
