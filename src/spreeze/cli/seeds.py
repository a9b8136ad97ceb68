"""`spreeze train ENV --seeds`: a run for each seed, one after another or side by side, and what they show together."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, Any, NamedTuple

from spreeze.cli import FAILED, INTERRUPTED, OK, USAGE
from spreeze.cli.commands.plot import DPI, missing_library, plot_runs
from spreeze.cli.comparison import compare, print_comparison
from spreeze.cli.screen import Screen
from spreeze.errors import RunFailed, UsageError
from spreeze.machine.facts import detect_machine
from spreeze.machine.lifeline import die_with_parent
from spreeze.run.launch import Begun, launch
from spreeze.run.side_by_side import runs_at_once, share_cores
from spreeze.settings.build import each_seed
from spreeze.settings.checks import check_config, check_folder
from spreeze.settings.config import Config
from spreeze.store.rundir import RunDir
from spreeze.text import short

if TYPE_CHECKING:
    from spreeze.run.processes.servers import ForkServers

POLL_S, CHUNK = 0.2, 1 << 16


class Ended(NamedTuple):
    """A run that has ended, or could not start."""

    config: Config
    code: int
    """Its exit code."""


def train_seeds(
    config: Config, arguments: Sequence[str], started_s: float, servers: ForkServers | None
) -> int:
    """Train once for each seed; returns the exit code of all together."""
    if problems := [*check_config(config), *check_folder(Path(config.runs))]:
        raise UsageError(problems)
    base = config.name or _default_name(config)
    configs = each_seed(replace(config, name=base))
    folder = Path(config.runs).absolute()
    taken = [str(one.name) for one in configs if (folder / str(one.name)).exists()]
    if taken:
        raise UsageError(
            [f"run {folder / name} exists already. Give another --name." for name in taken]
        )
    at_once, why = runs_at_once(config, len(configs), detect_machine())
    how = f"{at_once} at a time" if at_once > 1 else "one after another"
    _say(f"{len(configs)} runs, {how}: {why}")
    if at_once > 1:
        if servers is not None:
            servers.close()
        ended = SideBySide(configs, arguments, at_once).train()
    else:
        ended = _one_after_another(configs, started_s, servers)
    codes = {one.code for one in ended}
    if codes == {USAGE}:  # each has said why
        return USAGE
    _report(base, folder, ended, len(configs))
    if INTERRUPTED in codes:
        return INTERRUPTED
    return FAILED if codes & {FAILED, USAGE} else OK


def _default_name(config: Config) -> str:
    """What the names of all runs start with; the seed follows."""
    short_env = re.sub(r"[^\w.]+", "-", config.env).strip("-")[:60]
    algo = config.algo.rpartition(":")[2].lower()
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return "-".join([short_env, *([algo] if algo != "auto" else []), stamp])


def _one_after_another(
    configs: Sequence[Config], started_s: float, servers: ForkServers | None
) -> list[Ended]:
    """Train in this process. The first run has the fork servers that the command has started."""
    ended: list[Ended] = []
    for config in configs:
        first = not ended
        try:
            with Screen() as screen:
                begun = Begun(started_s, servers) if first else None
                run = launch(config, config.env, screen, screen.announce, begun=begun)
        except UsageError as error:
            if first:
                raise
            _say(f"seed {config.seed}: {' '.join(error.problems)}")
            ended.append(Ended(config, USAGE))
            continue
        except RunFailed as error:
            _say(f"seed {config.seed}: {error}")
            ended.append(Ended(config, FAILED))
            continue
        _say(f"seed {config.seed}: {_outcome(run.summary)}")
        ended.append(Ended(config, INTERRUPTED if run.interrupted else OK))
        if run.summary["state"] == "interrupted":
            break
    return ended


def _outcome(summary: dict[str, Any]) -> str:
    """How a run ended, in a few words."""
    seconds = summary["time_to_target_s"] or summary["wall_s"]
    return f"{summary['reason']} after {seconds:.1f} s, best return {short(summary['best_return'])}"


class SideBySide:
    """Runs in processes of their own, each on its share of the cores; their output is shown with the seed before it."""

    def __init__(self, configs: Sequence[Config], arguments: Sequence[str], at_once: int) -> None:
        """Start nothing yet. `arguments` are those of the command."""
        self._waiting = deque(configs)
        self._arguments = list(_without_seeds(arguments))
        self._free = share_cores(sorted(os.sched_getaffinity(0)), at_once)
        self._running: list[_Child] = []
        self._selector = DefaultSelector()
        self._ended: list[Ended] = []

    def train(self) -> list[Ended]:
        """Train all. A signal is passed on to the runs, and no further run starts."""
        with self._signals(), self._selector:
            while self._waiting or self._running:
                while self._waiting and self._free:
                    child = _Child(self._waiting.popleft(), self._arguments, self._free.pop())
                    self._running.append(child)
                    self._selector.register(child.output, EVENT_READ, child)
                for key, _ in self._selector.select(POLL_S):
                    if not key.data.show():
                        self._selector.unregister(key.fileobj)
                for child in [child for child in self._running if child.process.poll() is not None]:
                    self._end(child)
        return self._ended

    def _end(self, child: _Child) -> None:
        """Show the rest of its output, and give its cores to another run."""
        while child.show():
            pass
        if child.output in self._selector.get_map():
            self._selector.unregister(child.output)
        self._running.remove(child)
        self._free.append(child.cores)
        self._ended.append(Ended(child.config, child.close()))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def pass_on(number: int, _frame: object) -> None:
            self._waiting.clear()
            for child in self._running:
                child.process.send_signal(number)

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, pass_on) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Child:
    """One run in a separate process."""

    def __init__(self, config: Config, arguments: Sequence[str], cores: list[int]) -> None:
        self.config, self.cores = config, cores
        own = ["--seed", str(config.seed), "--name", str(config.name)]
        command = [sys.executable, "-P", "-m", "spreeze", "train", *arguments, *own]
        all_cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # it plans for these
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C reaches this process, which passes it on once
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 (no threads yet)
                # What it would measure is disturbed by the others.
                env=os.environ | {"SPREEZE_PROBE": "0"},
            )
        finally:
            os.sched_setaffinity(0, all_cores)
        assert self.process.stdout is not None
        self.output = self.process.stdout.fileno()
        os.set_blocking(self.output, False)
        self._line = b""

    def show(self) -> bool:
        """Print what it has printed; False if there is nothing more."""
        try:
            found = os.read(self.output, CHUNK)
        except BlockingIOError:
            return False
        *lines, self._line = (self._line + found).split(b"\n")
        for line in lines:
            _say(f"seed {self.config.seed}: {line.decode(errors='replace')}")
        return bool(found)

    def close(self) -> int:
        """Its exit code."""
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.wait()


def _without_seeds(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments without those that each run has for itself."""
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in ("--seeds", "--seed", "--name"):
            yield word
        elif not equals:
            next(words, None)


def _report(base: str, folder: Path, ended: Sequence[Ended], num_runs: int) -> None:
    """Print what the runs that have ended show together, and draw their curves."""
    done = [RunDir(folder / str(one.config.name)) for one in ended if one.code == OK]
    rows, without = compare(done)
    if len(done) < num_runs:
        print(f"{len(done)} of {num_runs} runs are done and counted.")
    if without:
        print(f"{without} of them have no evaluation.")
    if not rows:
        return
    print_comparison(rows)
    if problems := missing_library():
        print(f"No plot: {problems[0]}")
    else:
        image = folder / f"{base}.png"
        with_curves = [run for run in done if (run.metrics / "evaluator-0.jsonl").exists()]
        plot_runs(with_curves, "time").savefig(image, dpi=DPI)
        print(f"Plot: {RunDir(image).short_path}")
    print(f"Runs: {RunDir(folder).short_path / base}-*")


def _say(text: str) -> None:
    """Print to standard error, if anyone reads it."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
