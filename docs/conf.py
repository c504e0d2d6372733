"""Settings of the documentation. `make docs` builds it with Sphinx; every warning is an error.

Pages are Markdown (MyST). Docstrings give the reference of names (autodoc), the command gives that of commands
(sphinx-click), so that neither says something else than the code.
"""

import os
import re
import sys
from pathlib import Path

os.environ.setdefault(
    "TF_CPP_MIN_LOG_LEVEL", "3"
)  # autodoc imports TensorFlow, whose start-up messages say nothing here
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import caramel

project = "Caramel"
author = "The Caramel authors"
copyright = author
release = version = caramel.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
smartquotes = False  # two hyphens of an option stay two
html_theme = "furo"
html_title = f"Caramel {release}"
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # links such as clusters.md#slurm-and-kubernetes

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
napoleon_custom_sections = ["Source"]
default_role = "code"  # single backticks in docstrings

nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!caramel).*"),  # of Python, NumPy and TensorFlow, which are documented elsewhere
    # Not public: users get such objects, and make none.
    (
        "py:class",
        r"caramel\.(collectives|compiler|data|frontend|measure|model|modifiers|netmodel|report|runtime|server_plan|tuning)\..*",
    ),
]

REPOSITORY = "https://github.com/caramel-tf/caramel/blob/main"


def _out_of_docs(app, docname, source):
    """Let links out of this directory, such as ../CONTRIBUTING.md, lead to the repository."""
    ups = docname.count("/") + 1
    source[0] = re.sub(rf"\]\((?:\.\./){{{ups}}}(?!\.\./)", f"]({REPOSITORY}/", source[0])


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", _out_of_docs)
