"""Imports follow the arrows of the design: nothing flows back."""

import ast
from pathlib import Path

import caramel

ROOT = Path(caramel.__file__).parent

# Each module may import only from its own layer's modules listed before it, and from lower layers.
LAYERS = [
    ["errors", "checks", "units", "tables", "writing", "records"],
    [
        "graph.bulk",
        "graph.graph",
        "graph.shapes",
        "graph.guards",
        "graph.fusion",
        "graph.devices",
        "graph.ops",
        "graph.nodes",
        "graph.functions",
        "graph.dynamic",
        "graph.verify",
    ],
    ["model", "signature"],
    ["data"],
    ["frontend"],
    [
        "collectives.dtypes",
        "collectives.schedule",
        "collectives.algorithms",
        "collectives.lower",
        "collectives.native",
        "collectives.emit",
        "collectives.sparse",
    ],
    ["netmodel"],
    ["allreduce"],
    ["facts", "tracefile", "makespan"],
    ["simulator"],
    ["plan"],
    [
        "analyzers.wellformed",
        "analyzers.analyzer",
        "analyzers.network",
        "analyzers.simulated",
        "analyzers.bounds",
        "analyzers.postponement",
        "analyzers.dependencies",
        "analyzers.order",
        "analyzers.unmeasured",
        "analyzers.serialization",
        "analyzers.slices",
        "analyzers.boundaries",
        "analyzers.batching",
        "analyzers.items",
        "analyzers.packing",
        "analyzers.windows",
        "analyzers.cover",
        "analyzers.fill",
        "analyzers.problem",
        "analyzers.written",
        "analyzers.optimal",
        "analyzers.best",
        "analyzers.ordering",
        "analyzers.transfers",
        "analyzers.prediction",
        "analyzers.validity",
        "analyzers.automatic",
        "analyzers.names",
    ],
    ["modifiers"],
    ["decide"],
    ["armodel", "computation"],
    ["runtime"],
    ["training"],
    ["export", "fit", "timing"],
    ["stepstats", "contention", "netbench", "traced", "tracing"],
    ["program"],
    ["planning"],
    ["cli"],
]


def layer_of(module):
    for number, names in enumerate(LAYERS):
        if any(module == n or module.startswith(n + ".") for n in names):
            return number
    return None


def top_level_imports(path):
    """Modules of this package that are imported when the module is, type checking apart."""
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("caramel."):
            yield node.module.removeprefix("caramel.")
        if isinstance(node, ast.ImportFrom) and node.module == "caramel.graph":
            yield from (f"graph.{alias.name}" for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module == "caramel.frontend":
            yield from (f"frontend.{alias.name}" for alias in node.names)


def test_nothing_flows_back():
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        if relative.parts[0] == "templates" or path.name == "__init__.py":
            continue
        module = ".".join(relative.with_suffix("").parts)
        here = layer_of(module)
        assert here is not None, f"{module} belongs to no layer: add it to this test"
        for imported in top_level_imports(path):
            there = layer_of(imported)
            if there is not None and there > here:
                wrong.append(f"{module} imports {imported}")
    assert not wrong
