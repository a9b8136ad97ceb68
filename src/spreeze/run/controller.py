"""The controller: moves the live knobs of a run by small steps, and keeps what makes it learn faster.

Every few seconds it compares: rates as they are, then rates after one change of one knob. What made
`learning_speed` larger by more than noise stays, anything else is undone. When no change helps any
more it has settled, and just watches: once the speed leaves its level, because another program takes
cores or gives them back, it looks around again, first at the settings it once began with. Another batch
size is tried only where updates are much rarer than the one in use was chosen for, and only among the first
updates: a trial takes seconds, and late in a run it has cost what was learned.

Only knobs that were "auto" are moved, and never out of the bounds of the ratio of updates to env
steps, nor to where the replay would turn over too fast.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from spreeze.settings.config import Config, resolved
from spreeze.settings.speed import learning_speed
from spreeze.wires.control import Control

WINDOW_S, SETTLE_S = 4.0, 1.0
"""How long rates are measured, and how long a change has time to show before."""
GAIN = 0.04
"""What a change must bring to be kept: more than two windows differ by chance."""
DISTURBED = 0.2
"""How far the speed leaves its level until the settings are looked at again."""
RETRY_INITIAL_S, HOMESICK_MOST_S = 30.0, 300.0
"""How long until the first settings are tried again, at first and at most."""
AS_EXPECTED, EARLY_UPDATES = 0.8, 50_000
"""Share of the expected updates from which on a batch size is what it was chosen for, and how many updates
there may be when another one is tried. With HalfCheetah-v5, two trials at 190,000 and 460,000 did harm."""
PATIENCE_S = 90.0
"""How long a batch size may take to be compiled."""
YOUNGEST_S = 2.0
"""The replay never holds less than so many seconds of experience."""

Settings = dict[str, float]
T = TypeVar("T")
Wait = Generator[None, None, T]
"""Goes on at each tick, until it has its result."""
BATCH = "learner.batch_size"
WORDS = {
    "sampler.processes": "active_samplers",
    BATCH: "batch_size",
    "learner.ratio_bounds": "min_updates_per_step",
}
"""Knobs that can be moved, and their words on the control wire."""


@dataclass(frozen=True)
class Rates:
    """What a run does per second, over one window."""

    update_hz: float
    sample_hz: float
    batch_size: int

    @property
    def speed(self) -> float:
        """How fast it learns, as far as rates tell it."""
        return learning_speed(self.update_hz, self.batch_size, self.sample_hz)


@dataclass(frozen=True)
class Decision:
    """One change that was tried, and what became of it."""

    seen: str
    change: str
    gain: float
    kept: bool

    def __str__(self) -> str:
        """In words."""
        what = "kept" if self.kept else "undone"
        return f"{self.change}: {100 * self.gain:+.0f} % ({what})"


class Controller:
    """Watches one run and moves its live knobs."""

    def __init__(
        self,
        config: Config,
        chosen: Collection[str],
        expected_hz: Mapping[int, float],
        control: Control,
    ) -> None:
        """Move those of the knobs that are among `chosen`: the user gave the others.

        `expected_hz` has the updates per second that each batch size worth a try was said to give.
        """
        self.resolved = False
        """Whether nothing is left to try for now."""
        self._control = control
        self._config, self._expected_hz = config, expected_hz
        self._free = [] if config.tuner.off or config.serial else [k for k in WORDS if k in chosen]
        if config.learner.updates_per_step != "auto":
            self._free = [name for name in self._free if name != "learner.ratio_bounds"]
        self._home = self._settings()
        self._refused: set[float] = set()
        """Batch sizes that another one was better than."""
        self._search = self._look_around()
        self._now_s = 0.0
        self._decision: Decision | None = None

    def tick(self, now_s: float) -> Decision | None:
        """To be called about once a second; returns a decision when there is one."""
        if not self._free or not self._ready():
            return None
        self._now_s, self._decision = now_s, None
        next(self._search)
        return self._decision

    def _ready(self) -> bool:
        """Whether rates mean something: updates run, in the form that they will keep."""
        learner = self._control.learner
        waits_for_compiler = self._config.learner.compile and not learner["compiled"]
        return bool(learner["first_update_s"] > 0) and not waits_for_compiler

    def _look_around(self) -> Wait[None]:
        """Rounds of trials, and between them the watch for a change from outside."""
        before = yield from self._measure()
        while True:
            while (after := (yield from self._round(before))) is not None:
                before = after
            self.resolved = True
            before = yield from self._watch(before)
            self.resolved = False

    def _round(self, before: Rates) -> Wait[Rates | None]:
        """Try one change after the other, up to the first that helps."""
        for change in self._changes(before):
            if (after := (yield from self._try(change, before))) is not None:
                return after
        return None

    def _watch(self, level: Rates) -> Wait[Rates]:
        """Wait until the speed has left its level for two windows, or home calls; returns the new one."""
        strikes, since_s, homesick_s = 0, self._now_s, RETRY_INITIAL_S
        rates = level
        while strikes < 2:
            rates = yield from self._measure()
            off = abs(rates.speed / max(level.speed, 1e-9) - 1)
            strikes = strikes + 1 if off > DISTURBED else 0
            home, now = dict(self._home), self._settings()
            if BATCH in home:
                home[BATCH] = now[BATCH]
            if now != home and self._now_s - since_s > homesick_s:
                if (there := (yield from self._try(home, rates))) is not None:
                    return there
                since_s, homesick_s = self._now_s, min(2 * homesick_s, HOMESICK_MOST_S)
        return rates

    def _try(self, change: Settings, before: Rates) -> Wait[Rates | None]:
        """Apply a change for a while; the rates with it if it stays, None if not."""
        old = self._settings()
        moved = {name: value for name, value in change.items() if old[name] != value}
        said = ", ".join(f"{_short(k)} {old[k]:g} -> {value:g}" for k, value in moved.items())
        self._apply(change)
        yield from self._arrive()
        yield from self._pause(SETTLE_S)
        after = yield from self._measure()
        gain = after.speed / max(before.speed, 1e-9) - 1
        kept = gain > GAIN
        if not kept:
            self._apply(old)
        if BATCH in moved and after.batch_size == moved[BATCH] and after.update_hz > 0:
            self._refused.add(old[BATCH] if kept else moved[BATCH])
        seen = f"{before.update_hz:,.0f} updates/s of {before.batch_size}, {before.sample_hz:,.0f} steps/s"
        self._decision = Decision(seen, said, gain, kept)
        if kept:
            return after
        yield from self._arrive()
        yield from self._pause(SETTLE_S)
        return None

    def _changes(self, rates: Rates) -> Iterator[Settings]:
        """What may help, the likeliest first. Asked for one by one: each may have changed the rest."""
        now = self._settings()
        if "sampler.processes" in now:
            num, most = int(now["sampler.processes"]), resolved(self._config.sampler.processes)
            step = max(1, num // 4)
            if num < most and self._replay_s(rates) > YOUNGEST_S * most / num:
                yield {"sampler.processes": min(num + step, most)}
            if num > 1 and self._cores_are_shared:
                yield {"sampler.processes": num - step}
        if "learner.ratio_bounds" in now and self._cores_are_shared:
            low, high = resolved(self._config.learner.ratio_bounds)
            ratio = now["learner.ratio_bounds"]
            yield {"learner.ratio_bounds": min(ratio * 1.5, high)}
            if ratio > low:
                yield {"learner.ratio_bounds": max(ratio / 1.5, low)}
        expected_hz = self._expected_hz.get(int(now.get(BATCH, 0)), 0.0)
        early = int(self._control.learner["updates"]) < EARLY_UPDATES
        if early and rates.update_hz < AS_EXPECTED * expected_hz:
            sizes = sorted(self._expected_hz)
            at = sizes.index(int(now[BATCH]))
            near = [*sizes[at + 1 : at + 2], *sizes[max(at - 1, 0) : at]]
            yield from ({BATCH: float(size)} for size in near if size not in self._refused)

    @property
    def _cores_are_shared(self) -> bool:
        """Whether a sampler that rests leaves its core to the learner."""
        return self._config.cores == "shared"

    def _replay_s(self, rates: Rates) -> float:
        """Seconds of experience in a full replay."""
        return resolved(self._config.replay.capacity) / max(rates.sample_hz, 1e-9)

    def _settings(self) -> Settings:
        return {name: float(self._control.supervisor[WORDS[name]]) for name in self._free}

    def _apply(self, settings: Settings) -> None:
        for name, value in settings.items():
            self._control.supervisor[WORDS[name]] = value

    def _arrive(self) -> Wait[None]:
        """Wait until the learner has the batch size that it should have, compiled, or gives up on it."""
        words, began_s = self._control, self._now_s
        wanted = int(words.supervisor["batch_size"])
        while int(words.learner["batch_size"]) != wanted and self._now_s - began_s < PATIENCE_S:
            yield

    def _pause(self, seconds: float) -> Wait[None]:
        until_s = self._now_s + seconds
        while self._now_s < until_s:
            yield

    def _measure(self) -> Wait[Rates]:
        """Rates over one window, from the counters themselves."""
        control, began_s = self._control, self._now_s
        steps, updates = control.env_steps, int(control.learner["updates"])
        yield from self._pause(WINDOW_S)
        passed_s = max(self._now_s - began_s, 1e-9)
        return Rates(
            update_hz=(int(control.learner["updates"]) - updates) / passed_s,
            sample_hz=(control.env_steps - steps) / passed_s,
            batch_size=int(control.learner["batch_size"]),
        )


def _short(name: str) -> str:
    """A knob in the words of a line on the screen."""
    return {
        "sampler.processes": "samplers",
        BATCH: "batch",
        "learner.ratio_bounds": "updates per step at least",
    }[name]
