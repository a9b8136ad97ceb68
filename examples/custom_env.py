"""Train on your own environment and use the policy. It needs no registration and no `__main__` guard."""

import gymnasium as gym
import numpy as np

import spreeze


class Thermostat(gym.Env):
    """Keep a room at its target temperature: the observation is the error, the action heats or cools."""

    observation_space = gym.spaces.Box(-30.0, 30.0, (1,), np.float32)
    action_space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.error, self.steps = self.np_random.uniform(-10, 10), 0
        return np.array([self.error], np.float32), {}

    def step(self, action):
        self.error += float(action[0]) + self.np_random.normal(0, 0.1)
        self.steps += 1
        reward = -abs(self.error)
        return np.array([self.error], np.float32), reward, False, self.steps == 50, {}


run = spreeze.train(Thermostat, time="60s", target=-25)
action, _ = run.policy.predict([5.0], deterministic=True)
print(run)
print(f"five degrees too warm: {action[0]:+.2f}; return: {spreeze.evaluate(run, episodes=50)}")
