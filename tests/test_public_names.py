"""What users import: it is there whatever was imported before, and the documents import nothing else."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import types
from pathlib import Path

import pytest

import caramel

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("caramel", "caramel.analyzers", "caramel.collectives", "caramel.netmodel")
"""Those that import their public names when these are first used."""

PUBLIC = {*PACKAGES, "caramel.facts", "caramel.simulator"}


@pytest.fixture(scope="module", autouse=True)
def _everything_imported():
    """As where somebody has imported each module before."""
    for module in pkgutil.walk_packages(caramel.__path__, "caramel."):
        if module.name != "caramel.__main__":  # the command itself
            importlib.import_module(module.name)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_what_its_module_defines(package):
    module = importlib.import_module(package)
    for name in module.__all__:
        value = getattr(module, name)
        assert not isinstance(value, types.ModuleType), f"a module hides {package}.{name}"
        place = module._PLACES.get(name)
        if place is not None:
            assert value is getattr(importlib.import_module(f"{package}.{place}"), name)
    assert set(module._PLACES) <= set(module.__all__) == set(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_same_names(package):
    module = importlib.import_module(package)
    (block,) = [node for node in ast.parse(Path(module.__file__).read_text()).body if isinstance(node, ast.If)]
    seen = {alias.name: node.module.removeprefix(f"{package}.") for node in block.body for alias in node.names}
    assert seen == dict(module._PLACES)


def test_every_public_function_can_be_called():
    functions = [getattr(caramel, name) for name in caramel.__all__ if inspect.isroutine(getattr(caramel, name))]
    assert {caramel.capture, caramel.fit, caramel.trace} <= set(functions)
    for function in functions:
        try:
            function(no_such_argument=None)
        except (TypeError, caramel.CaramelError) as error:
            assert "module" not in str(error), error
        else:
            raise AssertionError(f"{function} took an argument that it does not have")


def test_every_public_name_has_an_example():
    without = [
        name
        for name in caramel.__all__
        if not (isinstance(getattr(caramel, name), type) and issubclass(getattr(caramel, name), Exception))
        and ">>>" not in (getattr(caramel, name).__doc__ or "")
    ]
    assert not without


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'caramel.netmodel' has no attribute 'Nothing'"):
        importlib.import_module("caramel.netmodel").Nothing  # noqa: B018


IMPORTS = re.compile(r"^(?:>>> |\.\.\. | *)(?:from (caramel[\w.]*) import|import (caramel[\w.]*))", re.MULTILINE)
MENTIONED = re.compile(r"`(caramel(?:\.\w+)+)")


def documents():
    """What users read."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]


def test_documents_import_what_is_public():
    found = {
        (file.name, name)
        for file in documents()
        for match in IMPORTS.findall(file.read_text())
        for name in match
        if name and name not in PUBLIC
    }
    assert not found


def test_documents_mention_what_there_is():
    wrong = []
    for file in documents():
        for name in MENTIONED.findall(file.read_text()):
            parts = name.split(".")
            package = max((p for p in PUBLIC if name == p or name.startswith(f"{p}.")), key=len)
            value = importlib.import_module(package)
            for part in parts[package.count(".") + 1 :]:
                if not hasattr(value, part):
                    wrong.append((file.name, name))
                    break
                value = getattr(value, part)
    assert not wrong


@pytest.mark.parametrize("package", sorted(PUBLIC))
def test_no_public_class_or_function_takes_what_is_private(package):
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", dir(module)):
        value = getattr(module, name)
        if inspect.isfunction(value) or (inspect.isclass(value) and dataclasses.is_dataclass(value)):
            private = [each for each in inspect.signature(value).parameters if each.startswith("_")]
            assert not private, f"{package}.{name} takes {private}"
