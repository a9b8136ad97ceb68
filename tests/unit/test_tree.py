"""The tests mirror the source tree, so that the tests of a module are easy to find."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

UNIT = Path(__file__).parent
SOURCE = UNIT.parents[1] / "src" / "spreeze"


def imported_packages(path: Path) -> set[str]:
    """The packages of spreeze that a test imports."""
    modules = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in modules if name.startswith("spreeze.")}


@pytest.mark.parametrize("path", sorted(UNIT.glob("*/test_*.py")), ids=lambda path: path.name)
def test_a_test_is_in_the_folder_of_a_package_that_it_tests(path: Path) -> None:
    package = path.parent.name
    assert (SOURCE / package / "__init__.py").exists(), f"spreeze has no package {package}"
    assert package in imported_packages(path), f"it imports nothing from spreeze.{package}"
