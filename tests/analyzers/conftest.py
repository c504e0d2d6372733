"""Makes what the tests of analyzers share importable: under --import-mode=importlib no directory is on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
