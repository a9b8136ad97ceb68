"""The examples of documents, run as they stand there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
THEIRS = ("# Stable-Baselines3\n", "# CleanRL\n", "# RLlib\n")
"""How a block of another library's code begins."""
NAMED = re.compile(r"# (my_\w+\.py)\n")
"""How a block begins that is the file of this name."""

STEPS = 3000
"""Env steps of a run of an example."""


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a page in a language; "" for those that name none."""
    return [text for found, text in FENCE.findall((DOCS / page).read_text()) if found == language]


def python_blocks(page: str) -> list[str]:
    """The Python code of a page, one text per block."""
    return blocks(page, "python")


def write_named(page: str, folder: Path) -> None:
    """Write the blocks of a page that are files."""
    for block in python_blocks(page):
        if name := NAMED.match(block):
            (folder / name[1]).write_text(block)


def commands(page: str) -> Iterator[str]:
    """What a page says to type, line by line."""
    for block in blocks(page, ""):
        if not block.startswith(THEIRS):
            yield from (line.strip() for line in block.splitlines())


def mentions(page: str) -> list[str]:
    """The commands of ours that sentences name, not always with all that they need."""
    text = FENCE.sub("", (DOCS / page).read_text())
    return re.findall(r"`(spreeze [^`\n]+)`", text)


def run_block(block: str, page: str, names: dict[str, Any]) -> None:
    """Run a block; `names` has what the blocks before it have defined, and gets what this one defines."""
    exec(compile(block, f"docs/{page}", "exec", dont_inherit=True), names)


def shorter(train: Callable[..., Any], runs: str, ended: list[Any]) -> Callable[..., Any]:
    """`spreeze.train` in one process, for a few steps in place of a time; its runs go to `ended`."""

    def instead(env: Any = None, *, time: Any = None, steps: Any = None, **knobs: Any) -> Any:
        few = 2 * STEPS if "resume" in knobs else STEPS
        limits = {"steps": few, "serial": True, "quiet": True, "runs": runs}
        limits["evaluator__every_steps"] = STEPS // 5
        short = {"sampler__random_steps": 200, "evaluator__episodes": 1}
        run = train(env, **(short | knobs | limits))
        ended.append(run)
        return run

    return instead
