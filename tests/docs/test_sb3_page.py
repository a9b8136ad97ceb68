"""The examples of docs/coming-from-sb3.md work, and do what its words say."""

from __future__ import annotations

from typing import Any

import pytest

import spreeze
from pages import STEPS, python_blocks, run_block, shorter

PAGE = "coming-from-sb3.md"
THEIRS, OURS = "# Stable-Baselines3\n", "# Spreeze\n"


def test_the_examples_work(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(spreeze, "train", shorter(spreeze.train, runs, ended))
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
    assert resumed.summary["env_steps"] >= 2 * STEPS, "steps count on"
    assert names["other"].path == ended[-1].path
