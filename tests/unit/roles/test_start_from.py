"""A learner that starts with the networks of another run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner_stage import LearnerStage
from spreeze.policy import Policy
from spreeze.store.checkpoint import load_training, save_best


def trained(folder: Path, algo: str, **knobs: Any) -> dict[str, Any]:
    """A run that has learned a little; returns the vectors of its checkpoint."""
    stage = LearnerStage(folder, algo, **knobs)
    stage.write(320)
    learner = stage.start()
    stage.work(learner, 8, seconds=0.1)
    learner.close()
    stage.close()
    (folder / "config.json").write_text(json.dumps({"config": stage.config.to_json()}))
    return load_training(folder / "checkpoints").tensors["train"]


def begun(folder: Path, algo: str, source: Path, **knobs: Any) -> Any:
    """The state with which a run begins that starts from `source`."""
    stage = LearnerStage(folder, algo, start_from=str(source), **knobs)
    learner = stage.start()
    state = {name: x.clone() for name, x in learner._updater.state.items()}
    assert learner._updates == 0
    learner.close()
    stage.close()
    return state


@pytest.mark.parametrize("algo", ["sac", "fastsac", "td3", "dqn"])
def test_networks_and_statistics_are_those_of_the_other_run(algo: str, tmp_path: Path) -> None:
    stored = trained(tmp_path / "a", algo)
    state = begun(tmp_path / "b", algo, tmp_path / "a")
    for name in ("actor", "critic", "stats"):
        assert (name in state) == (name in stored)
        if name in state:
            np.testing.assert_array_equal(state[name], stored[name])
    assert torch.equal(state["target"], state["critic"])
    assert not state["critic_m"].any()
    assert state["updates"] == 0


def test_a_learner_killed_before_its_first_checkpoint_starts_with_them_again(
    tmp_path: Path,
) -> None:
    stored = trained(tmp_path / "a", "sac")
    stage = LearnerStage(tmp_path / "b", "sac", start_from=str(tmp_path / "a"))
    learner = stage.start(resume=stage.folder)
    np.testing.assert_array_equal(learner._updater.state["actor"], stored["actor"])
    assert learner._updates == 0
    learner.close()
    stage.close()


def test_another_algorithm_takes_the_part_that_fits(tmp_path: Path) -> None:
    stored = trained(tmp_path / "a", "sac")
    state = begun(tmp_path / "b", "td3", tmp_path / "a")
    np.testing.assert_array_equal(state["critic"], stored["critic"])
    assert len(state["actor"]) < len(stored["actor"])
    assert torch.equal(state["target_actor"], state["actor"])


def test_a_best_checkpoint_brings_the_policy_and_its_statistics(tmp_path: Path) -> None:
    stored = trained(tmp_path / "a", "fastsac")
    stage = LearnerStage(tmp_path / "c", "fastsac")
    policy = Policy(stage._job.spec, stage.config.hyper.policy_form(stage._job.spec))
    stage.close()
    policy.vector[:] = np.random.default_rng(0).normal(size=policy.vector.size)
    policy.named()["obs_scale"][:] = 0.5
    data = {"config": {"policy": policy.describe()}}
    assert save_best(tmp_path / "a" / "checkpoints", 9, {"policy": policy.named()}, data)
    state = begun(tmp_path / "b", "fastsac", tmp_path / "a" / "checkpoints" / "best")
    size = policy.vector.size - 8
    np.testing.assert_array_equal(state["actor"][:size], policy.vector[:size])
    assert len(state["actor"]) == size + 1, "the temperature is new"
    np.testing.assert_allclose(state["stats"][1:5], policy.named()["obs_mean"])
    np.testing.assert_allclose(state["stats"][5:9], 4.0, rtol=1e-5)
    assert not np.array_equal(state["critic"], stored["critic"])
