"""What is public: names that exist, cost nothing until they are used, and are all that examples need."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import spreeze
from spreeze.settings.config import Config, knob_names

ROOT = Path(__file__).parents[3]
MODULES = {"spreeze", "spreeze.algos", "spreeze.networks", "spreeze.testing"}
NO_KNOBS = {"callbacks", "env_kwargs", "knobs", "quiet"}
"""Arguments of `train` that are not knobs of the same name."""


@pytest.mark.parametrize("module", sorted(MODULES))
def test_every_public_name_exists(module: str) -> None:
    found = importlib.import_module(module)
    assert found.__all__ == sorted(found.__all__)
    assert all(getattr(found, name, None) is not None for name in found.__all__)


def test_other_names_do_not() -> None:
    assert dir(spreeze) == sorted(spreeze.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        spreeze.trian  # type: ignore[attr-defined]  # noqa: B018


def test_the_named_arguments_of_train_are_knobs() -> None:
    names = set(inspect.signature(spreeze.train).parameters) - NO_KNOBS
    assert names <= set(knob_names(Config()))
    assert {"env", "algo", "time", "steps", "target", "seed", "device", "serial"} <= names


def loaded(code: str) -> set[str]:
    """The modules that a program has loaded after some code."""
    show = "import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_spreeze_imports_nothing_heavy() -> None:
    heavy = {"numpy", "gymnasium", "rich", "torch", "tyro", "typing", "pathlib"}
    assert not heavy & (loaded("import spreeze") - loaded(""))


def test_loading_a_policy_needs_numpy_only() -> None:
    heavy = {"gymnasium", "rich", "torch", "tyro", "cloudpickle", "matplotlib"}
    assert not heavy & loaded("from spreeze import Run, load")


def imported(source: str) -> Iterator[tuple[str, str]]:
    """The module and the name of everything of ours that a program imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((name.name, "") for name in node.names if name.name.startswith("spreeze"))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spreeze"):
            yield from ((str(node.module), name.name) for name in node.names)


def programs() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield path.name, path.read_text()
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        for i, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)):
            yield f"{path.name}-{i}", block


@pytest.mark.parametrize(("name", "source"), list(programs()), ids=lambda x: x[:30])
def test_examples_import_public_names_only(name: str, source: str) -> None:
    for module, attribute in imported(source):
        assert module in MODULES, f"{name}: {module} is not public"
        known = importlib.import_module(module).__all__
        assert not attribute or attribute in known, f"{name}: {module}.{attribute}"


def test_the_page_on_python_names_the_public_modules() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    table = set(re.findall(r"^\| `(spreeze[\w.]*)` \|", page, re.MULTILINE))
    assert table == MODULES
