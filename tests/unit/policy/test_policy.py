"""The numpy policy computes what the torch network computes from the same vector."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.evaluation import evaluate_policy

from spreeze.errors import DamagedFile, UsageError
from spreeze.networks import Style, init_uniform, mlp, mlp_shapes, tanh_gaussian
from spreeze.policy import Policy, PolicyForm
from spreeze.policy.load import load_policy
from spreeze.policy.noise import coloured_noise
from spreeze.spec import Activation, EnvSpec
from spreeze.store.checkpoint import save_best

SPEC = EnvSpec(
    id="Pendulum-v1", obs_shape=(3,), action_shape=(1,), action_low=(-2.0,), action_high=(2.0,)
)
WIDE = EnvSpec(
    id="x",
    obs_shape=(2, 3),
    action_shape=(2, 2),
    action_low=(-1.0, -1.0, 0.0, -5.0),
    action_high=(1.0, 2.0, 3.0, -4.0),
)


@pytest.mark.parametrize("spec", [SPEC, WIDE])
@pytest.mark.parametrize("hidden", [(16,), (32, 8, 16)])
def test_numpy_and_torch_act_alike(spec: EnvSpec, hidden: tuple[int, ...]) -> None:
    shapes = mlp_shapes([spec.obs_size, *hidden, 2 * spec.action_size])
    flat = init_uniform(shapes, torch.Generator().manual_seed(0))
    policy = Policy(spec, PolicyForm(hidden=hidden), flat.numpy().copy())
    obs = np.random.default_rng(0).normal(size=(7, spec.obs_size)).astype(np.float32)
    head = mlp(shapes, flat, "float32", torch.from_numpy(obs))
    still = torch.tanh(head[:, : spec.action_size])
    np.testing.assert_allclose(policy.act(obs, explore=False), still.numpy(), atol=1e-6)

    policy.seed(3)
    noise = np.random.default_rng(3).standard_normal((7, spec.action_size), np.float32)
    noisy, _ = tanh_gaussian(head, torch.from_numpy(noise))
    np.testing.assert_allclose(policy.act(obs, explore=True), noisy.numpy(), atol=1e-6)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", get_args(Activation))
def test_numpy_and_torch_compute_the_same_layers(
    activation: Activation, layer_norm: bool, residual: bool
) -> None:
    """Also for observations far out, where exponentials overflow."""
    style = Style(activation, layer_norm, residual)
    hidden = (16, 16, 8, 8)
    shapes = mlp_shapes([SPEC.obs_size, *hidden, 1])
    flat = init_uniform(shapes, torch.Generator().manual_seed(0))
    form = PolicyForm(
        hidden=hidden,
        head="tanh",
        activation=activation,
        layer_norm=layer_norm,
        residual=residual,
    )
    policy = Policy(SPEC, form, flat.numpy().copy())
    obs = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    obs[20:] *= 1e4
    right = torch.tanh(mlp(shapes, flat, "float32", torch.from_numpy(obs), style=style))
    np.testing.assert_allclose(policy.act(obs, explore=False), right.numpy(), atol=2e-5)
    plain = mlp(shapes, flat, "float32", torch.from_numpy(obs))
    assert style == Style() or not torch.allclose(torch.tanh(plain), right, atol=1e-3)


def test_greedy_actions_have_no_noise_and_the_shape_and_bounds_of_the_environment() -> None:
    policy = Policy(WIDE, PolicyForm(hidden=(8,)))
    policy.vector[:] = np.random.default_rng(0).normal(size=policy.vector.size)
    policy.set_exploration_scales(np.ones(5))
    obs = np.random.default_rng(1).normal(size=(5, WIDE.obs_size)).astype(np.float32)
    actions = policy.greedy_action(obs)
    assert actions.shape == (5, *WIDE.action_shape)
    np.testing.assert_array_equal(actions, policy.greedy_action(obs))
    low, high = np.reshape(WIDE.action_low, (2, 2)), np.reshape(WIDE.action_high, (2, 2))
    squashed = policy.act(obs, explore=False).reshape(5, 2, 2)
    np.testing.assert_allclose(actions, low + (squashed + 1) / 2 * (high - low), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("low", "high"), [(0.1, 0.7), (1e-8, 1.0), (0.05, 0.3), (-0.3, 0.3)])
def test_extreme_actions_are_within_the_bounds(low: float, high: float, dtype: Any) -> None:
    space = gym.spaces.Box(low, high, (1,), dtype)
    low, high = float(space.low[0]), float(space.high[0])
    spec = EnvSpec(
        id="x", obs_shape=(1,), action_shape=(1,), action_low=(low,), action_high=(high,)
    )
    for action in (-1.0, 1.0):
        scaled = Policy(spec, PolicyForm(hidden=(4,))).to_env_action(np.array([action], np.float32))
        assert space.contains(scaled), scaled
        assert scaled[0] == pytest.approx(high if action > 0 else low)


def test_each_environment_explores_as_strongly_as_its_scale() -> None:
    def deviations(scales: list[float] | None) -> np.ndarray:
        policy = Policy(SPEC, PolicyForm(hidden=(4,)))
        obs = np.zeros((3, 3), np.float32)
        policy.seed(1)
        policy.act(obs, explore=True)
        policy.seed(1)
        if scales is not None:
            policy.set_exploration_scales(np.array(scales))
        policy.vector[-1] = -1.0  # a smaller log-std, so that the tanh does not saturate
        return np.arctanh(policy.act(obs, explore=True).astype(np.float64))[:, 0]

    usual = deviations(None)
    np.testing.assert_allclose(deviations([0, 1, 2]), usual * [0, 1, 2], rtol=1e-4)


@pytest.mark.parametrize("head", ["tanh_gaussian", "tanh"])
def test_noise_of_some_environments_lasts_and_is_as_wide_as_the_actions(head: Any) -> None:
    policy = Policy(SPEC, PolicyForm(hidden=(4,), head=head))
    policy.vector[:] = 0
    policy.seed(0)
    policy.set_exploration_scales(np.full(6, 0.01))
    policy.set_noise_colour(1.0, np.array([1, 4]))
    obs = np.zeros((6, 3), np.float32)
    actions = np.array([policy.act(obs, explore=True).copy() for _ in range(4096)])
    spread = actions.std((0, 2))
    lasting = (actions[1:] * actions[:-1]).mean((0, 2)) / np.square(actions).mean((0, 2))
    for env in range(6):
        coloured = env in (1, 4)
        assert (spread[env] > 0.5) == coloured
        assert lasting[env] > 0.6 if coloured else abs(lasting[env]) < 0.1
    policy.set_noise_colour(1.0, np.zeros(0, np.intp))
    actions = np.array([policy.act(obs, explore=True).copy() for _ in range(256)])
    assert actions.std((0, 2)).max() < 0.1


def test_another_scale_does_not_cut_lasting_noise() -> None:
    obs, actions = np.zeros((2, 3), np.float32), []
    for changes in (False, True):
        policy = Policy(SPEC, PolicyForm(hidden=(4,), head="tanh"))
        policy.seed(0)
        policy.set_exploration_scales(np.ones(2))
        policy.set_noise_colour(1.0, np.array([1]))
        acted = []
        for step in range(256):
            if changes and step % 10 == 0:
                policy.set_exploration_scales(np.full(2, 0.5))
            acted.append(policy.act(obs, explore=True).copy())
        actions.append(np.array(acted)[..., 0])
    np.testing.assert_array_equal(actions[0][:, 1], actions[1][:, 1])
    np.testing.assert_allclose(actions[1][64:, 0].std(), 0.5, rtol=0.2)


@pytest.mark.parametrize("colour", [0.0, 1.0, 2.0])
def test_coloured_noise_has_variance_one_and_the_power_of_its_colour(colour: float) -> None:
    noise = coloured_noise((1024, 300, 2), colour, np.random.default_rng(0))
    assert noise.dtype == np.float32
    assert noise.var() == pytest.approx(1, rel=0.1)
    power = np.square(np.abs(np.fft.rfft(noise, axis=0))).mean((1, 2))
    slow, fast = power[8:16].mean(), power[128:256].mean()
    assert np.log2(slow / fast) / 4 == pytest.approx(colour, abs=0.15)
    across = np.corrcoef(noise[:, :20, 0].T) - np.eye(20)
    assert abs(across.mean()) < 0.05, "environments explore independently"


def test_exploration_scales_do_not_change_log_probabilities() -> None:
    policies = [Policy(SPEC, PolicyForm(hidden=(4,), head="gaussian")) for _ in range(2)]
    policies[1].set_exploration_scales(np.full(2, 3.0))
    for policy in policies:
        policy.seed(1)
        policy.act(np.zeros((2, 3), np.float32), explore=True)
    np.testing.assert_array_equal(policies[0].log_prob, policies[1].log_prob)


def test_log_probabilities_are_those_of_the_squashed_gaussian() -> None:
    head = torch.tensor([[0.3, -1.0, 0.2, 0.4]])
    noise = torch.tensor([[0.5, -2.0]])
    action, log_prob = tanh_gaussian(head, noise)
    from torch.distributions import Normal, TanhTransform, TransformedDistribution

    log_std = -5 + 3.5 * (torch.tanh(head[:, 2:]) + 1)
    plain = TransformedDistribution(Normal(head[:, :2], log_std.exp()), [TanhTransform()])
    torch.testing.assert_close(log_prob, plain.log_prob(action).sum(-1), rtol=1e-4, atol=1e-4)


def test_predict_takes_one_observation_or_a_batch_and_keeps_the_shapes() -> None:
    policy = Policy(WIDE, PolicyForm(hidden=(8,)))
    policy.vector[:] = np.random.default_rng(0).normal(size=policy.vector.size)
    one, state = policy.predict(np.ones((2, 3)), deterministic=True)
    many, _ = policy.predict(np.ones((5, 2, 3)), deterministic=True)
    assert one.shape == (2, 2)
    assert state is None
    assert many.shape == (5, 2, 2)
    np.testing.assert_allclose(many[4], one)
    low, high = np.reshape(WIDE.action_low, (2, 2)), np.reshape(WIDE.action_high, (2, 2))
    noisy, _ = policy.predict(np.ones((100, 2, 3)))
    assert ((noisy >= low) & (noisy <= high)).all()
    assert noisy.std(axis=0).min() > 0
    with pytest.raises(ValueError, match=r"trained on x with observations of shape \(2, 3\)"):
        policy.predict(np.ones(6))


def saved(tmp_path: Path) -> tuple[Policy, Path]:
    policy = Policy(SPEC, PolicyForm(hidden=(8, 8)))
    policy.vector[:] = np.random.default_rng(0).normal(size=policy.vector.size)
    data = {"config": {"policy": policy.describe()}}
    assert save_best(tmp_path, 12, {"policy": policy.named()}, data)
    return policy, tmp_path / "best"


def test_a_stored_policy_is_loaded_unchanged(tmp_path: Path) -> None:
    policy, folder = saved(tmp_path)
    again = load_policy(folder)
    np.testing.assert_array_equal(again.vector, policy.vector)
    assert again.spec == SPEC


def test_a_policy_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    config = folder / "config.json"
    text = config.read_text()
    assert "8" in text
    config.write_text(text.replace("8,\n", "9,\n").replace("8\n", "9\n"))
    with pytest.raises(DamagedFile, match="not what its manifest says"):
        load_policy(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(UsageError, match=r"w0 has shape \(3, 8\) instead of \(3, 9\)"):
        load_policy(folder)


def test_stable_baselines3_can_evaluate_it(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    env = gym.wrappers.RecordEpisodeStatistics(gym.make("Pendulum-v1"))
    mean, std = evaluate_policy(load_policy(folder), env, n_eval_episodes=3, warn=False)  # type: ignore[arg-type]
    env.close()
    assert -2000 < mean < 0
    assert std >= 0


def test_loading_and_acting_needs_no_torch(tmp_path: Path) -> None:
    _, folder = saved(tmp_path)
    code = (
        f"import sys, spreeze; policy = spreeze.load({str(folder)!r}); "
        "policy.predict([0.0, 0.0, 0.0], deterministic=True); "
        "assert 'torch' not in sys.modules and 'gymnasium' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
