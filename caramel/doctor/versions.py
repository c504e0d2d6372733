"""Versions of Python, TensorFlow and Keras against those that the package allows."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from caramel.doctor.finding import Finding, ok, problem, warning

_DISTRIBUTION = "caramel-tf"
_PACKAGES = ("tensorflow", "keras")
_VARIANTS = ("tensorflow-cpu", "tensorflow-intel", "tf-nightly")
"""Other distributions of the package tensorflow."""


def check_versions() -> Iterator[Finding]:
    """Python, TensorFlow and Keras; nothing of them is loaded."""
    try:
        ranges = allowed_ranges()
    except metadata.PackageNotFoundError:
        yield warning(
            "versions",
            f"{_DISTRIBUTION} is not installed here, so which versions it allows is not known",
            f"pip install {_DISTRIBUTION}",
        )
        ranges = {}
    yield judged("Python", platform.python_version(), ranges.get("python"))
    for package in _PACKAGES:
        yield judged(package, _installed(package), ranges.get(package))


def allowed_ranges() -> dict[str, SpecifierSet]:
    """The versions that the package's metadata allow, of Python and of packages by name.

    Raises:
        importlib.metadata.PackageNotFoundError: the package is imported without being installed.
    """
    about = metadata.metadata(_DISTRIBUTION)
    ranges = {"python": SpecifierSet(about["Requires-Python"] or "")}
    for text in metadata.requires(_DISTRIBUTION) or ():
        requirement = Requirement(text)
        if requirement.marker is None:
            ranges[requirement.name] = requirement.specifier
    return ranges


def judged(name: str, version: str | None, allowed: SpecifierSet | None) -> Finding:
    """Whether a version is one of those allowed.

    Args:
        name: name of what has the version.
        version: its version; None if it is not installed.
        allowed: allowed versions; None if they are not known.
    """
    wanted = _shown(allowed)
    if version is None:
        return problem(name, "it is not installed", f"pip install '{name}{wanted}'")
    if allowed is None:
        return ok(name, version)
    try:
        is_allowed = allowed.contains(Version(version), prereleases=True)
    except InvalidVersion:
        is_allowed = False
    if is_allowed:
        return ok(name, f"{version} ({wanted})")
    mend = f"use Python {wanted}" if name == "Python" else f"pip install '{name}{wanted}'"
    return problem(name, f"{version}, and only {wanted} was tried", mend)


def _shown(allowed: SpecifierSet | None) -> str:
    return ",".join(sorted(map(str, allowed or ()), reverse=True))


def _installed(package: str) -> str | None:
    for name in (package, *(_VARIANTS if package == "tensorflow" else ())):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
