"""The examples of docs/coming-from-sb3.md work, and its names of knobs exist."""

from __future__ import annotations

import re
from typing import Any

import pytest

import spreeze
from pages import DOCS, python_blocks, run_block
from spreeze.algos import ALGORITHMS
from spreeze.settings.config import knob_names
from spreeze.settings.defaults import default_config
from spreeze.settings.other_names import OURS as NAMES

PAGE = "coming-from-sb3.md"
THEIRS, OURS = "# Stable-Baselines3\n", "# Spreeze\n"


def test_the_examples_work(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    train = spreeze.train
    ended: list[Any] = []

    def shorter(env: Any = None, *, time: str = "", **knobs: Any) -> Any:
        """In one process, for a few steps in place of a time."""
        steps = 8000 if "resume" in knobs else 4000
        knobs |= {"evaluator__every_steps": 500} | {"serial": True, "quiet": True, "runs": runs}
        run = train(env, steps=steps, learner__warmup_rows=200, **knobs)
        ended.append(run)
        return run

    monkeypatch.setattr(spreeze, "train", shorter)
    names: dict[str, Any] = {"spreeze": spreeze, "__name__": "page"}
    blocks = python_blocks(PAGE)
    assert all(block.startswith((THEIRS, OURS)) for block in blocks)
    for block in blocks:
        if block.startswith(OURS):
            run_block(block, PAGE, names)
    assert all(run.summary["updates"] > 0 for run in ended)
    watched, monitored, resumed = ended[1], ended[3], ended[-2]
    assert watched.summary["callbacks"]["switched_off"] == {}
    assert (watched.metrics("callbacks")["custom/millions"] > 0).any()
    assert {"eval/info/distance", "eval/success_rate"} <= set(monitored.metrics("evaluator"))
    assert resumed.summary["env_steps"] >= 8000, "steps count on"
    assert names["other"].path == ended[-1].path


def test_the_table_names_knobs_that_exist() -> None:
    known = {name for algo in ALGORITHMS for name in knob_names(default_config(algo, "Mine-v0"))}
    rows = re.findall(r"^\| (`\w.*?) \| (`.*?) \| .*\|$", (DOCS / PAGE).read_text(), re.MULTILINE)
    assert len(rows) > 20
    for theirs, ours in (map(re.compile(r"`([\w.]+)`").findall, row) for row in rows):
        assert set(ours) <= known
        assert {knob for name in theirs for knob in NAMES.get(name, ())} <= set(ours)
