"""When the next evaluation is due."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from spreeze.machine.facts import Machine
from spreeze.roles.evaluator.schedule import Schedule
from spreeze.settings.auto import resolve
from spreeze.settings.defaults import config_with, default_config
from spreeze.spec import EnvSpec
from spreeze.wires.weights import Stamp

SPEC = EnvSpec(id="x", obs_shape=(3,), action_shape=(1,), action_low=(-1.0,), action_high=(1.0,))


class Evaluator:
    """Evaluations that take a second each, of policies that the test makes."""

    def __init__(self, **knobs: Any) -> None:
        config = config_with(default_config("sac", "x"), {"device": "cpu", **knobs})
        self.config = resolve(config, SPEC, Machine(8, 8 << 30, ())).config
        self.seconds, self.version = 100.0, 1
        self.control = SimpleNamespace(first_update_s=1.0)
        share = self.config.evaluator.share
        assert share != "auto"
        self.schedule = Schedule(self, share)  # type: ignore[arg-type]

    def now(self) -> float:
        return self.seconds

    def evaluates(self, env_steps: int = 0, updates: int = 0, seconds: float = 1.0) -> bool:
        """Publish a policy; returns whether it is evaluated."""
        self.version += 1
        stamp = Stamp(version=self.version, updates=updates, env_steps=env_steps)
        if not self.schedule.is_due(stamp):
            return False
        began_s = self.seconds
        self.seconds += seconds
        self.schedule.ended(stamp, began_s)
        return True


def test_by_env_steps_an_evaluation_follows_each_multiple() -> None:
    made = Evaluator(**{"evaluator.every_steps": 1000})
    steps = [10, 990, 1005, 1999, 2001, 2002, 5500, 5999, 6000]
    assert [n for n in steps if made.evaluates(env_steps=n)] == [1005, 2001, 5500, 6000]


def test_with_steps_and_updates_both_must_have_passed() -> None:
    made = Evaluator(**{"evaluator.every_steps": 1000, "evaluator.every_updates": 10})
    counts = [(1001, 9), (1002, 11), (1500, 25), (2001, 26), (3000, 29), (3000, 30)]
    assert [c for c in counts if made.evaluates(*c)] == [(1002, 11), (2001, 26), (3000, 30)]


def test_by_seconds_an_evaluation_waits_for_its_share_of_the_time() -> None:
    made = Evaluator(**{"evaluator.every_s": 3.0, "evaluator.share": 0.25})
    assert made.evaluates(seconds=2.0)
    made.seconds = 107.9
    assert not made.evaluates(), "2 s are a quarter of 8 s"
    made.seconds = 108.0
    assert made.evaluates(seconds=0.1)
    made.seconds = 110.9
    assert not made.evaluates(), "at least 3 s"
    made.seconds = 111.0
    assert made.evaluates()


def test_given_seconds_and_share_hold_beside_env_steps() -> None:
    made = Evaluator(**{"evaluator.every_steps": 10, "evaluator.every_s": 5.0})
    assert made.evaluates(env_steps=10)
    assert not made.evaluates(env_steps=30)
    made.seconds += 4.0
    assert made.evaluates(env_steps=40)


def test_neither_the_untrained_policy_nor_one_twice() -> None:
    made = Evaluator()
    assert not made.schedule.is_due(Stamp(version=1))
    assert made.evaluates()
    made.seconds += 100
    made.version -= 1
    assert not made.evaluates()
