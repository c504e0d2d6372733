"""The long description: README.md with links and images that work elsewhere, too. All else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

REPOSITORY = "https://github.com/caramel-tf/caramel"

readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
readme = re.sub(r"\]\((docs/images/[^)]+)\)", rf"]({REPOSITORY}/raw/main/\1)", readme)
readme = re.sub(r"\]\((?![a-z]+:|#)([^)]+)\)", rf"]({REPOSITORY}/blob/main/\1)", readme)
setup(long_description=readme, long_description_content_type="text/markdown")
