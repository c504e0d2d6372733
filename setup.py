from pathlib import Path

from setuptools import find_packages, setup

TEST = ["pytest>=8,<10", "pytest-xdist>=3.5,<4", "hypothesis>=6.100,<7"]
CHECK = ["ruff>=0.12,<0.18", "mypy>=1.11,<3", "import-linter>=2.5,<3"]

setup(
    name="caramel",
    version="0.1.0",
    description="Compile a single-device TensorFlow training program into one in-graph, data-parallel graph",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["caramel", "caramel.*"]),
    package_data={"caramel": ["py.typed"], "caramel.export": ["templates/*"]},
    install_requires=[
        "tensorflow>=2.20,<2.22",
        "numpy>=1.26,<3",
        "networkx>=3.2,<4",
        "scikit-learn>=1.5,<2",
        "click>=8.1,<9",
        "rich>=13.7,<16",
        "matplotlib>=3.8,<4",
    ],
    extras_require={"test": TEST, "check": CHECK, "bench": [], "dev": TEST + CHECK},
    entry_points={"console_scripts": ["caramel = caramel.cli.main:main"]},
)
