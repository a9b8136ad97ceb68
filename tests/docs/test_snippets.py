"""The Python examples of documents work. Pages with a test of their own are left to it."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import fakes
import spreeze
from pages import DOCS, PAGES, ROOT, THEIRS, blocks, python_blocks, run_block, shorter, write_named
from spreeze.algos import knob

OWN_TEST = {"callbacks.md", "coming-from-sb3.md", "guides/atari.md"}


class Graded(fakes.ReachEnv):
    """An environment with an argument."""

    def __init__(self, size: int = 1) -> None:
        super().__init__()


KNOWN: dict[str, dict[str, Any]] = {
    "algorithms.md": {"knob": knob},
    "environments.md": {"MyEnv": Graded, "Maze": Graded, "Wrapped": gym.Wrapper},
}
"""What readers have of their own: names that a page takes for granted."""


def pages() -> Iterator[str]:
    for path in PAGES:
        page = os.path.relpath(path, DOCS)
        if page not in OWN_TEST and any(not x.startswith(THEIRS) for x in python_blocks(page)):
            yield page


@pytest.fixture(scope="module")
def my_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that has been evaluated."""
    folder = tmp_path_factory.mktemp("snippets")
    train = shorter(spreeze.train, str(folder / "runs"), [])
    train("Pendulum-v1", algo="sac", name="my-run")
    return folder


@pytest.mark.parametrize("page", list(pages()))
def test_the_examples_work(page: str, my_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(spreeze, "train", shorter(spreeze.train, "runs", ended))
    monkeypatch.chdir(my_run)
    write_named(page, my_run)
    names = {"spreeze": spreeze, "__name__": "page"} | KNOWN.get(page, {})
    code = [block for block in python_blocks(page) if not block.startswith(THEIRS)]
    for block in code:
        run_block(block, page, names)
    assert all(run.summary["updates"] > 0 for run in ended)
    assert len(ended) == sum(block.count("spreeze.train(") for block in code)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_code_of_other_libraries_and_json_can_be_read(path: Path) -> None:
    page = os.path.relpath(path, DOCS)
    for block in python_blocks(page):
        ast.parse(block)
    for block in blocks(page, "json"):
        json.loads(block)
