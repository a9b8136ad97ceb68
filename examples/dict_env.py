"""Dict observations and wrappers: the policy takes observations as the environment returns them."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.wrappers import TimeLimit

import spreeze


class Lift(gym.Env):
    """Move a lift to the floor that called it; the load decides how far the motor pulls it."""

    observation_space = Dict(
        {"position": Box(0.0, 3.0, (1,)), "called": Discrete(4), "load": Box(0.5, 1.0, (1,))}
    )
    action_space = Box(-1.0, 1.0, (1,))

    def observe(self):
        return {
            "position": np.array([self.position], np.float32),
            "called": self.called,
            "load": np.array([self.load], np.float32),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.uniform(0, 3)
        self.load = self.np_random.uniform(0.5, 1)
        self.called = int(self.np_random.integers(4))
        return self.observe(), {}

    def step(self, action):
        self.position = float(np.clip(self.position + 0.5 * self.load * action[0], 0, 3))
        return self.observe(), -abs(self.position - self.called), False, False, {}


run = spreeze.train(lambda: TimeLimit(Lift(), 30), time="60s", target=-4)
obs = {"position": [0.0], "called": 3, "load": [0.8]}
action, _ = run.policy.predict(obs, deterministic=True)
print(
    f"{run.summary['reason']} after {run.summary['wall_s']} s; called from above: {action[0]:+.2f}"
)
