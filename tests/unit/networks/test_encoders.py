"""Encoders of images: torch and numpy compute the same features, whatever the encoder and the order of axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spreeze.algos import ALGORITHMS, build_algorithm, sac
from spreeze.images import Encoder, Image, image_of, num_features
from spreeze.learning.replay import Replay
from spreeze.learning.state import init_state, policy_vector
from spreeze.learning.updater import Updater, UpdateSetup
from spreeze.networks.encoders import as_channels, largest_singular_value
from spreeze.policy import Policy, make_policy
from spreeze.policy.image_policy import ImagePolicy
from spreeze.policy.onnx import describe_inputs, export_onnx
from spreeze.rows import row_layout
from spreeze.spec import EnvSpec, ObsPart, pack_frame

CPU = torch.device("cpu")


def spec_with(*shapes: tuple[int, ...], numbers: int = 0, stack: int = 3) -> EnvSpec:
    images = tuple(image_of((f"eye{i}",), shape) for i, shape in enumerate(shapes))
    parts = (ObsPart(path=("arm",), shape=(numbers,)),) if numbers else ()
    size = sum(int(np.prod(shape)) for shape in shapes) + numbers
    return EnvSpec(
        id="Seen-v0",
        obs_shape=(size,),
        action_shape=(2,),
        action_low=(-1.0, -1.0),
        action_high=(1.0, 1.0),
        images=images,  # type: ignore[arg-type]
        obs_parts=parts,
        stack=stack,
    )


def random_obs(spec: EnvSpec, rng: np.random.Generator, num: int) -> dict[str, Any]:
    obs = {
        str(image.path[0]): rng.integers(0, 256, (num, *image.shape)).astype(np.uint8)
        for image in spec.images
    }
    return obs | {
        str(part.path[0]): rng.normal(size=(num, *part.shape)).astype(np.float32)
        for part in spec.obs_parts
    }


def trained(spec: EnvSpec, algo: str = "sac", **knobs: Any) -> tuple[Any, Any, Policy]:
    """An algorithm with fresh networks, and its policy in numpy."""
    known = {"hidden": (32,), "lr": 1e-3, "encoder": "small"} | knobs
    if algo != "ppo":
        known |= {"tau": 0.01, "n_step": 1}
    algorithm = build_algorithm(algo, known, spec, "float32")
    state = init_state(algorithm, 0, CPU)
    policy = make_policy(spec, algorithm.config.policy_form(spec))
    policy.vector[:] = policy_vector(algorithm, state).numpy()
    return algorithm, state, policy


@pytest.mark.parametrize("norm", ["none", "layer", "spectral"])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("nature", (40, 44)),
        ("nature", (3, 40, 44)),
        ("impala", (24, 20, 3)),
        ("impala", (1, 17, 23)),
        ("small", (10, 12, 4)),
    ],
)
def test_numpy_acts_as_torch_learns(kind: Any, shape: Any, norm: Any) -> None:
    spec = spec_with(shape, shape, numbers=5)
    algorithm, state, policy = trained(spec, encoder=kind, encoder_norm=norm, normalise_obs=True)
    obs = random_obs(spec, np.random.default_rng(0), 4)
    action, _ = policy.predict(obs, deterministic=True)
    pixels = [np.concatenate([obs["eye0"][i].ravel(), obs["eye1"][i].ravel()]) for i in range(4)]
    flat = np.tile(np.stack(pixels), (1, spec.stack)).astype(np.float32) / 255
    network = algorithm.config.policy_network(spec, "float32")
    seen = torch.from_numpy(np.concatenate([flat, obs["arm"].clip(-10, 10)], 1))
    vector = state["actor"][: network.shapes.size]
    expected = torch.tanh(network(vector, seen)[:, :2])
    np.testing.assert_allclose(action, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_a_convolution_sees_rows_columns_and_channels_where_they_are() -> None:
    """A picture in either order of axes is the same picture to an encoder."""
    rng = np.random.default_rng(1)
    picture = rng.integers(0, 256, (2, 12, 10, 3)).astype(np.uint8)
    actions = []
    for last in (True, False):
        shape = (12, 10, 3) if last else (3, 12, 10)
        spec = spec_with(shape, stack=1)
        _, _, policy = trained(spec)
        given = picture if last else picture.transpose(0, 3, 1, 2)
        actions.append(policy.predict({"eye0": given}, deterministic=True)[0])
    np.testing.assert_allclose(actions[0], actions[1], rtol=1e-5)
    image = Image(path=(), shape=(12, 10, 3))
    pixels = torch.from_numpy(picture.reshape(2, 1, -1).astype(np.float32))
    np.testing.assert_array_equal(as_channels(pixels, image), picture.transpose(0, 3, 1, 2))


def test_a_stack_has_the_oldest_frame_first_and_moves_by_one() -> None:
    spec = spec_with((8, 8), stack=2)
    _, _, policy = trained(spec)
    rng = np.random.default_rng(2)
    first, second, third = (random_obs(spec, rng, 1) for _ in range(3))
    _, state = policy.predict(first, deterministic=True)
    np.testing.assert_array_equal(state.seen.reshape(2, 8, 8), np.repeat(first["eye0"], 2, axis=0))
    policy.predict(second, state, deterministic=True)
    np.testing.assert_array_equal(
        state.seen.reshape(2, 8, 8), np.concatenate([first["eye0"], second["eye0"]])
    )
    policy.predict(third, state, episode_start=[True], deterministic=True)
    np.testing.assert_array_equal(state.seen.reshape(2, 8, 8), np.repeat(third["eye0"], 2, axis=0))


def test_one_observation_and_a_batch_get_the_same_actions() -> None:
    spec = spec_with((9, 9, 3), numbers=2)
    _, _, policy = trained(spec)
    obs = random_obs(spec, np.random.default_rng(3), 2)
    batch, _ = policy.predict(obs, deterministic=True)
    one, _ = policy.predict({name: value[1] for name, value in obs.items()}, deterministic=True)
    assert one.shape == (2,)
    np.testing.assert_allclose(one, batch[1], rtol=1e-5)


def test_a_copy_of_a_policy_of_images_acts_alike() -> None:
    spec = spec_with((9, 9))
    _, _, policy = trained(spec)
    assert isinstance(policy.copy(), ImagePolicy)
    obs = random_obs(spec, np.random.default_rng(4), 3)
    a, b = (each.predict(obs, deterministic=True)[0] for each in (policy, policy.copy()))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros((9, 9), np.float32), "type float32; it should be an image"),
        (np.zeros((8, 9), np.uint8), r"shape \(8, 9\)"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_by_name(wrong: Any, message: str) -> None:
    spec = spec_with((9, 9))
    with pytest.raises(ValueError, match=f"'eye0' has .*{message}"):
        pack_frame(spec.images, (), {"eye0": wrong})


def test_numbers_beside_an_image_must_be_finite() -> None:
    spec = spec_with((9, 9), numbers=2)
    obs = {"eye0": np.zeros((9, 9), np.uint8), "arm": np.array([0.0, np.nan])}
    with pytest.raises(ValueError, match="not finite"):
        pack_frame(spec.images, spec.obs_parts, obs)


def test_power_iteration_finds_the_largest_singular_value() -> None:
    matrix = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    exact = float(torch.linalg.matrix_norm(matrix, 2))
    assert float(largest_singular_value(matrix)) == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_learns_from_images(algo: str) -> None:
    spec = spec_with((8, 8, 3), numbers=2)
    if algo == "dqn":
        spec = replace(spec, num_actions=3, action_shape=(), action_low=(), action_high=())
    algorithm, state, policy = trained(spec, algo)
    encoder = Encoder("small")
    inputs = num_features(encoder, spec.images) + 2
    shapes = dict(algorithm.critic_shapes.items)
    assert shapes["w0"][-2] == inputs + (0 if algo in ("ppo", "dqn") else 2)
    assert shapes["image0.0"] == (16, 9, 3, 3), "three frames of three channels each"
    assert policy.form.encoder == encoder
    layout = row_layout(spec, algorithm.config.row_format())
    rounds = algorithm.config.critic_updates()
    rows = np.zeros(4, layout.dtype)
    rng = np.random.default_rng(0)
    assert layout.film is not None
    num = 4 * layout.film.capacity
    frames = pack_frame(spec.images, spec.obs_parts, random_obs(spec, rng, num), num)
    rows["frames"].view(np.uint8)[:] = frames.reshape(4, -1)
    rows["reward"] = rng.normal(size=rows["reward"].shape)
    rows["next_obs"] = 1
    replay = Replay(layout, 4, CPU)
    replay.insert(rows)
    updater = Updater(UpdateSetup(algorithm, replay, state, 4, (1e-3, 0.01), rounds))
    before = {name: vector.clone() for name, vector in updater.state.items()}
    updater.run()
    assert all(np.isfinite(value) for value in updater.metrics().values())
    for network in ("critic", "actor"):
        if network in before:
            vector, shape = updater.state[network], shapes["image0.0"]  # type: ignore[literal-required]
            kernel = slice(int(np.prod(shape)))
            assert not torch.equal(vector[kernel], before[network][kernel]), "kernels learn, too"


class Eye(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4, outputs)
        self.outputs = outputs

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        x = self.conv(obs.view(len(obs), 3, 8, 8)).relu()
        return self.last(x.mean((2, 3)))


def test_a_module_of_the_users_reads_the_pixels() -> None:
    spec = spec_with((8, 8), stack=3)

    @dataclass(frozen=True, kw_only=True)
    class Config(sac.SACConfig):
        def policy_module(self, inputs: int, outputs: int) -> nn.Module:
            assert inputs == 3 * 64
            return Eye(inputs, outputs)

    config = Config(hidden=(8,), lr=1e-3, tau=0.01, n_step=1, encoder="small")
    built = config.build_policy(spec)
    assert "images" in built.why_torch
    policy = make_policy(spec, built.form, Eye)
    vector = built.network.init(torch.Generator().manual_seed(0))
    policy.vector[:] = vector.numpy()
    obs = random_obs(spec, np.random.default_rng(5), 2)
    action, _ = policy.predict(obs, deterministic=True)
    flat = np.tile(obs["eye0"].reshape(2, -1), (1, 3)).astype(np.float32) / 255
    expected = torch.tanh(built.network(vector, torch.from_numpy(flat))[:, :2])
    np.testing.assert_allclose(action, expected.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["none", "layer", "spectral"])
@pytest.mark.parametrize(("kind", "shape"), [("impala", (20, 18, 3)), ("nature", (2, 40, 40))])
def test_an_exported_policy_of_images_acts_alike(
    kind: Any, shape: Any, norm: Any, tmp_path: Path
) -> None:
    spec = spec_with(shape, shape, numbers=3)
    _, _, policy = trained(spec, encoder=kind, encoder_norm=norm, normalise_obs=True)
    assert export_onnx(policy, tmp_path / "policy.onnx") < 1e-4
    assert describe_inputs(policy).startswith(f"eye0 [N, 3, {shape[0]}, ")
    assert "numbers [N, 3] in float32" in describe_inputs(policy)
