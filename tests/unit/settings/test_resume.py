"""Resuming: what becomes of each knob that is not as it was."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from spreeze.errors import DamagedFile, UsageError
from spreeze.settings.config import Config
from spreeze.settings.defaults import config_from_json, config_with
from spreeze.settings.resume import compare_with_resumed, resumed_config
from spreeze.spec import EnvSpec

GOLDEN = Path(__file__).parents[1] / "store" / "golden" / "format-1"
STORED = json.loads((GOLDEN / "config.json").read_text())
SPEC = EnvSpec.from_json(STORED["env_spec"])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A stored run."""
    shutil.copytree(GOLDEN, tmp_path / "old", symlinks=True)
    return tmp_path / "old"


def resumed(run: Path, **knobs: Any) -> Config:
    """The settings that the stored run used, resumed, with knobs changed."""
    config = dataclasses.replace(config_from_json(STORED["config"]), resume=str(run))
    config = dataclasses.replace(config, time=None, steps=None, target=None)
    return config_with(config, {name.replace("__", "."): value for name, value in knobs.items()})


@pytest.mark.fault("F70")
def test_a_run_of_format_1_is_resumed_unchanged(run: Path) -> None:
    config = resumed_config("old", run.parent)
    assert (config.env, config.algo, config.resume) == ("Pendulum-v1", "sac", str(run))
    found = compare_with_resumed(resumed(run), SPEC)
    assert found is not None
    assert found.checkpoint.name == "000000064"
    assert found.lines() == []


def test_a_stored_run_does_not_choose_the_code_that_it_is_evaluated_on(run: Path) -> None:
    stored = json.loads((run / "config.json").read_text())
    for env, kept in (("CartPole-v1", ("CartPole-v1",)), ("evil.module:Env", ())):
        stored["asked"]["evaluator"]["env"] = [env]
        (run / "config.json").write_text(json.dumps(stored))
        assert resumed_config("old", run.parent).evaluator.env == kept


@pytest.mark.fault("F67")
def test_every_changed_knob_is_listed_and_applied(run: Path) -> None:
    config = resumed(
        run,
        learner__batch_size=512,
        replay__capacity=1000,
        algo__gamma=0.9,
        evaluator__episodes=3,
        time="5m",
    )
    found = compare_with_resumed(config, SPEC)
    assert found is not None
    capacity = STORED["config"]["replay"]["capacity"]
    assert found.lines() == [
        "--time 5m (was None): applied",
        f"--replay.capacity 1000 (was {capacity}): applied; the oldest stored rows are dropped",
        "--learner.batch-size 512 (was 16): applied; Adam's moments are those of the other batch size",
        "--evaluator.episodes 3 (was 10): applied",
        "--algo.gamma 0.9 (was 0.99): applied; stored rows have another format and are dropped",
    ]
    stored = json.loads(json.dumps(found.to_json()))
    assert stored["changes"]["learner.batch_size"] == {"before": 16, "now": 512}


@pytest.mark.fault("F67")
def test_all_knobs_that_cannot_change_are_refused_at_once(run: Path) -> None:
    config = resumed(run, algo__hidden=(8,), algo__normalise_obs=True, evaluator__episodes=3)
    with pytest.raises(UsageError) as refused:
        compare_with_resumed(config, SPEC)
    first, second = refused.value.problems
    assert first.startswith("--resume: --algo.hidden 8 (was 4): refused")
    assert second.startswith("--resume: --algo.normalise-obs True (was False): refused")


@pytest.mark.fault("F67")
def test_another_environment_or_algorithm_is_refused(run: Path) -> None:
    with pytest.raises(UsageError, match=r"--algo td3: the resumed run has sac"):
        compare_with_resumed(dataclasses.replace(resumed(run), algo="td3"), SPEC)
    with pytest.raises(UsageError, match="trained on Pendulum-v1"):
        compare_with_resumed(resumed(run), dataclasses.replace(SPEC, obs_shape=(4,)))


@pytest.mark.fault("F68")
def test_another_machine_is_a_list_of_changes(run: Path) -> None:
    """Fewer cores and another device change knobs that were chosen automatically."""
    found = compare_with_resumed(resumed(run, sampler__processes=7, device="cuda"), SPEC)
    assert found is not None
    assert found.lines() == [
        "--device cuda (was cpu): applied; results differ by rounding from here on",
        "--sampler.processes 7 (was 1): applied",
    ]


@pytest.mark.fault("F63")
def test_a_run_without_a_whole_checkpoint_is_never_started_from_scratch(run: Path) -> None:
    (run / "checkpoints" / "000000064" / "train.safetensors").write_bytes(b"")
    with pytest.raises(DamagedFile, match="no checkpoint that is whole"):
        resumed_config("old", run.parent)


def test_a_config_that_holds_no_settings_is_refused(run: Path) -> None:
    (run / "config.json").write_text(json.dumps({"asked": 5}))
    with pytest.raises(DamagedFile, match="does not hold the settings"):
        resumed_config("old", run.parent)
    broken = STORED["asked"] | {"seed": "\x1b[31m"}
    (run / "config.json").write_text(json.dumps(STORED | {"asked": broken}))
    with pytest.raises(DamagedFile, match="--seed"):
        resumed_config("old", run.parent)
