"""Trains with another framework until a return or a time is reached. Runs as a separate program.

    python -m spreeze.bench.peer PACKAGE ENV TARGET LIMIT_S SEED BEGAN_S

PACKAGE has the interface of Stable-Baselines3. It trains with its defaults: SAC, or PPO for discrete
actions. BEGAN_S is when the command was started, on the monotonic clock, so imports count. Each
evaluation prints a JSON line [time_s, env_steps, updates, return].
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EVALUATION_SHARE = 0.5
"""Evaluations may take this share of the training time. They do not count as training."""
EVALUATE_EVERY_S = 1.0
NUM_EPISODES = 10


class Schedule:
    """Measures the training time without evaluations, and says when to evaluate."""

    def __init__(self, began_s: float) -> None:
        """Count from `began_s` on the monotonic clock."""
        self._began_s = began_s
        self._evaluations_s = self._latest_took_s = 0.0
        self._latest_ended_s = time.monotonic()

    def trained_s(self) -> float:
        """Seconds since the start, less those spent on evaluations."""
        return time.monotonic() - self._began_s - self._evaluations_s

    def due(self) -> bool:
        """Whether it is time for an evaluation: the longer they take, the rarer they are."""
        pause_s = max(EVALUATE_EVERY_S, self._latest_took_s / EVALUATION_SHARE)
        return time.monotonic() - self._latest_ended_s >= pause_s

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Evaluate inside this block."""
        began_s = time.monotonic()
        yield
        self._latest_ended_s = time.monotonic()
        self._latest_took_s = self._latest_ended_s - began_s
        self._evaluations_s += self._latest_took_s


def main(arguments: list[str]) -> None:
    """Train and print the evaluations."""
    package, env = arguments[:2]
    target, limit_s, seed, began_s = map(float, arguments[2:])
    gymnasium: Any = importlib.import_module("gymnasium")
    common = "stable_baselines3.common"
    evaluate_policy: Any = importlib.import_module(f"{common}.evaluation").evaluate_policy
    monitored: Any = importlib.import_module(f"{common}.monitor").Monitor(gymnasium.make(env))
    algorithm = "SAC" if isinstance(monitored.action_space, gymnasium.spaces.Box) else "PPO"
    schedule = Schedule(began_s)
    model: Any = getattr(importlib.import_module(package), algorithm)(
        "MlpPolicy", env, seed=int(seed)
    )

    def after_step(_locals: dict[str, Any], _globals: dict[str, Any]) -> bool:
        """Evaluate if it is time; whether to go on training."""
        trained_s = schedule.trained_s()
        if not schedule.due():
            return trained_s < limit_s
        with schedule.evaluation():
            mean, _ = evaluate_policy(model, monitored, NUM_EPISODES, warn=False)
        updates = getattr(model, "_n_updates", 0)
        print(json.dumps([trained_s, model.num_timesteps, updates, float(mean)]), flush=True)
        return bool(mean < target and trained_s < limit_s)

    model.learn(10**9, callback=after_step)


if __name__ == "__main__":
    main(sys.argv[1:])
