"""Trackers: they get the metrics of a run."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from fake_runs import make_run
from spreeze.run.tracker import Tracker
from spreeze.settings.checks import check_config
from spreeze.settings.defaults import config_with, default_config


@pytest.mark.parametrize("kind", ["wandb", "trackio"])
def test_a_tracker_gets_the_metrics_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    said: list[Any] = []
    service = types.ModuleType(kind)
    service.init = lambda **words: said.append(("init", words))  # type: ignore[attr-defined]
    service.log = lambda values: said.append(("log", values))  # type: ignore[attr-defined]
    service.finish = lambda: said.append(("finish", None))  # type: ignore[attr-defined]
    service.define_metric = lambda *_, **__: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, kind, service)
    run = make_run(tmp_path, "a", num=2)
    tracker = Tracker(run, kind)
    tracker.send_new()
    tracker.close()
    assert said[0][0] == "init"
    assert said[0][1]["name"] == "a"
    assert said[0][1]["config"]["env"] == "Pendulum-v1"
    logged = [values for word, values in said if word == "log"]
    assert len(logged) == 6
    assert logged[0]["eval/mean_reward"] < 0
    assert logged[0]["env_steps"] == 1000
    assert said[-1][0] == "finish"


def test_a_tracker_that_is_not_installed_is_refused_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spreeze.settings.checks.find_spec", lambda _: None)
    config = config_with(default_config(env="Pendulum-v1"), {"track": "wandb"})
    assert any("spreeze[wandb]" in problem for problem in check_config(config))
    config = config_with(default_config(env="Pendulum-v1"), {"track": "mlflow"})
    assert any("wandb, trackio" in problem for problem in check_config(config))
