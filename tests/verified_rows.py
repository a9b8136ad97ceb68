"""Rows that prove themselves, from real environments through real lanes, while samplers are killed.

Every number of an observation follows from who made it and when: the sampler's life, the environment, the
episode and the step. A life is one sampler process, from its start until it is killed. The reward is a
checksum of observation, action and next observation. So whoever reads a row can recompute all of it, and
a torn row, a mix of two, a stale one, a lost or a doubled step is seen.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from forked import Children
from spreeze.envs.group import EnvGroup
from spreeze.envs.stepping import VectorStepper
from spreeze.rows import RowFormat, Rows, as_matrix, row_layout
from spreeze.spec import EnvSpec, Floats
from spreeze.wires.arena import Arena
from spreeze.wires.experience import Experience, LaneReader, experience_blocks

NUM_LANES, NUM_ENVS, EPISODE_STEPS = 2, 128, 50
OBS_SIZE, ACTION_SIZE = 24, 4
FORM = RowFormat(gamma=0.9)
SPEC = EnvSpec(
    id="",
    obs_shape=(OBS_SIZE,),
    action_shape=(ACTION_SIZE,),
    action_low=(-1.0,) * ACTION_SIZE,
    action_high=(1.0,) * ACTION_SIZE,
)
LAYOUT = row_layout(SPEC, FORM)
COLUMNS = LAYOUT.columns()
CAPACITY = 64 * NUM_ENVS
LONGEST_LIFE_S = 0.5
WEIGHTS = np.random.default_rng(0).integers(1, 2**32, 2 * OBS_SIZE + ACTION_SIZE, np.uint32) | 1

Integers = NDArray[np.int64]


def observation(life: Any, env: Integers, episode: Any, step: Any) -> Floats:
    """What an environment shows: its place in the run, then numbers that follow from it."""
    obs = np.empty((len(env), OBS_SIZE), np.float32)
    obs[:, 0], obs[:, 1], obs[:, 2], obs[:, 3] = life, env, episode, step
    place = life * 7919 + env * 4729 + episode * 31 + step * 17
    obs[:, 4:] = (place[:, None] + np.arange(OBS_SIZE - 4) * 1009) % 65_521
    return obs


def checksum(obs: Floats, action: Floats, next_obs: Floats) -> Floats:
    """A number that changes with any bit of these."""
    bits = np.concatenate([obs, action, next_obs], axis=1).view(np.uint32)
    sums = (bits * WEIGHTS).sum(axis=1, dtype=np.uint32)
    # Twice over: the product moves low bits up only, the last shift brings all of them down.
    return ((sums ^ (sums >> 12)) & 0xFFFFF).astype(np.float32)


class VerifiedEnv(VectorEnv[Any, Any, Any]):
    """Episodes of 50 steps; each other one is truncated. Environments are out of step with each other."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, life: int) -> None:
        self.num_envs, self.life, self.clock = NUM_ENVS, life, np.arange(NUM_ENVS)
        self.single_observation_space = Box(-np.inf, np.inf, (OBS_SIZE,), np.float32)
        self.single_action_space = Box(-1, 1, (ACTION_SIZE,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, NUM_ENVS)
        self.action_space = batch_space(self.single_action_space, NUM_ENVS)

    def reset(self, **_: Any) -> tuple[Floats, dict[str, Any]]:
        self.obs = self._now()
        return self.obs, {}

    def step(self, actions: Floats) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        episode, step = np.divmod(self.clock, EPISODE_STEPS)
        final = observation(self.life, np.arange(NUM_ENVS), episode, step + 1)
        reward = checksum(self.obs, actions, final)
        done = step == EPISODE_STEPS - 1
        self.clock += 1
        self.obs = self._now() if done.any() else final
        ends = done & (episode % 2 == 0)
        return self.obs, reward, ends, done & ~ends, {"final_obs": final}

    def _now(self) -> Floats:
        return observation(self.life, np.arange(NUM_ENVS), *np.divmod(self.clock, EPISODE_STEPS))

    def close(self, **_: Any) -> None: ...


def is_wrong(rows: Rows) -> NDArray[np.bool_]:
    """Which rows differ from what any environment did."""
    matrix = as_matrix(rows)
    obs, next_obs = matrix[:, COLUMNS["obs"]], matrix[:, COLUMNS["next_obs"]]
    with np.errstate(invalid="ignore"):
        life, env, episode, step = np.nan_to_num(obs[:, :4]).astype(np.int64).T
    last = step == EPISODE_STEPS - 1
    discount = np.where(last & (episode % 2 == 0), 0, np.float32(FORM.gamma))
    return np.any(
        [
            (obs != observation(life, env, episode, step)).any(axis=1),
            (next_obs != observation(life, env, episode, step + 1)).any(axis=1),
            rows["reward"] != checksum(obs, matrix[:, COLUMNS["action"]], next_obs),
            rows["discount"] != discount,
            rows["version"] != episode * EPISODE_STEPS + step - env,
        ],
        axis=0,
    )


class Sequence:
    """The rows of one lane: each follows the one before it, or begins a new life."""

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.last: tuple[int, int] | None = None

    def num_wrong(self, rows: Rows) -> int:
        """How many of the next rows are wrong, or not in their place."""
        if len(rows) == 0:
            return 0
        obs = as_matrix(rows)[:, COLUMNS["obs"]]
        life = obs[:, 0].astype(np.int64)
        index = rows["version"].astype(np.int64) * NUM_ENVS + obs[:, 1].astype(np.int64)
        before = self.last or (life[0], index[0] - 1)
        life_before = np.concatenate([[before[0]], life[:-1]])
        index_before = np.concatenate([[before[1]], index[:-1]])
        follows = np.where(life == life_before, index == index_before + 1, index == 0)
        self.last = int(life[-1]), int(index[-1])
        mine = life % NUM_LANES == self.lane
        return int((is_wrong(rows) | ~follows | ~mine).sum())


def sample(arena: Arena, life: int, num_steps: int | None = None) -> None:
    """A sampler that never waits, until it is killed."""
    writer = Experience(arena, NUM_ENVS).writer(life % NUM_LANES)
    env = VerifiedEnv(life)
    group = EnvGroup(VectorStepper(env, lambda: env), SPEC, FORM)
    group.reset(0)
    actions = np.random.default_rng(life).uniform(-1, 1, (64, NUM_ENVS, ACTION_SIZE))
    choices = actions.astype(np.float32)
    step = 0
    while step != num_steps:
        action = choices[step % len(choices)]
        writer.commit(group.step(action, action, step, writer.reserve()))
        step += 1
        group.finished.clear()


def some_rows(num_steps: int) -> Rows:
    """The rows of the first steps of life 1."""
    arena = Arena.create(experience_blocks(LAYOUT, NUM_LANES, CAPACITY, NUM_ENVS))
    try:
        sample(arena, 1, num_steps)
        reader = Experience(arena, NUM_ENVS).readers()[1]
        return reader.drain(np.zeros(num_steps * NUM_ENVS, LAYOUT.dtype))
    finally:
        arena.close()


@dataclass
class Counts:
    """What a stress has seen."""

    rows: int = 0
    wrong: int = 0
    lost: int = 0
    """Overwritten before they were read, and counted as such by the lane."""
    kills: int = 0
    readers: int = 0
    """New readers, as after a restart of the learner."""


class Lane:
    """One sampler at a time, and a reader that checks all it gets."""

    def __init__(self, arena: Arena, lane: int, children: Children, counts: Counts) -> None:
        self.arena, self.lane, self.children, self.counts = arena, lane, children, counts
        self.life = lane
        self.buffer = np.zeros(CAPACITY, LAYOUT.dtype)
        self.reader, self.check = self.new_reader()
        self.sampler = self.start()

    def new_reader(self) -> tuple[LaneReader, Sequence]:
        reader = Experience(self.arena, NUM_ENVS).readers(as_words=True)[self.lane]
        return reader, Sequence(self.lane)

    def start(self) -> int:
        self.death_s = time.monotonic() + random.uniform(0, LONGEST_LIFE_S)
        return self.children.start(sample, self.arena, self.life)

    def replace(self) -> None:
        """Kill the sampler at whatever it does; sometimes the learner starts again, too."""
        self.children.kill(self.sampler)
        self.counts.kills += 1
        self.life += NUM_LANES
        self.sampler = self.start()
        if random.random() < 0.2:
            self.reader, self.check = self.new_reader()
            self.counts.readers += 1

    def read(self) -> None:
        """Check what has arrived."""
        lost = self.reader.num_lost
        words = self.reader.drain(as_matrix(self.buffer))
        if (more := self.reader.num_lost - lost) > 0:
            self.counts.lost += more
            self.check.last = None
        rows = words.view(LAYOUT.dtype)[:, 0]
        self.counts.rows += len(rows)
        self.counts.wrong += self.check.num_wrong(rows)


def stress(children: Children, num_rows: int, num_kills: int) -> Counts:
    """Check rows until there were this many, and this many kills."""
    counts = Counts()
    arena = Arena.create(experience_blocks(LAYOUT, NUM_LANES, CAPACITY, NUM_ENVS))
    try:
        lanes = [Lane(arena, i, children, counts) for i in range(NUM_LANES)]
        while counts.rows < num_rows or counts.kills < num_kills:
            for lane in lanes:
                lane.read()
                if time.monotonic() > lane.death_s:
                    lane.replace()
        for lane in lanes:
            children.kill(lane.sampler)
    finally:
        arena.close()
    return counts
