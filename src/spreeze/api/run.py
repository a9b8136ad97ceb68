"""A run from Python: its summary, its policy, its curve and its metrics, all read from its folder."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from spreeze.api import html
from spreeze.store.rundir import RunDir, find_run, run_facts
from spreeze.text import short

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from spreeze.envs.targets import EnvTarget
    from spreeze.policy import MakeModule, Policy


class Run:
    """One run, from its folder: running or ended, of this program or of an earlier one.

    `spreeze.train` returns one. `Run("name")` opens one by its path, or by its name in the folder `runs`; `Run()` is the
    newest.
    """

    def __init__(self, run: str | Path | None = None, *, runs: str | Path = "runs") -> None:
        """Open a run; UsageError if there is none."""
        self.path: Path = find_run(None if run is None else str(run), Path(runs)).path.absolute()
        """Its folder."""
        self.env: EnvTarget | None = None
        """What it was trained on, if that was in this program: a stored run never chooses code."""
        self.algo: str | None = None
        """Its algorithm, if that is your own code and was named in this program."""
        self._summary: dict[str, Any] | None = None

    @classmethod
    def ended(cls, path: Path, summary: dict[str, Any], env: EnvTarget, algo: str) -> Run:
        """A run of this program that has ended."""
        run = cls(path)
        run._summary, run.env = summary, env
        run.algo = algo if ":" in algo else None
        return run

    @property
    def summary(self) -> dict[str, Any]:
        """How it ended: return, time, rates (docs/runs.md). Empty while it runs."""
        return RunDir(self.path).read("summary") if self._summary is None else self._summary

    @cached_property
    def policy(self) -> Policy:
        """The policy with the best evaluation, or the newest one if none was evaluated. Needs numpy only."""
        return load(self.path, network=self._network())

    def curve(self) -> dict[str, NDArray[np.float64]]:
        """The evaluations as columns: `time_s`, `env_steps`, `updates` and `mean_return`.

        `pandas.DataFrame(run.curve())` is a table of them.
        """
        from spreeze.store.curves import read_curve

        columns = ("time_s", "env_steps", "updates", "mean_return")
        return dict(zip(columns, read_curve(RunDir(self.path)).T.copy(), strict=True))

    def metrics(self, role: str | None = None) -> dict[str, NDArray[Any]]:
        """Every recorded number as columns of one length, ordered by time (docs/metrics.md has the names).

        The column `role` says which process wrote a row; a metric that it does not record is NaN there. `role`
        keeps the rows of one process, such as "sampler-1", or of all of a kind, such as "sampler".
        """
        from spreeze.store.columns import read_columns

        return read_columns(self.path / "metrics", role)

    def plot(
        self,
        *others: Run | str | Path,
        x: Literal["time", "steps", "updates"] = "time",
        out: str | Path | None = None,
    ) -> Figure:
        """Draw its learning curve as `spreeze plot` does, with those of other runs; also to the file `out`.

        Runs of one setting become one line with an interval. Needs matplotlib (extra `plot`).
        """
        from spreeze.cli.commands.plot import DPI, plot_runs

        runs = [self, *(run if isinstance(run, Run) else Run(run) for run in others)]
        figure = plot_runs([RunDir(run.path) for run in runs], x)
        if out is not None:
            figure.savefig(out, dpi=DPI)
        return figure

    def _network(self) -> MakeModule | None:
        """What makes the policy's module, if the algorithm is known."""
        from spreeze.algos import find_algorithm
        from spreeze.cli.playback import network_of

        return network_of(find_algorithm(self.algo), RunDir(self.path)) if self.algo else None

    def __repr__(self) -> str:
        facts = run_facts(RunDir(self.path))
        return (
            f"<Run {self.path.name}: {facts['env']}, {facts['algo']}, {_ending(facts)}, "
            f"best return {short(facts['best_return'])}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        facts = run_facts(RunDir(self.path))
        seconds = short(facts["wall_s"])
        rows = {
            "task": f"{facts['env']}, {facts['algo']}, seed {facts['seed']}",
            "ended": f"{_ending(facts)} after {seconds} s",
            "return": f"best {short(facts['best_return'])}, last {short(facts['final_return'])}",
            "env steps": f"{short(facts['env_steps'])} at {short(facts['sample_hz'])}/s",
            "updates": f"{short(facts['updates'])} at {short(facts['update_hz'])}/s",
            "folder": str(RunDir(self.path).short_path),
        }
        curve = self.curve()
        points = zip(curve["time_s"].tolist(), curve["mean_return"].tolist(), strict=True)
        return html.title(self.path.name) + html.table(rows) + html.curve(list(points))


def load(
    run: str | Path | Run, *, runs: str | Path = "runs", network: MakeModule | None = None
) -> Policy:
    """The best policy of a run, or its last one if none was evaluated. Needs numpy only.

    `network` is for a policy that acts through torch: your class or function of (inputs, outputs) that makes its module.

    `run` is a run, its path, its name in the folder `runs`, or the path of one of its checkpoints.
    """
    from spreeze.policy.load import load_policy

    path = run.path if isinstance(run, Run) else Path(run)
    if (path / "policy.safetensors").exists():
        return load_policy(path, network)
    return load_policy(find_run(str(path), Path(runs)).checkpoint(), network)


def _ending(facts: dict[str, Any]) -> str:
    """State and reason of a run in words."""
    return f"{facts['state']} ({facts['reason']})" if facts["reason"] else str(facts["state"])
