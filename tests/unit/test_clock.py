"""The wall clock may jump, so durations, limits and rates are measured with the monotonic one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import spreeze

SOURCE = Path(spreeze.__file__).parent
STAMPS = {"store/tensorboard.py"}
"""Modules that write the time of day into a file for people to read."""


@pytest.mark.fault("F72")
def test_only_stamps_read_the_wall_clock() -> None:
    readers = set()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                "time.time",
                "time.time_ns",
            ):
                readers.add(str(file.relative_to(SOURCE)))
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                readers |= {f"{file}: {a.name}" for a in node.names if a.name.startswith("time")}
    assert readers == STAMPS
