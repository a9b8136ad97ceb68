"""Films: every stack that an update sees is compared with frames that were copied naively."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from spreeze import rows as rows_module
from spreeze.envs.group import EnvGroup
from spreeze.envs.inspect import inspect_env
from spreeze.envs.loop_stepper import LoopStepper
from spreeze.envs.observations import flattened
from spreeze.envs.stepping import Stepper
from spreeze.envs.vector_stepper import VectorStepper
from spreeze.learning.minibatch import draw, gather
from spreeze.learning.replay import Replay
from spreeze.rows import RowFormat, Rows, row_layout
from spreeze.settings.auto.images import with_stack
from spreeze.spec import EnvSpec

GAMMA, STEPS = 0.9, 7
"""Few steps in a film, so that most stacks and returns reach over its ends."""
LENGTHS = (4, 5, 30)
MODES = ["plain", *AutoresetMode]


class PictureEnv(gym.Env[Any, Any]):
    """A frame shows its environment, episode and step; the reward is a number that they make."""

    def __init__(
        self,
        number: int,
        length: int,
        terminate: bool,
        vector: bool = False,
        error: float = 0.0,
        episodes: Iterator[int] | None = None,
    ) -> None:
        picture = Box(0, 255, (2, 3, 1), np.uint8)
        numbers = Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = Dict({"eye": picture, "arm": numbers}) if vector else picture
        self.action_space = Box(-1, 1, (1,), np.float32)
        self.number, self.length, self.terminate, self.vector = number, length, terminate, vector
        self.error, self.random = error, np.random.default_rng(number)
        self.episodes = count(1) if episodes is None else episodes
        self.episode, self.now = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.now = next(self.episodes), 0
        return self.picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.random.random() < self.error:
            raise RuntimeError("the lens is dirty")
        self.now += 1
        over = self.now >= self.length
        reward = reward_of(self.episode, self.now)
        return self.picture(), reward, over and self.terminate, over and not self.terminate, {}

    def picture(self) -> Any:
        eye = frame_of(self.number, self.episode, self.now)
        return {"eye": eye, "arm": arm_of(self.episode, self.now)} if self.vector else eye


def frame_of(number: int, episode: int, step: int) -> Any:
    return np.array([number, episode // 256, episode % 256, step, 7, 255], np.uint8).reshape(
        2, 3, 1
    )


def arm_of(episode: int, step: int) -> Any:
    return np.array([episode, -step], np.float32)


def reward_of(episode: int, step: int) -> float:
    return 100.0 * episode + step


def seen_at(number: int, episode: int, step: int, stack: int, vector: bool) -> Any:
    """What a network should read: the frames of the episode, its first one repeated before its start."""
    frames = [frame_of(number, episode, max(step - k, 0)) for k in range(stack - 1, -1, -1)]
    pixels = np.concatenate([frame.ravel() for frame in frames]).astype(np.float32) / 255
    return np.concatenate([pixels, arm_of(episode, step)]) if vector else pixels


def picture_group(
    mode: Any, form: RowFormat, stack: int, **kwargs: Any
) -> tuple[EnvGroup, EnvSpec]:
    # An environment that is made again goes on counting.
    makers = [
        partial(PictureEnv, i, length, episodes=count(1), **kwargs)
        for i, length in enumerate(LENGTHS)
    ]
    spec = with_stack(inspect_env(partial(makers[0], error=0.0), "Picture"), stack)
    if mode == "plain":
        stepper: Stepper = LoopStepper(
            [flattened(make()) for make in makers], lambda: flattened(makers[0]())
        )
    else:
        vector = partial(SyncVectorEnv, makers, autoreset_mode=mode)
        stepper = VectorStepper(vector(), vector)
    stepper.guard._most_errors = 1.0
    return EnvGroup(stepper, spec, form), spec


def films(group: EnvGroup, spec: EnvSpec, form: RowFormat, num_steps: int) -> tuple[Rows, Any]:
    """The films of this many steps, and the actions by environment, episode and step."""
    group.reset(seed=0)
    rows, out = np.zeros(len(LENGTHS), row_layout(spec, form).dtype), []
    acted: dict[tuple[int, ...], float] = {}
    rng = np.random.default_rng(0)
    for t in range(num_steps):
        actions = rng.uniform(-1, 1, (len(LENGTHS), 1)).astype(np.float32)
        pixels, _ = spec.frames.split_stack(group.obs)
        for stack, action in zip(pixels, actions, strict=True):
            number, high, low, step = stack[-1, :4].tolist()
            acted[number, 256 * high + low, step] = float(action[0])
            if step == LENGTHS[number]:  # the fake step of an auto-reset, which is not stored
                continue
            expected = seen_at(number, 256 * high + low, step, spec.stack, False) * 255
            np.testing.assert_allclose(stack.ravel(), expected, err_msg="what the policy acts on")
        log_prob = np.full(len(LENGTHS), -0.5 * t, np.float32)
        num = group.step(actions, actions, t, rows, log_prob)
        out.append(rows[:num].copy())
    group.close()
    return np.concatenate(out), acted


def stored(spec: EnvSpec, form: RowFormat, rows: Rows) -> Replay:
    replay = Replay(row_layout(spec, form), len(rows), torch.device("cpu"))
    replay.insert(rows)
    return replay


def check_transitions(
    spec: EnvSpec, form: RowFormat, rows: Rows, acted: Any, ends: dict[int, int | None]
) -> Counter[tuple[int, ...]]:
    """Compare all transitions with the truth; returns how often each is stored."""
    replay, vector = stored(spec, form, rows), bool(spec.obs_parts)
    index = torch.arange(len(rows) * replay.layout.drawn_steps)
    batch = gather(replay.data, index, replay.layout)
    found: Counter[tuple[int, ...]] = Counter()
    for i in range(len(index)):
        newest = (batch.obs[i] * 255).round().int().tolist()[6 * spec.stack - 6 : 6 * spec.stack]
        number, high, low, step, *_ = newest
        episode = 256 * high + low
        found[number, episode, step] += 1
        expected = seen_at(number, episode, step, spec.stack, vector)
        np.testing.assert_allclose(batch.obs[i], expected, rtol=1e-6)
        assert batch.action[i] == pytest.approx([acted[number, episode, step]])
        end = ends[number]
        covered = (
            round(np.log(float(batch.discount[i])) / np.log(GAMMA)) if batch.discount[i] else None
        )
        if covered is None:  # it terminated, so nothing follows
            assert end is not None
            covered = end - step
        else:
            after = seen_at(number, episode, step + covered, spec.stack, vector)
            np.testing.assert_allclose(batch.next_obs[i], after, rtol=1e-6)
        assert 1 <= covered <= form.n_step
        rewards = [reward_of(episode, step + k) for k in range(1, covered + 1)]
        assert batch.reward[i] == pytest.approx(sum(GAMMA**k * r for k, r in enumerate(rewards)))
    return found


@pytest.fixture(autouse=True)
def _short_films(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "FILM_STEPS", STEPS)


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize(("n_step", "stack"), [(1, 1), (1, 4), (3, 4), (3, 2)])
@pytest.mark.parametrize("terminate", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_every_stack_is_true_in_every_autoreset_mode(
    mode: Any, terminate: bool, n_step: int, stack: int, vector: bool
) -> None:
    form = RowFormat(gamma=GAMMA, n_step=n_step)
    group, spec = picture_group(mode, form, stack, terminate=terminate, vector=vector)
    rows, acted = films(group, spec, form, 100)
    ends = dict(enumerate(LENGTHS)) if terminate else dict.fromkeys(range(3))
    found = check_transitions(spec, form, rows, acted, ends)
    for number, length in enumerate(LENGTHS):
        mine = sorted((e, s) for n, e, s in found if n == number)
        # No gaps: every step of every episode but the last is stored; only short films repeat some.
        whole = {e for e, _ in mine if e != mine[-1][0]}
        assert len(whole) >= 100 // (length + 1) - 4
        assert [x for x in mine if x[0] in whole] == [
            (e, s) for e in sorted(whole) for s in range(length)
        ]
    if terminate:
        assert set(found.values()) == {1}


@given(
    error=st.sampled_from([0.02, 0.1, 0.3]),
    n_step=st.integers(1, 4),
    stack=st.integers(1, 5),
    terminate=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_stacks_are_true_whatever_steps_fail(
    error: float, n_step: int, stack: int, terminate: bool
) -> None:
    form = RowFormat(gamma=GAMMA, n_step=n_step)
    group, spec = picture_group("plain", form, stack, terminate=terminate, error=error)
    rows, acted = films(group, spec, form, 80)
    ends = dict(enumerate(LENGTHS)) if terminate else dict.fromkeys(range(3))
    assert check_transitions(spec, form, rows, acted, ends)


@pytest.mark.parametrize("terminate", [True, False])
def test_segments_with_images_hold_every_step_in_order(terminate: bool) -> None:
    form = RowFormat(gamma=GAMMA, segment=5, past_return=True)
    group, spec = picture_group("plain", form, 3, terminate=terminate, vector=True)
    rows, acted = films(group, spec, form, 100)
    layout = row_layout(spec, form)
    assert layout.drawn_steps == 1, "updates draw whole segments"
    batch = gather(stored(spec, form, rows).data, torch.arange(len(rows)), layout, form.segment)
    assert batch.obs.shape == (len(rows), 5, spec.obs_size)
    assert batch.weight.shape == (len(rows),)
    for film in range(len(rows)):
        for t in range(5):
            newest = (batch.obs[film, t] * 255).round().int().tolist()[12:16]
            number, episode, step = newest[0], 256 * newest[1] + newest[2], newest[3]
            expected = seen_at(number, episode, step, 3, True)
            np.testing.assert_allclose(batch.obs[film, t], expected, rtol=1e-6)
            assert batch.action[film, t] == pytest.approx([acted[number, episode, step]])
            assert batch.reward[film, t] == reward_of(episode, step + 1)
            last = step + 1 == LENGTHS[number]
            assert batch.discount[film, t] == pytest.approx(0 if last and terminate else GAMMA)
            if not (last and terminate):
                after = seen_at(number, episode, step + 1, 3, True)
                np.testing.assert_allclose(batch.next_obs[film, t], after, rtol=1e-6)
            if last:
                assert batch.ended[film, t] == 1
            if t < 4 and not batch.ended[film, t]:
                following = (batch.obs[film, t + 1] * 255).round().int().tolist()[12:16]
                assert following == [*newest[:3], step + 1], "what follows is the next step"


def test_a_million_grey_frames_take_seven_and_a_half_gigabytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    grey = Box(0, 255, (84, 84, 1), np.uint8)
    env = type("Grey", (PictureEnv,), {})(0, 5, True)
    env.observation_space, env.picture = grey, lambda: np.zeros((84, 84, 1), np.uint8)
    spec = with_stack(inspect_env(lambda: env, "Grey"), "auto")
    assert spec.stack == 4
    layout = row_layout(spec, RowFormat(n_step=3))
    assert layout.rows_for(1_000_000) * layout.row_bytes <= 7.5e9
    assert layout.rows_for(1_000_000) * layout.drawn_steps >= 999_900


def test_draws_choose_every_transition_of_the_window_alike() -> None:
    data, window = torch.zeros(6, 1), torch.tensor([4, 3])
    uniform = (torch.arange(2100) + 0.5) / 2100
    index = draw(data, window, uniform, STEPS)
    counts = torch.bincount(index, minlength=6 * STEPS).reshape(6, STEPS)
    assert counts[[4, 5, 0]].eq(100).all()
    assert counts[1:4].eq(0).all()


def test_transitions_of_films_have_priorities_of_their_own() -> None:
    form = RowFormat(gamma=GAMMA)
    group, spec = picture_group("plain", form, 2, terminate=True)
    rows, _ = films(group, spec, form, 60)
    layout = row_layout(spec, form)
    replay = Replay(layout, 4, torch.device("cpu"), prioritised=True)
    replay.insert(rows[:3])
    assert replay.priorities is not None
    assert replay.priorities.shape == (4 * STEPS,)
    assert replay.num_drawable == 3 * STEPS
    assert replay.priorities.count_nonzero() == 3 * STEPS
    replay.priorities[5] = 9.0
    replay.insert(rows[3:5])
    assert replay.priorities[5] == 9.0 or replay.oldest == 1
    assert replay.priorities.view(4, STEPS)[3].eq(9).all(), "new ones get the highest"
