"""No function over 60 lines, no module over 300; GPU kernels are exempt. Ruff checks parameters and complexity."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "spreeze"
FUNCTION_LINES, MODULE_LINES = 60, 300
KERNELS = {SOURCE / "networks" / "kernels.py", SOURCE / "networks" / "fused.py"}


def too_long(path: Path) -> list[str]:
    """A message for the module and for each of its functions that is over the limit."""
    text, name = path.read_text(), path.relative_to(SOURCE.parent)
    out = []
    if (lines := len(text.splitlines())) > MODULE_LINES:
        out.append(f"{name}:1: the module has {lines} lines, at most {MODULE_LINES} are allowed")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            if (lines := node.end_lineno - node.lineno + 1) > FUNCTION_LINES:
                at = f"{name}:{node.lineno}: {node.name}"
                out.append(f"{at} has {lines} lines, at most {FUNCTION_LINES} are allowed")
    return out


def test_functions_and_modules_are_short() -> None:
    files = set(SOURCE.rglob("*.py")) - KERNELS
    assert len(files) > 100, "the sources are where they are looked for"
    problems = [message for path in sorted(files) for message in too_long(path)]
    assert not problems, "\n" + "\n".join(problems)
