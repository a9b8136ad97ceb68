"""Reads the texts that stand below the fields of a class, as tyro does for `--help`."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any


def field_texts(kind: type[Any]) -> dict[str, str]:
    """The text below each public field or attribute that has one, also below those that `__init__` sets."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    inits = (x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name == "__init__")
    bodies = [tree.body, *(x.body for x in inits)]
    return {name: text for body in bodies for name, text in _pairs(body) if name[0] != "_"}


def _pairs(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Assignments that a text follows."""
    for assigned, below in pairwise(body):
        if not isinstance(assigned, ast.Assign | ast.AnnAssign):
            continue
        target = assigned.targets[0] if isinstance(assigned, ast.Assign) else assigned.target
        name = getattr(target, "id", None) or getattr(target, "attr", None)
        if name and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield name, " ".join(str(below.value.value).split())
