"""A run from Python: columns, picture, and what a notebook shows of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fakes
import spreeze
from fake_runs import append, make_run
from spreeze.envs.inspect import inspect_env
from spreeze.policy import Policy, PolicyForm
from spreeze.store import columns


def test_a_run_is_opened_by_path_by_name_or_as_the_newest(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a")
    for run in (spreeze.Run(path), spreeze.Run("a", runs=tmp_path), spreeze.Run(runs=tmp_path)):
        assert run.path == path
        assert run.summary["reason"] == "time"
    assert spreeze.Run(make_run(tmp_path, "b", state="running")).summary == {}
    with pytest.raises(spreeze.UsageError, match="there is no run 'c'"):
        spreeze.Run("c", runs=tmp_path)


def test_a_curve_is_columns_of_one_length(tmp_path: Path) -> None:
    curve = spreeze.Run(make_run(tmp_path, "a", num=5)).curve()
    assert list(curve) == ["time_s", "env_steps", "updates", "mean_return"]
    assert curve["env_steps"].tolist() == [1000, 2000, 3000, 4000, 5000]
    assert curve["mean_return"][0] == -1500
    empty = spreeze.Run(make_run(tmp_path, "b", num=0)).curve()
    assert [len(column) for column in empty.values()] == [0] * 4


def test_metrics_are_columns_with_nan_where_a_row_has_no_number(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", num=3)
    axes = {"time_s": 0.5, "env_steps": 1, "updates": 0}
    append(path, "sampler-0", axes | {"rollout/ep_rew_mean": -7.0, "note": "a text"})
    append(path, "sampler-1", axes | {"rollout/ep_rew_mean": None})
    append(path, "supervisor-0", axes | {"event": "something happened"})
    found = spreeze.Run(path).metrics()
    assert {len(column) for column in found.values()} == {10}
    assert found["time_s"].tolist() == sorted(found["time_s"])
    assert found["role"][0] == "sampler-0"
    assert found["rollout/ep_rew_mean"][0] == -7
    learner = found["role"] == "learner-0"
    assert found["train/critic_loss"][learner].tolist() == [9.0, 4.5, 3.0]
    assert np.isnan(found["train/critic_loss"][~learner]).all()
    assert not {"note", "event"} & found.keys()


def test_metrics_of_one_role_have_its_columns_only(tmp_path: Path) -> None:
    run = spreeze.Run(make_run(tmp_path, "a", num=3))
    for role in ("learner", "learner-0"):
        found = run.metrics(role)
        assert set(found["role"]) == {"learner-0"}
        assert "eval/mean_reward" not in found
        assert not np.isnan(found["replay/rows"]).any()
    with pytest.raises(spreeze.UsageError, match=r"no metrics of 'lerner'.*Did you mean learner\?"):
        run.metrics("lerner")


def test_a_stored_run_cannot_fill_the_memory_with_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "MAX_COLUMNS", 20)
    path = make_run(tmp_path, "a", num=1)
    for i in range(100):
        append(path, "sampler-0", {"time_s": 1.0, f"x/{i}": i})
    assert len(spreeze.Run(path).metrics()) <= 21


def test_a_plot_is_that_of_the_command(tmp_path: Path) -> None:
    run, other = (
        spreeze.Run(make_run(tmp_path, name, seed=i)) for i, name in enumerate(("a", "b"))
    )
    out = tmp_path / "curves.svg"
    figure = run.plot(other, x="steps", out=out)
    assert "<svg" in out.read_text()
    (axes,) = figure.axes
    assert axes.get_xlabel() == "env steps"
    (label,) = axes.get_legend().get_texts()
    assert "2 seeds" in label.get_text(), "one line for both"
    assert figure._repr_png_().startswith(b"\x89PNG"), "a notebook shows it"
    with pytest.raises(spreeze.UsageError, match="x=epochs"):
        run.plot(x="epochs")
    with pytest.raises(spreeze.UsageError, match="1 run has no evaluation: c"):
        spreeze.Run(make_run(tmp_path, "c", num=0)).plot()


def test_what_a_run_says_of_itself_is_short_and_escaped(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a<b>", num=2)
    stored = json.loads((path / "config.json").read_text())
    stored["config"]["env"] = "<script>alert('x')</script>\x1b[31m"
    (path / "config.json").write_text(json.dumps(stored))
    run = spreeze.Run(path)
    shown = run._repr_html_()
    assert "<script" not in shown
    assert "a&lt;b&gt;" in shown
    assert "<polyline" in shown
    assert "\x1b" not in shown + repr(run)
    assert len(repr(run)) < 200
    assert "\n" not in repr(run)


def _policy(env: Callable[[], Any]) -> Policy:
    """One that has learned nothing."""
    return Policy(inspect_env(env, env.__name__), PolicyForm(hidden=(4,), head="tanh"))


def test_a_policy_is_evaluated_where_you_say() -> None:
    policy = _policy(fakes.ReachEnv)
    first, again = (spreeze.evaluate(policy, fakes.ReachEnv, 7, seed=3) for _ in range(2))
    assert first == again
    assert len(first.returns) == len(first.lengths) == 7
    assert first.min <= first.mean <= first.max
    assert spreeze.evaluate(policy, fakes.ReachEnv, 7, seed=4).returns != first.returns
    with pytest.raises(spreeze.UsageError, match=r"the policy was trained on ReachEnv.*env="):
        spreeze.evaluate(policy)
    with pytest.raises(spreeze.UsageError, match="env=Pendulum-v1: this policy takes"):
        spreeze.evaluate(policy, "Pendulum-v1")
    with pytest.raises(spreeze.UsageError, match="episodes 0"):
        spreeze.evaluate(policy, fakes.ReachEnv, 0)
    with pytest.raises(spreeze.UsageError, match="NaN or infinity in every episode"):
        spreeze.evaluate(_policy(fakes.nan_reward_env), fakes.nan_reward_env)
