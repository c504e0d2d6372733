"""The long description: README.md with images that are shown elsewhere, too. All else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

IMAGES = "https://github.com/caramel-tf/caramel/raw/main/docs/"

readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
setup(
    long_description=re.sub(r"\]\(docs/(images/[^)]+)\)", rf"]({IMAGES}\1)", readme),
    long_description_content_type="text/markdown",
)
