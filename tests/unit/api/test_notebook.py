"""The screen of a notebook: one output that is replaced."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from spreeze.api import notebook
from spreeze.api.notebook import NotebookScreen, in_notebook
from spreeze.errors import RunFailed, UsageError
from spreeze.machine.facts import Machine
from spreeze.run.plan import make_plan
from spreeze.run.snapshot import Snapshot
from spreeze.run.start_up import Milestone
from spreeze.settings.defaults import config_with, default_config
from spreeze.spec import EnvSpec
from spreeze.store.rundir import RunDir

CONFIG = default_config("sac", "Pendulum-v1")
SPEC = EnvSpec(
    id="Pendulum-v1", obs_shape=(3,), action_shape=(1,), action_low=(-2.0,), action_high=(2.0,)
)


class Notebook:
    """Stands for IPython: remembers what the output of the cell was, one after another."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.outputs = 0

    def display(self, page: str, display_id: bool) -> Any:
        assert display_id, "else it cannot be replaced"
        self.outputs += 1
        self.shown.append(page)
        return SimpleNamespace(update=self.shown.append)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    cell, ipython, display = Notebook(), ModuleType("IPython"), ModuleType("IPython.display")
    vars(ipython)["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    vars(display).update(HTML=str, display=cell.display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook, "UPDATE_EVERY_S", 0.0)
    return cell


def test_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    for shell in (None, SimpleNamespace(kernel=None), SimpleNamespace()):
        ipython = SimpleNamespace(get_ipython=lambda found=shell: found)
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        assert not in_notebook()


@pytest.mark.usefixtures("cell")
def test_a_kernel_is_one() -> None:
    assert in_notebook()


def test_one_output_shows_the_run_while_it_goes_on(cell: Notebook, tmp_path: Path) -> None:
    with NotebookScreen() as screen:
        screen.announce(Milestone.ENVIRONMENT)
        assert "trying the environment out" in cell.shown[-1]
        screen.announce("Note: a word before the start.")
        screen.announce(make_plan(CONFIG, SPEC, Machine(2, 8 << 30, ())))
        for i in range(1, 4):
            evaluations = [(float(j), -100.0 * j) for j in range(i)]
            snap = Snapshot(time_s=i, eval_return=-100.0 * i, evaluations=evaluations)
            screen(snap, RunDir(tmp_path), CONFIG)
    assert cell.outputs == 1
    last = cell.shown[-1]
    assert "a word before the start" in last
    assert "--learner.batch-size" in last
    assert "-300" in last
    assert "<polyline" in last


def test_the_output_says_what_a_start_waits_for_until_it_ends(
    cell: Notebook, tmp_path: Path
) -> None:
    with NotebookScreen() as screen:
        snap = Snapshot(awaited=Milestone.LEARNER, compiling=True)
        screen(snap, RunDir(tmp_path), config_with(CONFIG, {"learner.warmup_rows": 1000}))
        assert "the learner loads torch" in cell.shown[-1]
        assert "limit" not in cell.shown[-1]
        assert "compiling" in cell.shown[-1]
    with NotebookScreen() as screen:
        screen.announce(Milestone.ENVIRONMENT)
    assert "trying" not in cell.shown[-1], "the run was refused"


def test_updates_are_rare_but_the_last_state_is_shown(
    cell: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, "UPDATE_EVERY_S", 3600.0)
    with NotebookScreen() as screen:
        for i in range(100):
            screen(Snapshot(env_steps=i), RunDir(tmp_path), CONFIG)
    assert len(cell.shown) <= 2
    assert "99 at" in cell.shown[-1]


def test_the_page_can_be_clicked_until_the_run_ends(cell: Notebook, tmp_path: Path) -> None:
    address = 'http://127.0.0.1:1/?token=secret&x="><script>'
    with NotebookScreen() as screen:
        screen(Snapshot(page=address, warnings=["<b>bold</b>\ntrace"]), RunDir(tmp_path), CONFIG)
    during, after = cell.shown
    assert '<a href="http://127.0.0.1:1/?token=secret&amp;x=&quot;&gt;' in during
    assert "<script" not in during
    assert "&lt;b&gt;bold" in during
    assert "trace" not in during
    assert "secret" not in after, "the file of the notebook keeps what is shown last"


def test_a_mistake_is_shown_without_our_own_code() -> None:
    assert UsageError(["one", "two"])._render_traceback_() == ["UsageError: one", "UsageError: two"]
    assert RunFailed("the arm fell off")._render_traceback_() == ["RunFailed: the arm fell off"]
