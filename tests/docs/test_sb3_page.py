"""The examples of docs/coming-from-sb3.md work, and do what its words say."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import spreeze
from pages import STEPS, python_blocks, run_block, shorter

PAGE = "coming-from-sb3.md"
THEIRS, OURS = "# Stable-Baselines3\n", "# Spreeze\n"


@pytest.mark.exhaustive
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


def test_the_examples_of_stable_baselines3_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Theirs, too: a name that they have changed would mislead."""
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common import callbacks, env_util, evaluation, monitor, vec_env

    monkeypatch.chdir(tmp_path)
    learn = sb3.SAC.learn
    steps: list[int] = []

    def shorter(model: Any, total_timesteps: int, **given: Any) -> Any:
        steps.append(total_timesteps)
        model.learning_starts = 4
        return learn(model, 8, **given)

    monkeypatch.setattr(sb3.SAC, "learn", shorter)
    names: dict[str, Any] = {"__name__": "page", "spreeze": spreeze, "gymnasium": gymnasium}
    for module in (sb3, callbacks, env_util, evaluation, vec_env):
        names |= {name: value for name, value in vars(module).items() if name[0] != "_"}
    env = monitor.Monitor(gymnasium.make("Pendulum-v1"))
    names |= {"env": env, "eval_env": env, "other_env": env, "obs": env.reset(seed=0)[0]}
    blocks = python_blocks(PAGE)
    mine = next(block for block in blocks if "class MyEnv" in block)
    names |= {"MyEnv": defined(mine, "MyEnv"), "torch": torch}
    for block in blocks:
        if block.startswith(THEIRS):
            names |= {"env": env, "model": sb3.SAC("MlpPolicy", env)}
            run_block(block, PAGE, names)
            names["model"].save_replay_buffer("replay")
    assert len(steps) >= 4


def defined(block: str, name: str) -> Any:
    """What a block defines, without the rest of the block."""
    tree = ast.parse(block)
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, ast.Import | ast.ClassDef) and "spreeze" not in ast.unparse(node)
    ]
    names: dict[str, Any] = {}
    exec(compile(tree, PAGE, "exec"), names)
    return names[name]
