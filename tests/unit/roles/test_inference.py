"""One process runs the policy for all samplers: its answers are what the samplers would have computed themselves."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fakes
from spreeze.errors import UsageError
from spreeze.testing import FaultEnv
from spreeze.wires.acting import Acting
from stage import Stage

KNOBS: dict[str, Any] = {
    "sampler.acting": "inference",
    "sampler.envs_per_process": 4,
    "sampler.random_steps": 0,
    "algo.hidden": (16,),
    "learner.precision": "float32",
}
ENVS = {"numbers": fakes.CountEnv, "pixels": partial(FaultEnv, pixels=True)}


def staged(folder: Path, env: str, algo: str, **knobs: Any) -> Stage:
    stage = Stage(folder, env=ENVS[env], algo=algo, **{**KNOBS, **knobs})
    rng = np.random.default_rng(0)
    size = stage.evaluator.weights.size
    stage.evaluator.weights.publish(rng.normal(0, 0.1, size).astype(np.float32), 0, 0)
    return stage


@pytest.mark.parametrize("env", list(ENVS))
@pytest.mark.parametrize("algo", ["sac", "td3", "ppo", "fastsac"])
def test_answers_are_what_the_policy_gives_in_numpy(tmp_path: Path, env: str, algo: str) -> None:
    stage = staged(tmp_path, env, algo)
    ctx, infers = stage.role("inference")
    for _, samples in stage.samplers:
        next(samples)
    next(infers)
    assert (ctx.counters["answers"], ctx.counters["batches"]) == (3, 1), "one batch for all"
    policy = ctx.make_policy()
    assert ctx.weights.fetch(policy.vector, 0) is not None
    outputs = policy.form.outputs(ctx.spec)
    for i in range(3):
        question = Acting(stage.arena).question(i, 0)
        assert question.is_answered
        assert question.version == 1
        obs = question.obs if ctx.spec.images else question.obs.view(np.float32)
        policy.act(obs, explore=False)  # makes room for so many
        expected = policy._network(policy._inputs(obs)).copy()
        np.testing.assert_allclose(question.answer[:, :outputs], expected, rtol=1e-4, atol=1e-5)
        if algo == "ppo":
            log_std = np.tile(policy.named()["log_std"], (2, 1))
            np.testing.assert_array_equal(question.answer[:, outputs:], log_std)


def test_a_sampler_steps_one_half_of_its_environments_while_the_other_waits(tmp_path: Path) -> None:
    stage = staged(tmp_path, "numbers", "sac")
    ctx, infers = stage.role("inference")
    sampler, samples = stage.samplers[0]
    asked, answered, *_ = Acting(stage.arena)._arrays
    next(samples)  # asks for the first half
    next(infers)
    next(samples)  # steps it, and asks again
    next(samples)  # asks for the second half
    assert sampler.counters["env_steps"] == 2
    assert asked[0, :, 0].tolist() == [2, 1]
    assert answered[0, :, 0].tolist() == [1, 0]
    next(infers)
    next(samples)
    assert sampler.counters["env_steps"] == 4
    assert ctx.counters["answers"] == 3
    assert ctx.counters["batches"] == 2, "both halves in the second one"


def test_without_weights_samplers_act_at_random_and_do_not_ask(tmp_path: Path) -> None:
    stage = Stage(tmp_path, algo="sac", **KNOBS)
    sampler, samples = stage.samplers[0]
    for _ in range(4):
        next(samples)
    assert sampler.counters["env_steps"] == 8
    assert not Acting(stage.arena)._arrays[0].any()


@pytest.mark.parametrize(
    ("knobs", "why"),
    [
        ({"sampler.envs_per_process": 3}, "3 environments cannot be divided"),
        ({"device": "cpu,cpu", "learner.same_device": True}, "several devices"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, knobs: Any, why: str) -> None:
    with pytest.raises(UsageError, match=f"--sampler.acting inference: .*{why}"):
        Stage(tmp_path, algo="sac", **{**KNOBS, **knobs})
