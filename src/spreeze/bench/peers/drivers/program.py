"""Trains with a framework, or plays a policy that it has saved.

    python -P program.py train REQUEST    train, and save the policy again and again
    python -P program.py judge REQUEST    for each line {"policy", "episodes", "seed"} print their returns

It runs in the framework's own virtual environment, without Spreeze. REQUEST is JSON: framework, env, seed,
settings, folder, every_s. The module named after the framework has `train(request, saver)` and
`load(policy, env)`, which returns a function from an observation to an action.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Request:
    """What to train, and where to save it."""

    framework: str
    env: str
    seed: int
    settings: dict[str, Any]
    folder: str
    every_s: float


class Saver:
    """Says when to save, and lets a policy appear under its number only when it is complete."""

    def __init__(self, request: Request) -> None:
        """Save into the request's folder."""
        self._folder = Path(request.folder)
        self._every_s, self._saved_s = request.every_s, time.monotonic()
        self._number = 0
        self.batch_size = 0
        """Transitions of an update."""

    def due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self._saved_s >= self._every_s

    def save(self, write: Callable[[Path], Any], env_steps: int, updates: int) -> None:
        """Let `write` save the policy, as a file or a folder."""
        self._saved_s = time.monotonic()
        draft = self._folder / "draft"
        write(draft)
        self._number += 1
        draft.rename(self._folder / f"policy-{self._number}")
        newest = self._folder / "newest.draft"
        newest.write_text(json.dumps([self._number, int(env_steps), int(updates), self.batch_size]))
        newest.rename(self._folder / "newest.json")


def play(act: Callable[[Any], Any], env: Any, seed: int) -> float:
    """The return of one episode."""
    obs, _ = env.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(act(obs))
        total += float(reward)
        ended = terminated or truncated
    return total


def judge(module: Any, request: Request, answers: Any) -> None:
    """Play what each line asks for. The first answer says that this program is ready."""
    import gymnasium

    env = gymnasium.make(request.env)
    print("[]", file=answers, flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        act = module.load(Path(ask["policy"]), env, request)
        returns = [play(act, env, ask["seed"] + i) for i in range(ask["episodes"])]
        print(json.dumps(returns), file=answers, flush=True)


def main(what: str, text: str) -> None:
    """Train or judge."""
    request = Request(**json.loads(text))
    sys.path.insert(0, str(Path(__file__).parent))
    module = importlib.import_module(f"drive_{request.framework.replace('-', '_')}")
    if what == "train":
        module.train(request, Saver(request))
    else:
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # frameworks print
        judge(module, request, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
