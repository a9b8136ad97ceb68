"""The tests mirror the source tree, so that the tests of a package are easy to find."""

from __future__ import annotations

from pathlib import Path

UNIT = Path(__file__).parent
SOURCE = UNIT.parents[1] / "src" / "spreeze"


def test_unit_tests_are_in_folders_named_after_packages() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    folders = {path.parent.name for path in UNIT.glob("*/test_*.py")}
    assert folders <= packages
