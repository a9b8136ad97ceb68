"""A curriculum: a task that is learned only because it becomes harder step by step.

The lock opens after sixteen right digits in a row, and pays for nothing else. By chance that happens once in four
billion episodes. So episodes begin near the end, and further away each time that evaluations succeed.

    python examples/curriculum.py              opens the lock
    python examples/curriculum.py --without    does not, in the same time
"""

import sys

import gymnasium as gym

import spreeze

DIGITS = (2, 0, 3, 1, 1, 3, 0, 2, 3, 2, 1, 0, 0, 3, 1, 2)
CHOICES = 4


class Lock(gym.Env):
    """Enter the right digit at each position; a wrong one ends the episode."""

    observation_space = gym.spaces.Discrete(len(DIGITS) + 1)
    action_space = gym.spaces.Discrete(CHOICES)

    def __init__(self):
        self.given = 0

    def set_given(self, digits):
        """How many digits are already entered when an episode begins."""
        self.given = digits

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.given
        return self.position, {}

    def step(self, action):
        right = int(action) == DIGITS[self.position]
        self.position += right
        is_open = self.position == len(DIGITS)
        return self.position, float(is_open), not right or is_open, False, {"is_success": is_open}


class Curriculum(spreeze.Callback):
    """Give fewer digits each time that the policy opens the lock from where it begins."""

    def __init__(self):
        self.given = len(DIGITS) - 2

    def on_start(self, run):
        run.call_envs("set_given", self.given)

    def on_evaluation(self, run, result):
        run.log("given", self.given)
        if result.metrics["eval/success_rate"] < 1:
            return
        if self.given == 0:
            run.stop("the lock opens without any given digit")
        else:
            self.given = max(0, self.given - 2)
            run.call_envs("set_given", self.given)


if __name__ == "__main__":
    callbacks = [] if "--without" in sys.argv else [Curriculum]
    run = spreeze.train(Lock, algo="dqn", time="90s", callbacks=callbacks)
    summary = run.summary
    print(f"{summary['stop_reason'] or 'time is up'} after {summary['wall_s']:.0f} s")

    env, policy, opened = Lock(), spreeze.load(run.path), 0
    obs, _ = env.reset()
    for _ in DIGITS:
        action, _ = policy.predict(obs, deterministic=True)
        obs, reward, *_ = env.step(action)
        opened += reward
    print("the policy opens the lock" if opened else "the policy does not open the lock")
