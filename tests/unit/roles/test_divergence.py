"""NaN in the training state: nothing of it is published or saved, and the last good state returns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from learner_stage import LearnerStage
from spreeze.learning.last_good import not_finite, set_random_states
from spreeze.learning.replay import Replay
from spreeze.learning.state import named
from spreeze.learning.two_devices.updater import TwoDeviceUpdater
from spreeze.roles.learner import Learner
from spreeze.roles.learner.divergence import RepeatedDivergence, in_words
from spreeze.store.checkpoint import load_training

pytestmark = pytest.mark.fault("F53")


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[list[LearnerStage]]:
    made: list[LearnerStage] = []
    yield made
    for stage in made:
        stage.close()


def running(
    stages: list[LearnerStage], folder: Path, **knobs: object
) -> tuple[LearnerStage, Learner]:
    """A learner that has a good copy of a state with which it has learned."""
    stage = LearnerStage(folder / f"run{len(stages)}", **{"algo.normalise_obs": True, **knobs})
    stages.append(stage)
    stage.write(320)
    learner = stage.start()
    stage.work(learner, 6, seconds=0.6)
    return stage, learner


def plant(learner: Learner, name: str, value: float = float("nan")) -> None:
    """Put a number into a vector, where the update keeps it."""
    updater = learner._updater
    updater.pause()
    parts = updater.parts if isinstance(updater, TwoDeviceUpdater) else [updater]
    for part in parts:
        if name in part.plain.names:
            named(part._state)[name].view(-1)[0] = value


def published(stage: LearnerStage) -> np.ndarray:
    vector = np.zeros(stage.context.weights.size, np.float32)
    assert stage.context.weights.fetch(vector, -1) is not None
    return vector


@pytest.mark.fault("F30")
@pytest.mark.parametrize("device", ["cpu", "cpu,cpu"])
@pytest.mark.parametrize("name", ["critic", "critic_v", "actor", "actor_m", "stats", "target"])
def test_a_broken_state_is_neither_published_nor_saved_and_goes_back(
    name: str,
    device: str,
    stages: list[LearnerStage],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stage, learner = running(stages, tmp_path, device=device)
    good = learner._guard.last_good.good
    drawn = torch.get_rng_state()
    plant(learner, name)
    for _ in range(20):
        stage.work(learner, 1, seconds=0.3)
        assert np.isfinite(published(stage)).all()
        if stage.control.learner["rollbacks"]:
            break
    assert stage.control.learner["rollbacks"] == 1
    assert not not_finite(learner._updater.state)
    assert learner._guard.last_good.good.updates >= good.updates
    assert not torch.equal(torch.get_rng_state(), drawn), "other random numbers are drawn now"
    said = capsys.readouterr().out
    assert f"{in_words([name])}" in said
    assert "Lower --algo.lr" in said
    before = int(stage.control.learner["updates"])
    version = stage.context.weights.version
    stage.work(learner, 12, seconds=0.3)
    assert stage.control.learner["rollbacks"] == 1, "the state that came back is whole"
    assert stage.control.learner["updates"] > before
    assert stage.context.weights.version > version
    learner.close()
    assert load_training(stage.folder / "checkpoints").updates == learner._updates


def test_the_state_that_returns_is_the_copy(stages: list[LearnerStage], tmp_path: Path) -> None:
    _, learner = running(stages, tmp_path)
    last_good = learner._guard.last_good
    copy = {name: vector.clone() for name, vector in last_good.good.tensors.items()}
    plant(learner, "critic", float("inf"))
    assert last_good.restore() == ["critic"]
    for name, vector in named(learner._updater.state).items():
        assert torch.equal(vector, copy[name]), name
    learner.close()


def test_a_state_that_breaks_at_the_very_end_is_not_saved(
    stages: list[LearnerStage], tmp_path: Path
) -> None:
    stage, learner = running(stages, tmp_path)
    plant(learner, "critic_m")
    learner.close()
    saved = load_training(stage.folder / "checkpoints")
    assert saved.updates == learner._guard.last_good.good.updates
    assert stage.control.learner["rollbacks"] == 1


def test_a_learner_that_diverges_again_and_again_fails_with_advice(
    stages: list[LearnerStage], tmp_path: Path
) -> None:
    stage, learner = running(stages, tmp_path, **{"limits.rollbacks_per_minute": 2})
    for _ in range(2):
        plant(learner, "actor")
        stage.work(learner, 2, seconds=0.1)
    stage.seconds += 61
    for _ in range(2):
        plant(learner, "actor")
        stage.work(learner, 2, seconds=0.1)
    plant(learner, "actor")
    with pytest.raises(RepeatedDivergence, match=r"3 times within a minute.*Lower --algo.lr"):
        stage.work(learner, 2, seconds=0.1)
    learner.close()
    assert stage.control.learner["rollbacks"] == 5, "old ones do not count, all are reported"
    assert np.isfinite(published(stage)).all()


def test_extreme_numbers_in_the_newest_rows_are_named(
    stages: list[LearnerStage], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage, learner = running(stages, tmp_path)
    rows = np.zeros(4, learner._replay.layout.dtype)
    rows["reward"] = 3e6
    learner._replay.insert(rows)
    plant(learner, "critic")
    stage.work(learner, 8, seconds=0.3)
    assert "very large numbers (reward 3e+06)" in capsys.readouterr().out
    learner.close()


def test_priorities_that_are_not_finite_become_the_largest() -> None:
    from cases import CPU, built, layout_of, random_rows

    algorithm = built("dqn", "Discrete")
    replay = Replay(layout_of(algorithm), 8, CPU, prioritised=True)
    replay.insert(random_rows(algorithm, 8))
    assert replay.priorities is not None
    replay.priorities[:4] = torch.tensor([0.5, float("nan"), 7.0, float("inf")])
    replay.mend_priorities()
    assert replay.priorities[:4].tolist() == [0.5, 7.0, 7.0, 7.0]


@pytest.mark.parametrize("reward", [1e7, -1e8])
def test_huge_rewards_below_the_limit_never_reach_the_samplers_as_nan(
    reward: float, stages: list[LearnerStage], tmp_path: Path
) -> None:
    stage, learner = running(stages, tmp_path)
    rows = np.zeros(2000, learner._replay.layout.dtype)
    rows["reward"], rows["discount"] = reward, 0.99
    learner._replay.insert(rows)
    for _ in range(100):
        stage.work(learner, 1, seconds=0.05)
        assert np.isfinite(published(stage)).all()
    learner.close()
    assert threading.active_count() == 1


@pytest.mark.fault("S12")
def test_random_states_that_cannot_be_read_are_not_used() -> None:
    before = torch.get_rng_state()
    for nonsense in (torch.zeros(3, dtype=torch.uint8), torch.zeros(5056), torch.zeros(())):
        set_random_states({"cpu": nonsense}, torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
