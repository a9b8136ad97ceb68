"""Other frameworks: what they are measured with, and that their drivers need nothing of Spreeze."""

from __future__ import annotations

import ast
import importlib
import tomllib
from typing import Any

import pytest

from spreeze.bench.peers.drivers.program import Request
from spreeze.bench.peers.settings import ALL, FOLDER, contestants, frameworks
from spreeze.errors import UsageError

ENTRIES: list[dict[str, Any]] = tomllib.loads((FOLDER / "settings.toml").read_text())["settings"]


@pytest.mark.parametrize("framework", frameworks())
def test_each_has_a_driver_a_lock_and_a_source_for_its_settings(framework: str) -> None:
    assert (FOLDER / "drivers" / f"drive_{framework.replace('-', '_')}.py").exists()
    lock = (FOLDER / "locks" / f"{framework}.txt").read_text()
    assert "--hash=sha256:" in lock
    assert "\ntorch==" not in lock
    for entry in ENTRIES:
        if framework in entry["frameworks"]:
            assert entry["source"]
            assert entry["tasks"]


@pytest.mark.parametrize("driver", sorted((FOLDER / "drivers").glob("*.py")), ids=lambda p: p.stem)
def test_drivers_import_nothing_of_spreeze(driver: Any) -> None:
    """They run in other virtual environments. Only Spreeze's driver loads its policies."""
    imported = set()
    for node in ast.walk(ast.parse(driver.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert ("spreeze" in imported) == (driver.stem == "drive_spreeze")


def test_the_settings_of_the_task_come_before_those_of_all_tasks() -> None:
    published, more = contestants("sb3", "Pendulum-v1", discrete=False)
    assert published.name == "sb3"
    assert published.arguments["learning_rate"] == 1e-3
    assert more.name == "sb3, 4 environments"
    (general,) = contestants("sb3", "Custom-v0", discrete=True)
    assert general.arguments["algorithm"] == "PPO"


def test_a_variant_changes_only_what_it_names() -> None:
    published, more = contestants("sb3", "HalfCheetah-v5", discrete=False)
    changed = {"steps", "envs", "gradient_steps"}
    assert {key for key in more.arguments if more.arguments[key] != published.arguments.get(key)} == changed  # fmt: skip
    assert more.source != published.source


def test_what_cannot_run_a_task_is_refused_with_the_reason_and_left_out_of_all() -> None:
    with pytest.raises(UsageError, match=r"cannot run on HalfCheetah-v5: it needs Gymnasium 0\.29"):
        contestants("sample-factory", "HalfCheetah-v5", discrete=False)
    everybody = {one.framework for one in contestants(ALL, "HalfCheetah-v5", discrete=False)}
    assert everybody == set(frameworks()) - {"sample-factory"}


def test_names_of_results_are_unique() -> None:
    for env, discrete in (
        ("Pendulum-v1", False),
        ("HalfCheetah-v5", False),
        ("LunarLander-v3", True),
    ):
        names = [one.name for one in contestants(ALL, env, discrete)]
        assert len(set(names)) == len(names)


def test_unknown_frameworks_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="Did you mean sbx"):
        contestants("sb3,sbxx", "Pendulum-v1", discrete=False)


@pytest.mark.parametrize(
    ("settings", "updates"),
    [
        ({"algorithm": "PPO", "envs": 2, "n_steps": 32, "n_epochs": 3}, 3 * 64 // 16),
        ({"algorithm": "DQN", "learning_starts": 32, "train_freq": 8}, 64 // 8 - 32 // 8),
    ],
)
def test_updates_of_stable_baselines3_are_gradient_steps(
    settings: dict[str, Any], updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its PPO counts how often it has gone through a rollout."""
    monkeypatch.syspath_prepend(str(FOLDER / "drivers"))
    driver, saved = importlib.import_module("drive_sb3"), []

    class Saver:
        def due(self) -> bool:
            return True

        def save(self, _write: Any, env_steps: int, updates: int) -> None:
            saved.append((env_steps, updates))

    saver: Any = Saver()
    settings = settings | {"steps": 128, "batch_size": 16}
    driver.train(Request("sb3", "CartPole-v1", 0, settings, "", 1.0), saver)
    assert saver.batch_size == 16
    steps_first = 72  # the first callback after updates that follow 64 steps
    assert next(done for steps, done in saved if steps >= steps_first) == updates
