"""Starting from another run: which networks fit, and what is refused."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

import cases
from spreeze.algos import ALGORITHMS
from spreeze.errors import DamagedFile, UsageError
from spreeze.settings.build import build_config
from spreeze.settings.resume import resumed_config
from spreeze.settings.start_from import Fit, Source, find_source, fit_networks

GOLDEN = Path(__file__).parents[1] / "store" / "golden" / "format-1"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with a stored run of an earlier version: SAC on Pendulum-v1, hidden layers of 4."""
    shutil.copytree(GOLDEN, tmp_path / "old", symlinks=True)
    return tmp_path


def hyper(algo: str, **knobs: Any) -> dict[str, Any]:
    shape = {"hidden": (8,), "lr": 1e-3, **({} if algo == "ppo" else {"tau": 0.01, "n_step": 1})}
    return dataclasses.asdict(ALGORITHMS[algo].config(**{**shape, **knobs}))


def source(algo: str, complete: bool = True, **knobs: Any) -> Source:
    spec = cases.DISCRETE if algo == "dqn" else cases.BOX
    return Source(Path("x"), spec.id, algo, hyper(algo, **knobs), spec.to_json(), complete)


def fit(given: Source, algo: str, **knobs: Any) -> Fit:
    return fit_networks(given, algo, hyper(algo, **knobs), given.spec)


def test_a_new_run_has_the_networks_of_the_other_and_knobs_that_are_given(runs: Path) -> None:
    config = build_config("", {"start_from": "old", "runs": str(runs), "steps": "1e5"})
    checkpoint = runs / "old" / "checkpoints" / "000000064"
    assert (config.env, config.algo, config.start_from) == ("Pendulum-v1", "sac", str(checkpoint))
    assert (config.hyper.hidden, config.sampler.random_steps) == ((4,), 0)
    assert (config.resume, config.hyper.lr) == (None, "auto")
    other = {"algo": "td3", "algo.hidden": (5,), "sampler.random_steps": 9}
    config = build_config("x", {"start_from": str(checkpoint), **other})
    assert (config.env, config.algo, config.hyper.hidden) == ("x", "td3", (5,))
    assert config.sampler.random_steps == 9


def test_a_run_of_an_earlier_version_fits(runs: Path) -> None:
    found = find_source("old", runs)
    same = {**found.hyper, "hidden": (4,)}
    fits = fit_networks(found, "sac", same, found.spec)
    assert fits == Fit(found, None, None, "this run normalises nothing")
    assert fits.to_json()["taken"] == ["actor", "critic"]


@pytest.mark.parametrize(
    ("before", "now", "actor", "critic", "statistics"),
    [
        ("sac", "sac", None, None, "this run normalises"),
        ("fastsac", "fastsac", None, None, None),
        ("sac", "td3", "its head is tanh_gaussian, and here tanh", None, "this run"),
        ("sac", "tqc", None, "it has no num_critics", "this run"),
        ("td3", "ddpg", None, "its w0 has shape (2, 6, 8), and here (6, 8)", "this run"),
        ("dqn", "dqn", "the critic is the policy", None, None),
    ],
)
def test_what_fits_is_taken_and_what_does_not_has_a_reason(
    before: str, now: str, actor: str | None, critic: str | None, statistics: str | None
) -> None:
    found = fit(source(before), now)
    for said, expected in zip(
        (found.actor, found.critic, found.statistics), (actor, critic, statistics), strict=True
    ):
        assert said == expected or (said and expected and said.startswith(expected)), said
    assert found.lines()[0] == f"starts from x, {before} on {source(before).env}:"


def test_a_policy_alone_has_no_critic_unless_the_critic_is_the_policy() -> None:
    assert fit(source("sac", complete=False), "sac").critic == "this checkpoint has only the policy"
    assert fit(source("dqn", complete=False), "dqn").critic is None


def test_another_scale_of_rewards_is_another_critic() -> None:
    found = fit(source("sac", normalise_obs=True), "sac", normalise_obs=True, normalise_reward=True)
    assert found.critic == "its normalise_reward is False, and here True"
    assert (found.actor, found.statistics) == (None, None)


def test_what_cannot_work_is_refused_by_name(runs: Path) -> None:
    with pytest.raises(
        UsageError, match=r"--from x: none of its networks fits. Actor: its hidden is 8, and"
    ):
        fit(source("sac"), "sac", hidden=(9,))
    wide = dataclasses.replace(cases.BOX, obs_shape=(5,)).to_json()
    with pytest.raises(UsageError, match=r"observations \(4,\).*has \(5,\)"):
        fit_networks(source("sac"), "sac", hyper("sac"), wide)
    with pytest.raises(UsageError, match="none of its networks"):
        fit_networks(dataclasses.replace(source("sac"), algo="f.py:X"), "sac", hyper("sac"), {})
    for knobs, said in (
        ({"resume": "old"}, "--from and --resume: the first begins a new run"),
        ({"algo.hiden": (8,)}, "no knob 'algo.hiden'"),
    ):
        with pytest.raises(UsageError, match=said):
            build_config("x", {"start_from": "old", "runs": str(runs), **knobs})
    with pytest.raises(UsageError, match=r"no run 'olt'. Did you mean old"):
        build_config("x", {"start_from": "olt", "runs": str(runs)})
    (runs / "old" / "checkpoints" / "000000064" / "train.safetensors").write_bytes(b"")
    with pytest.raises(DamagedFile, match="no checkpoint that is whole"):
        build_config("x", {"start_from": "old", "runs": str(runs)})


def test_a_resumed_run_does_not_start_from_the_other_run_again(runs: Path) -> None:
    config = resumed_config("old", runs)
    assert config.start_from is None
