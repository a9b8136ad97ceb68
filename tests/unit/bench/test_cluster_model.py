"""The formula of docs/scaling.md says what the simulation of every call says, and the page says both."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("cluster_model")


@pytest.mark.parametrize("slower", [1, 4])
@pytest.mark.parametrize("gbit", [1, 10, 100])
@pytest.mark.parametrize("cores", [64, 1024, 10_000])
def test_formula_and_simulation_agree(
    model: ModuleType, cores: int, gbit: int, slower: int
) -> None:
    measured = model.Constants.measured(json.loads(model.RESULT.read_text()))
    constants = model.Constants(
        measured.row_bytes, measured.policy_bytes, measured.call_s * slower, measured.row_s * slower
    )
    cluster = model.Cluster(cores, gbit)
    formula, _ = model.formula(cluster, constants)
    assert model.simulate(cluster, constants) == pytest.approx(formula, rel=0.05)


def test_the_page_is_current(model: ModuleType) -> None:
    text = model.PAGE.read_text()
    assert model.rewritten(text) == text, "run: python bench/cluster_model.py --write"
