"""Trains the runs of a sweep's trials: one trial beside the other, and the seeds of a trial in turn."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from spreeze.cli import OK, USAGE
from spreeze.cli.sweep.score import PARTS, Score, share_done
from spreeze.cli.sweep.study import FAILED, FINISHED, INTERRUPTED, PRUNED, Study, Trial
from spreeze.run.side_by_side import Ended, RunCommand, SideBySide
from spreeze.settings.checks import check_config
from spreeze.settings.config import Config
from spreeze.settings.defaults import config_with
from spreeze.settings.space import as_flags
from spreeze.store.curves import estimate
from spreeze.store.rundir import RunDir

LOOK_EVERY_S = 1.0
KEPT_LINES = 40
"""Of what a run has printed: if it fails, the end says why."""


class Refused(Exception):
    """The first run of the sweep did not start; the text says why."""


class Setup(NamedTuple):
    """What the runs of all trials have in common."""

    folder: Path
    words: Sequence[str]
    """What follows `spreeze train` for those who repeat a trial."""
    own_words: Sequence[str]
    """What the runs of a sweep have beyond that."""
    sample: Config
    """The config of one trial."""
    seeds: Sequence[int]
    score: Score
    num_trials: int
    may_differ: bool
    """Whether trials differ so much that one may be refused, and another not."""


@dataclass
class Live:
    """A trial whose runs are trained now."""

    trial: Trial
    began_s: float = field(default_factory=time.monotonic)
    scores: list[float] = field(default_factory=list)
    """Of the seeds that are done."""
    is_training: bool = False
    pruned: bool = False
    parts_seen: int = 0
    """Of the run that is trained now."""
    newest: float | None = None
    said: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    @property
    def name(self) -> str:
        """What it is called."""
        return f"trial {self.trial.number}"

    @property
    def run(self) -> str:
        """The run that is trained now."""
        return self.trial.runs[len(self.scores)]


class Trials:
    """All trials of a sweep, from the first that is missing to the last."""

    def __init__(
        self,
        setup: Setup,
        study: Study,
        at_once: int,
        changed: Callable[[Trials, Trial | None], None],
    ) -> None:
        """Train nothing yet. `changed` is called with each trial that begins or ends, and with None in between."""
        self.live: dict[str, Live] = {}
        self._setup, self._study, self._changed = setup, study, changed
        self._runs = SideBySide(self._next_command, at_once, self._keep_line, self._look)
        self._num_left = setup.num_trials - study.num_done()
        self._looked_s = 0.0
        self._any_worked = study.num_done() > 0

    @property
    def signal(self) -> int | None:
        """The signal that has ended the sweep, if any."""
        return self._runs.signal

    def train(self) -> None:
        """Train all that are missing. Refused if the very first run does not start."""
        try:
            for ended in self._runs.train():
                self._ended(ended)
        finally:
            for live in [*self.live.values()]:
                self._end(live, INTERRUPTED)

    def share(self, live: Live) -> float:
        """The share that is done of a trial."""
        run = (
            RunDir(self._setup.folder / live.run)
            if len(live.scores) < len(live.trial.runs)
            else None
        )
        part = share_done(run, self._setup.sample) if run is not None else 0.0
        return (len(live.scores) + part) / len(self._setup.seeds)

    def _next_command(self) -> RunCommand | None:
        waiting = [live for live in self.live.values() if not live.is_training]
        if waiting:
            return self._command(waiting[0])
        while self._num_left > 0:
            self._num_left -= 1
            trial = self._study.ask(self._run_names)
            live = self.live[f"trial {trial.number}"] = Live(trial)
            self._changed(self, trial)
            problems = self._problems(trial)
            if not problems:
                return self._command(live)
            self._end(live, FAILED, cause=" ".join(problems))
        return None

    def _command(self, live: Live) -> RunCommand:
        live.is_training, live.parts_seen = True, 0
        live.said.clear()
        seed = self._setup.seeds[len(live.scores)]
        own = ["--seed", str(seed), "--name", live.run, "--runs", str(self._setup.folder)]
        words = [*self._setup.words, *self._setup.own_words, *as_flags(live.trial.values), *own]
        return RunCommand(live.name, ["spreeze", "train", *words])

    def _run_names(self, number: int) -> list[str]:
        seeds = self._setup.seeds
        names = [f"trial-{number:03d}-{seed}" for seed in seeds]
        return names if len(seeds) > 1 else [f"trial-{number:03d}"]

    def _problems(self, trial: Trial) -> list[str]:
        """What is wrong with these values together."""
        if "algo" in trial.values:
            return []  # the run says so
        return check_config(replace(config_with(self._setup.sample, trial.values), seeds=None))

    def _keep_line(self, label: str, line: str) -> None:
        if line.strip():
            self.live[label].said.append(line)

    def _look(self) -> None:
        """Report how far each run is, and stop those that promise nothing."""
        now = time.monotonic()
        if now - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now
        for live in self.live.values():
            if live.is_training and not live.pruned and self._report(live):
                live.pruned = True
                self._runs.stop(live.name)
        self._changed(self, None)

    def _report(self, live: Live) -> bool:
        """Store the parts that a run has completed since the last look; True if it should be pruned."""
        run = RunDir(self._setup.folder / live.run)
        earlier = (
            [-score for score in live.scores] if self._setup.score.kind == "time" else live.scores
        )
        for part, value in self._setup.score.on_the_way(run, self._setup.sample):
            if part <= live.parts_seen:
                continue
            live.parts_seen = part
            live.newest = abs(value) if self._setup.score.kind == "time" else value
            mean = estimate([*earlier, value]).middle
            if self._study.report(live.trial, len(live.scores) * PARTS + part, mean):
                return True
        return False

    def _ended(self, ended: Ended) -> None:
        """A run has ended: what becomes of its trial?"""
        live = self.live[ended.command.label]
        live.is_training = False
        if self.signal is not None:
            return self._end(live, INTERRUPTED)
        if live.pruned:
            return self._end(live, PRUNED)
        if ended.code != OK:
            if ended.code == USAGE and not (self._any_worked or self._setup.may_differ):
                self._end(live, INTERRUPTED)
                raise Refused("\n".join(live.said))
            return self._end(live, FAILED, cause=_cause(ended.code, live.said))
        self._any_worked = True
        self._report(live)
        score = self._setup.score.of_run(RunDir(self._setup.folder / live.run))
        if score is None:
            return self._end(live, FAILED, cause=f"no evaluation had {self._setup.score.metric}")
        live.scores.append(score)
        if len(live.scores) == len(self._setup.seeds):
            self._end(live, FINISHED, score=estimate(live.scores).middle)
        return None

    def _end(
        self, live: Live, state: str, score: float | None = None, cause: str | None = None
    ) -> None:
        seconds = round(time.monotonic() - live.began_s, 1)
        del self.live[live.name]
        self._study.end(live.trial, state, score, cause and cause.strip()[:500], seconds)
        found = next(one for one in self._study.trials() if one.number == live.trial.number)
        self._changed(self, found)


def _cause(code: int, said: Sequence[str]) -> str:
    """Why a run failed: the last line that it has printed, unless it was killed."""
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    return said[-1] if said else f"exit code {code}"
