"""The controller: tunes some settings while the run learns, and keeps what makes it learn faster.

It measures the rates for a few seconds, changes one setting, and measures again. A change that
raises `learning_speed` by more than noise stays; any other is undone. When no change helps any more,
the controller has settled and only watches. If the speed then leaves its level, because another
program takes cores or frees them, it searches again. From time to time it retries the initial
settings. Another batch size is tried only if updates are much slower than expected for the one in
use, and only early in the run: a trial takes seconds, and late trials have damaged learned policies.

Only settings that were "auto" are moved. The ratio of updates to env steps stays within its bounds,
and the replay never turns over too fast.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from spreeze.settings.config import Config, resolved
from spreeze.settings.speed import learning_speed
from spreeze.wires.control import CompileState, Control

WINDOW_S, SETTLE_S = 4.0, 1.0
"""How long rates are measured, and how long a change gets to take effect before that."""
GAIN = 0.04
"""The gain that keeps a change: more than two windows differ by chance."""
DISTURBED = 0.2
"""How far the speed must leave its level before the search starts again."""
RETRY_INITIAL_S, RETRY_MOST_S = 30.0, 300.0
"""When the initial settings are tried again; each retry that fails doubles the time, up to the second number."""
AS_EXPECTED, EARLY_UPDATES = 0.8, 50_000
"""Another batch size is tried below this share of the expected update rate, and before this many updates.
With HalfCheetah-v5, two trials at 190,000 and 460,000 updates did harm."""
COMPILE_LIMIT_S = 90.0
"""How long the learner may take to compile another batch size."""
MIN_REPLAY_S = 2.0
"""The replay always holds at least this many seconds of experience."""

Settings = dict[str, float]
T = TypeVar("T")
Wait = Generator[None, None, T]
"""Resumed at each tick until it returns its result."""
SAMPLERS, BATCH, RATIO = "sampler.processes", "learner.batch_size", "learner.ratio_bounds"
WORDS = {SAMPLERS: "active_samplers", BATCH: "batch_size", RATIO: "min_updates_per_step"}
"""The settings that can be moved, and their words on the control wire."""


@dataclass(frozen=True)
class Rates:
    """What a run did per second, over one window."""

    update_hz: float
    sample_hz: float
    batch_size: int

    @property
    def speed(self) -> float:
        """An estimate of how fast it learns."""
        return learning_speed(self.update_hz, self.batch_size, self.sample_hz)


class Change(NamedTuple):
    """A setting that was moved."""

    knob: str
    old: float
    new: float


@dataclass(frozen=True)
class Decision:
    """A trial and its result."""

    before: Rates
    changes: tuple[Change, ...]
    gain: float
    """Relative change of `Rates.speed`."""
    kept: bool


def movable_settings(config: Config, chosen: Collection[str]) -> list[str]:
    """The settings that may be moved, of those that were "auto"."""
    if config.tuner.off or config.serial:
        return []
    fixed = () if config.learner.updates_per_step == "auto" else (RATIO,)
    return [name for name in WORDS if name in chosen and name not in fixed]


class Controller:
    """Watches one run and moves its settings."""

    def __init__(
        self,
        config: Config,
        chosen: Collection[str],
        expected_hz: Mapping[int, float],
        control: Control,
        count_steps: Callable[[], int] | None = None,
    ) -> None:
        """Move the settings named in `chosen`; the others were given by the user.

        `expected_hz`: the updates per second that the plan expects of each batch size worth a trial.
        `count_steps`: the env steps to judge by; usually those of the run.
        """
        self.settled = False
        """Whether nothing is left to try for now."""
        self._control = control
        self._count_steps = count_steps or (lambda: control.env_steps)
        self._config, self._expected_hz = config, expected_hz
        self._free = movable_settings(config, chosen)
        self._initial = self._settings()
        self._refused: set[float] = set()
        """Batch sizes that lost against another one."""
        self._search = self._run_search()
        self._now_s = 0.0
        self._decision: Decision | None = None

    def tick(self, now_s: float) -> Decision | None:
        """Call this about once a second; returns a decision when a trial has ended."""
        if not self._free or not self._ready():
            return None
        self._now_s, self._decision = now_s, None
        next(self._search)
        return self._decision

    def use_all_samplers(self) -> None:
        """Let every sampler work from now on: some have been given up, so none can rest."""
        if SAMPLERS in self._free:
            self._control.supervisor[WORDS[SAMPLERS]] = resolved(self._config.sampler.processes)
            self.leave_alone(SAMPLERS)

    def leave_alone(self, name: str) -> None:
        """Do not move this setting any more: someone else decides on it."""
        if name in self._free:
            self._free.remove(name)
            self._initial.pop(name)
            self._apply(self._initial)
            self._search = self._run_search()  # a trial with another value is void

    def _ready(self) -> bool:
        """Whether the rates are meaningful: updates run, and in their final form."""
        control = self._control
        undecided = self._config.learner.compile and control.compile_state == CompileState.PLAIN
        return control.first_update_s is not None and not undecided

    def _run_search(self) -> Wait[None]:
        """Rounds of trials; in between, watch for a change from outside."""
        before = yield from self._measure()
        while True:
            while (after := (yield from self._round(before))) is not None:
                before = after
            self.settled = True
            before = yield from self._watch(before)
            self.settled = False

    def _round(self, before: Rates) -> Wait[Rates | None]:
        """Try one change after the other until one helps; returns the rates with it."""
        for change in self._changes(before):
            if (after := (yield from self._try(change, before))) is not None:
                return after
        return None

    def _watch(self, level: Rates) -> Wait[Rates]:
        """Wait until the speed has left its level for two windows, or the initial settings win a retry."""
        strikes, since_s, retry_s = 0, self._now_s, RETRY_INITIAL_S
        rates = level
        while strikes < 2:
            rates = yield from self._measure()
            off = abs(rates.speed / max(level.speed, 1e-9) - 1)
            strikes = strikes + 1 if off > DISTURBED else 0
            initial, now = dict(self._initial), self._settings()
            if BATCH in initial:
                initial[BATCH] = now[BATCH]
            if now != initial and self._now_s - since_s > retry_s:
                if (better := (yield from self._try(initial, rates))) is not None:
                    return better
                since_s, retry_s = self._now_s, min(2 * retry_s, RETRY_MOST_S)
        return rates

    def _try(self, change: Settings, before: Rates) -> Wait[Rates | None]:
        """Apply a change and measure; returns the rates with it if it stays, None if it was undone."""
        old = self._settings()
        moved = {name: value for name, value in change.items() if old[name] != value}
        changes = tuple(Change(name, old[name], value) for name, value in moved.items())
        self._apply(change)
        yield from self._await_batch_size()
        yield from self._pause(SETTLE_S)
        after = yield from self._measure()
        gain = after.speed / max(before.speed, 1e-9) - 1
        kept = gain > GAIN
        if not kept:
            self._apply(old)
        if BATCH in moved and after.batch_size == moved[BATCH] and after.update_hz > 0:
            self._refused.add(old[BATCH] if kept else moved[BATCH])
        self._decision = Decision(before, changes, gain, kept)
        if kept:
            return after
        yield from self._await_batch_size()
        yield from self._pause(SETTLE_S)
        return None

    def _changes(self, rates: Rates) -> Iterator[Settings]:
        """What may help, most likely first. A generator, because each trial may change what comes next."""
        now = self._settings()
        if SAMPLERS in now:
            num, most = int(now[SAMPLERS]), resolved(self._config.sampler.processes)
            step = max(1, num // 4)
            if num < most and self._replay_s(rates) > MIN_REPLAY_S * most / num:
                yield {SAMPLERS: min(num + step, most)}
            if num > 1 and self._cores_are_shared:
                yield {SAMPLERS: num - step}
        if RATIO in now and self._cores_are_shared:
            low, high = resolved(self._config.learner.ratio_bounds)
            ratio = now[RATIO]
            yield {RATIO: min(ratio * 1.5, high)}
            if ratio > low:
                yield {RATIO: max(ratio / 1.5, low)}
        expected_hz = self._expected_hz.get(int(now.get(BATCH, 0)))
        early = int(self._control.learner["updates"]) < EARLY_UPDATES
        if expected_hz is not None and early and rates.update_hz < AS_EXPECTED * expected_hz:
            sizes = sorted(self._expected_hz)
            at = sizes.index(int(now[BATCH]))
            near = [*sizes[at + 1 : at + 2], *sizes[max(at - 1, 0) : at]]
            yield from ({BATCH: float(size)} for size in near if size not in self._refused)

    @property
    def _cores_are_shared(self) -> bool:
        """Whether the learner can use the core of a sampler that rests."""
        return self._config.cores == "shared"

    def _replay_s(self, rates: Rates) -> float:
        """Seconds of experience in a full replay."""
        return resolved(self._config.replay.capacity) / max(rates.sample_hz, 1e-9)

    def _settings(self) -> Settings:
        return {name: float(self._control.supervisor[WORDS[name]]) for name in self._free}

    def _apply(self, settings: Settings) -> None:
        for name, value in settings.items():
            self._control.supervisor[WORDS[name]] = value

    def _await_batch_size(self) -> Wait[None]:
        """Wait until the learner uses the batch size it was given; it may have to compile it first."""
        words, began_s = self._control, self._now_s
        wanted = int(words.supervisor["batch_size"])
        while (
            int(words.learner["batch_size"]) != wanted and self._now_s - began_s < COMPILE_LIMIT_S
        ):
            yield

    def _pause(self, seconds: float) -> Wait[None]:
        until_s = self._now_s + seconds
        while self._now_s < until_s:
            yield

    def _measure(self) -> Wait[Rates]:
        """Rates over one window, from the counters on the control wire.

        If the count of updates goes back, the learner was started again, and the window begins anew.
        """
        control, began_s = self._control, self._now_s
        steps, updates = self._count_steps(), int(control.learner["updates"])
        seen = updates
        while self._now_s < began_s + WINDOW_S:
            yield
            if (now := int(control.learner["updates"])) < seen:
                began_s, steps, updates = self._now_s, self._count_steps(), now
            seen = now
        passed_s = max(self._now_s - began_s, 1e-9)
        return Rates(
            update_hz=(int(control.learner["updates"]) - updates) / passed_s,
            sample_hz=(self._count_steps() - steps) / passed_s,
            batch_size=int(control.learner["batch_size"]),
        )
