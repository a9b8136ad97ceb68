"""Your own code in a run: `spreeze.Callback`, and what it is given.

| module       | what it does                                                                     |
|--------------|----------------------------------------------------------------------------------|
| `load`       | finds the callbacks that a command line names, and refuses what cannot work       |
| `live_run`   | what a callback can see of the run, and ask of it                                 |
| `events`     | notices evaluations, checkpoints and restarts                                     |
| `runner`     | calls the hooks, in a thread, so that a callback that blocks holds up nothing      |
| `desk`       | joins them to the supervisor: events go out, and requests come back               |
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spreeze.run.callbacks.live_run import LiveRun


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation."""

    mean_reward: float
    is_best: bool
    """Whether no earlier evaluation had a higher mean return."""
    time_s: float
    """When it ended, in seconds since the start of the command."""
    env_steps: int
    """Env steps when the newest weights of the policy were published."""
    updates: int
    """The same in updates."""
    metrics: dict[str, float]
    """All metrics of the evaluation by name: `eval/mean_reward`, `eval/success_rate` and so on."""


class Callback:
    """Base class of callbacks: overwrite the hooks that you need.

    Hooks are called in the process that supervises the run, one after another, in a thread of their own.
    """

    fatal: bool = False
    """Whether the run ends when a hook raises. If not, the callback is switched off, and the run goes on."""

    def on_start(self, run: LiveRun) -> None:
        """The run's processes are starting."""

    def on_log(self, run: LiveRun, metrics: dict[str, float]) -> None:
        """About once a second, if there are new metrics: the newest value of each, by name."""

    def on_evaluation(self, run: LiveRun, result: EvaluationResult) -> None:
        """An evaluation has ended."""

    def on_new_best(self, run: LiveRun, result: EvaluationResult) -> None:
        """An evaluation was the best so far; its policy is in `run.path / "checkpoints/best"`."""

    def on_checkpoint(self, run: LiveRun, path: Path) -> None:
        """A checkpoint of the whole training state is complete; it is the folder `path`."""

    def on_restart(self, run: LiveRun, role: str) -> None:
        """A process, such as `sampler-0`, had ended and was started again."""

    def on_end(self, run: LiveRun, summary: dict[str, Any]) -> None:
        """The run has ended, however it did; `summary` is what summary.json will hold."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
