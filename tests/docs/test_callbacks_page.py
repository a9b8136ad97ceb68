"""The examples of docs/callbacks.md work, and the page lists all hooks."""

from __future__ import annotations

import re
from typing import Any

import pytest

import fakes
import spreeze
from pages import DOCS, python_blocks, run_block
from spreeze.run.callbacks import HOOKS
from spreeze.store.metrics import MetricsReader

PAGE = "callbacks.md"


class Graded(fakes.ReachEnv):
    """It succeeds at once, so a curriculum goes on."""

    told: float = 0.0

    def set_difficulty(self, value: float) -> None:
        self.told = value

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return (*super().step(action)[:4], {"is_success": True, "told": self.told})


def test_the_page_lists_the_hooks() -> None:
    page = (DOCS / PAGE).read_text()
    assert set(re.findall(r"^\| `(on_\w+)\(", page, re.MULTILINE)) == set(HOOKS)


def test_the_examples_work(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    train = spreeze.train
    names: dict[str, Any] = {"spreeze": spreeze}
    asked: list[dict[str, Any]] = []

    def instead(env: Any, **knobs: Any) -> Any:
        asked.append(knobs)
        limits = {"runs": runs, "steps": "6k", "serial": True, "evaluator.every_s": 0.2}
        callbacks = [*knobs["callbacks"], names["Schedule"], names["Curriculum"]]
        return train(Graded, callbacks=callbacks, **limits)

    monkeypatch.setattr(spreeze, "train", instead)
    first, *others = python_blocks(PAGE)
    for block in (*others, first):
        before = set(names)
        run_block(block, PAGE, names)
        assert len(set(names) - before) >= 1
    assert [type(callback).__name__ for callback in asked[0]["callbacks"]] == ["StopWhenFlat"]
    run: Any = names["run"]
    assert run.summary["callbacks"]["switched_off"] == {}
    found: dict[str, list[float]] = {}
    for _, record in MetricsReader(run.path / "metrics").read_new():
        for name, value in record.items():
            found.setdefault(name, []).append(value)
    assert found["callback/difficulty"][0] == pytest.approx(0.2)
    assert found["eval/info/told"][0] == pytest.approx(0.1)
    assert found["eval/info/told"][-1] > 0.2, "environments were told"
    assert "callback/best" in found
    assert any("algo.lr = " in event for event in found["event"])
