"""What a callback is given: it reads the run, and asks for things that the supervisor does at its next tick."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from spreeze.envs.calls import EnvMembers
from spreeze.run.callbacks.live_knobs import check_live_knob
from spreeze.settings.config import Config
from spreeze.text import suggest
from spreeze.wires.control import Control

EnvRole = Literal["sampler", "evaluator", "visualizer"]
ENV_ROLES: tuple[EnvRole, ...] = get_args(EnvRole)
"""The roles that have environments."""
PREFIX = "callback/"
ENVPOOL = "EnvPool's environments are C++ and take no calls. Use --env.engine gymnasium."
MAX_ARGUMENTS = 2000
"""The most bytes of JSON that one call may carry."""


@dataclass(frozen=True)
class Stop:
    """End the run."""

    reason: str


@dataclass(frozen=True)
class SaveCheckpoint:
    """Write a checkpoint now."""


@dataclass(frozen=True)
class Evaluate:
    """Evaluate now."""


@dataclass(frozen=True)
class SetKnob:
    """Change a setting that may change during a run."""

    name: str
    value: float


@dataclass(frozen=True)
class CallEnvs:
    """Call a method of every environment, or set an attribute."""

    name: str
    arguments: list[Any]
    """Of the method; or the attribute's value alone."""
    is_attribute: bool
    now: bool
    roles: tuple[EnvRole, ...]


Request = Stop | SaveCheckpoint | Evaluate | SetKnob | CallEnvs


class LiveRun:
    """A run that goes on, as a callback sees it. Its methods may be called from hooks only."""

    def __init__(
        self,
        path: Path,
        config: Config,
        control: Control,
        elapsed_s: Callable[[], float],
        members: EnvMembers | None = None,
    ) -> None:
        """`members`: the names that the environment has; None if they are not known."""
        self.path = path
        """The run's folder."""
        self.config = config
        """Its settings, without any "auto"."""
        self.metrics: dict[str, float] = {}
        """The newest value of each metric, as of the last `on_log`."""
        self.requests: deque[Request] = deque()
        """What callbacks have asked for; the supervisor takes it out."""
        self.logged: dict[str, float] = {}
        """What callbacks have logged since the last record."""
        self._control, self._elapsed_s, self._members = control, elapsed_s, members

    @property
    def time_s(self) -> float:
        """Seconds since the start of the command."""
        return self._elapsed_s()

    @property
    def env_steps(self) -> int:
        """Env steps of all samplers together."""
        return self._control.env_steps

    @property
    def updates(self) -> int:
        """Updates of the networks."""
        return int(self._control.learner["updates"])

    @property
    def best_return(self) -> float | None:
        """The best mean return of an evaluation; None before the first."""
        best = float(self._control.evaluator["best_return"])
        return best if self._control.evaluator["evaluations"] and math.isfinite(best) else None

    def log(self, name: str, value: float) -> None:
        """Record a number. A name without a slash gets `callback/` in front."""
        if not re.fullmatch(r"[\w.+-]+(/[\w.+-]+)*", name) or len(name) > 100:
            raise ValueError(
                f"run.log({name!r}, ...): up to 100 letters, digits, . _ + - and slashes between them"
            )
        number = _as_number(f"run.log({name!r}, ...)", value)
        self.logged[name if "/" in name else PREFIX + name] = number

    def stop(self, reason: str) -> None:
        """End the run as if its time was up; summary.json has the reason."""
        self.requests.append(Stop(" ".join(str(reason).split())[:500] or "a callback stopped it"))

    def save_checkpoint(self) -> None:
        """Write a checkpoint of the whole training state now; `on_checkpoint` says when it is there."""
        self.requests.append(SaveCheckpoint())

    def evaluate(self) -> None:
        """Evaluate now, or as soon as the evaluation under way has ended."""
        self.requests.append(Evaluate())

    def set_knob(self, name: str, value: float) -> None:
        """Change `algo.lr`, `learner.updates_per_step` or `exploration`; ValueError if that is impossible."""
        number = _as_number(f"run.set_knob({name!r}, ...)", value)
        check_live_knob(self.config, name, number)
        self.requests.append(SetKnob(name, number))

    def call_envs(
        self,
        method: str,
        *arguments: Any,
        now: bool = False,
        roles: Collection[EnvRole] = ENV_ROLES,
    ) -> None:
        """Call a method of every environment before its next reset; with `now`, in the middle of episodes.

        Of each method the newest call counts: environments that are made later get it too.
        """
        known = self._members.methods if self._members else None
        self._ask(CallEnvs(method, list(arguments), False, now, _roles(roles)), known, "method")

    def set_env_attr(
        self,
        name: str,
        value: Any,
        *,
        now: bool = False,
        roles: Collection[EnvRole] = ENV_ROLES,
    ) -> None:
        """Set an attribute of every environment, like `call_envs`."""
        known = self._members.attributes if self._members else None
        self._ask(CallEnvs(name, [value], True, now, _roles(roles)), known, "attribute")

    def _ask(self, call: CallEnvs, known: Collection[str] | None, kind: str) -> None:
        if self.config.simulation.engine == "envpool":
            raise ValueError(f"{call.name!r}: {ENVPOOL}")
        if known is not None and call.name not in known:
            raise ValueError(
                f"the environment has no {kind} {call.name!r}.{suggest(call.name, known)}"
            )
        try:
            plain = json.loads(json.dumps(call.arguments, default=_plain, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{call.name}: environments can be given numbers, text, lists and dictionaries ({error})"
            ) from None
        if len(json.dumps(plain)) > MAX_ARGUMENTS:
            raise ValueError(f"{call.name}: the arguments have more than {MAX_ARGUMENTS:,} bytes")
        self.requests.append(CallEnvs(call.name, plain, call.is_attribute, call.now, call.roles))


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy as JSON."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"not {type(value).__name__}")


def _roles(roles: Collection[EnvRole]) -> tuple[EnvRole, ...]:
    asked: Sequence[str] = [roles] if isinstance(roles, str) else list(roles)
    if unknown := set(asked) - set(ENV_ROLES):
        raise ValueError(f"roles {sorted(unknown)}: there are {', '.join(ENV_ROLES)}")
    return tuple(role for role in ENV_ROLES if role in asked)


def _as_number(what: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{what}: {value!r:.80} is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{what}: {number} is not finite")
    return number
