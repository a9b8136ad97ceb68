"""The progress of a sweep: a line for each trial that begins or ends, and a bar for each that goes on."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from spreeze.cli.screen import Terminal
from spreeze.cli.sweep.study import DONE, FINISHED, PRUNED, Trial
from spreeze.cli.sweep.trials import Trials
from spreeze.text import clock, plain, short

LINE_EVERY_S = 30.0
"""Without a terminal, what goes on is said so often."""


class Display:
    """What a sweep shows on standard error."""

    def __init__(self, num_trials: int, num_done: int) -> None:
        """Show nothing yet."""
        self.console = Terminal()
        self._num_trials, self._num_done = num_trials, num_done
        self._best: float | None = None
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
            console=self.console,
            auto_refresh=False,  # its thread would be there when processes are started
            disable=not self.console.is_terminal or self.console.is_dumb_terminal,
        )
        self._total = self._bars.add_task("all trials", total=num_trials, said="")
        self._tasks: dict[int, TaskID] = {}
        self._said_s = time.monotonic()

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()
        self.console.close()

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.console.print(Text(plain(text)), soft_wrap=True)

    def began(self, trial: Trial) -> None:
        """A trial has begun."""
        self.say(f"trial {trial.number}: {trial.described}")
        self._tasks[trial.number] = self._bars.add_task(f"trial {trial.number}", total=1, said="")

    def ended(self, trial: Trial, best: Trial | None) -> None:
        """A trial has ended."""
        self._num_done += trial.state in DONE
        took = clock(trial.seconds or 0.0)
        words = {
            FINISHED: f"{short(trial.score)} after {took}",
            PRUNED: f"pruned after {took}, at {short(trial.curve[-1] if trial.curve else None)}",
        }
        said = words.get(
            trial.state, f"{trial.state}: {trial.cause}" if trial.cause else trial.state
        )
        is_best = best is not None and best.number == trial.number
        self._best = best.score if best is not None else None
        counted = f"{self._num_done} of {self._num_trials} done"
        self.say(
            f"trial {trial.number}: {said}{', the best so far' if is_best else ''} ({counted})"
        )
        if (task := self._tasks.pop(trial.number, None)) is not None:
            self._bars.remove_task(task)

    def draw(self, trials: Trials) -> None:
        """Show how far each trial is."""
        shares = {live.trial.number: (trials.share(live), live) for live in trials.live.values()}
        for number, (share, live) in shares.items():
            if number in self._tasks:
                self._bars.update(self._tasks[number], completed=share, said=short(live.newest))
        done = self._num_done + sum(share for share, _ in shares.values())
        best = "" if self._best is None else f"best {short(self._best)}"
        self._bars.update(self._total, completed=done, said=best)
        self._bars.refresh()
        if self._bars.disable and time.monotonic() - self._said_s > LINE_EVERY_S:
            self._said_s = time.monotonic()
            parts = [f"trial {number} {share:.0%}" for number, (share, _) in shares.items()]
            self.say(f"{self._num_done} of {self._num_trials} trials are done; {', '.join(parts)}")
