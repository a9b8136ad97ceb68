"""Callbacks: which are refused, when their hooks are called, and what they may ask for."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import fakes
import spreeze
from spreeze.envs.calls import EnvMembers
from spreeze.envs.inspect import inspect_env
from spreeze.errors import UsageError
from spreeze.machine.facts import Machine
from spreeze.run.callbacks.desk import Desk, UserCode
from spreeze.run.callbacks.events import NewestMetrics
from spreeze.run.callbacks.load import check_env_names, env_names, load_callbacks
from spreeze.run.callbacks.runner import MAX_EVENTS
from spreeze.run.controller import Controller
from spreeze.run.plan import make_plan
from spreeze.run.progress import Progress
from spreeze.run.start_up import StartUp
from spreeze.settings.defaults import config_with, default_config
from spreeze.store import metrics
from spreeze.store.metrics import Recorder
from spreeze.store.rundir import RunDir
from spreeze.wires.arena import Arena
from spreeze.wires.control import Control
from spreeze.wires.documents import ENV_CALLS, EVALUATION, Document

# --- what is refused


class Good(spreeze.Callback):
    def on_log(self, run: Any, metrics: dict[str, float]) -> None: ...


class Typo(spreeze.Callback):
    def on_evaluate(self, run: Any, result: Any) -> None: ...


class Mute(spreeze.Callback):
    fatal = True


class Short(spreeze.Callback):
    def on_log(self, run: Any) -> None: ...  # type: ignore[override]


class Stranger:
    def on_log(self, run: Any, metrics: dict[str, float]) -> None: ...


class Unmade(Good):
    def __init__(self, needed: int) -> None: ...


def test_a_class_or_an_object_is_a_callback() -> None:
    good = Good()
    assert [type(callback) for callback in load_callbacks((), [Good, good])] == [Good, Good]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            Typo,
            r"callbacks\[0\] Typo: there is no hook on_evaluate; .* Did you mean on_evaluation\?",
        ),
        (Mute, r"Mute: it has none of the hooks on_start, .*, so it would never be called"),
        (Short, r"Short: on_log must take self, run, metrics"),
        (Stranger, r"not a spreeze.Callback. Write: class Stranger\(spreeze.Callback\)"),
        (Unmade, r"making it failed:\n.*needed"),
        (3, r"callbacks\[0\] int: it is not a spreeze.Callback"),
    ],
)
def test_what_cannot_work_is_refused_by_name(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){message}"):
        load_callbacks((), [given])


def test_a_callback_is_named_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "watch.py"
    file.write_text(
        "import spreeze\nclass Watch(spreeze.Callback):\n    on_log = lambda *_: None\n"
    )
    assert type(load_callbacks([f"{file}:Watch"])[0]).__name__ == "Watch"
    for name, message in (
        (f"{file}:Wach", "does not define 'Wach'. Did you mean Watch?"),
        ("Watch", "file.py:MyCallback"),
        (f"{tmp_path}/no.py:Watch", "no such file"),
        ("no_such_module:Watch", "no module 'no_such_module'"),
    ):
        with pytest.raises(UsageError, match="--callback") as refused:
            load_callbacks([name])
        assert message in str(refused.value)
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    with pytest.raises(UsageError, match=r"(?s)importing it failed:.*broken.py.*ZeroDivisionError"):
        load_callbacks([f"{broken}:Watch"])


class Caller(spreeze.Callback):
    def on_start(self, run: Any) -> None:
        run.call_envs("set_dificulty", 0.5)
        run.set_env_attr("gravity", 1)


def test_names_that_the_environment_lacks_are_refused() -> None:
    members = EnvMembers(frozenset({"set_difficulty"}), frozenset({"gravity"}))
    names = env_names([Good(), Caller()])
    assert [(used.method, used.name) for used in names] == [
        ("call_envs", "set_dificulty"),
        ("set_env_attr", "gravity"),
    ]
    with pytest.raises(UsageError) as refused:
        check_env_names(names, members, "MyEnv")
    assert refused.value.problems == [
        "Caller: run.call_envs('set_dificulty', ...), but env MyEnv has no method 'set_dificulty'. "
        "Did you mean set_difficulty?"
    ]


# --- hooks and requests


class Noted(spreeze.Callback):
    """Notes each hook with its arguments, and does what the test wants in it."""

    doings: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def _note(self, hook: str, run: Any, *arguments: Any) -> None:
        self.seen.append((hook, *arguments))
        if hook in self.doings:
            self.doings[hook](run)

    def on_start(self, run: Any) -> None:
        self._note("on_start", run)

    def on_log(self, run: Any, metrics: dict[str, float]) -> None:
        self._note("on_log", run, metrics)

    def on_evaluation(self, run: Any, result: Any) -> None:
        self._note("on_evaluation", run, result)

    def on_new_best(self, run: Any, result: Any) -> None:
        self._note("on_new_best", run, result)

    def on_checkpoint(self, run: Any, path: Path) -> None:
        self._note("on_checkpoint", run, path)

    def on_restart(self, run: Any, role: str) -> None:
        self._note("on_restart", run, role)

    def on_end(self, run: Any, summary: dict[str, Any]) -> None:
        self._note("on_end", run, summary)


class Office:
    """A desk with callbacks; the roles are what the test writes."""

    def __init__(self, folder: Path, *callbacks: spreeze.Callback, **knobs: Any) -> None:
        self.run_dir = RunDir(folder)
        for name in ("metrics", "checkpoints", "logs"):
            (folder / name).mkdir()
        spec = inspect_env(fakes.CountEnv, "x")
        knobs = {"device": "cpu", "serial": True, **knobs}
        config = config_with(default_config(env="x", algo="td3"), knobs)
        self.plan = make_plan(config, spec, Machine(2, 8 << 30, ()))
        self.arena = Arena.create(self.plan.blocks)
        self.control, self.seconds = Control(self.arena), 0.0
        self.records: list[dict[str, Any]] = []
        self.progress = Progress(
            self.plan.config, self.control, StartUp(0.0), self, clock=lambda: self.seconds
        )
        self.said: list[str] = []
        self.controller = Controller(self.plan.config, (), {}, self.control)
        members = EnvMembers(frozenset({"set_difficulty"}), frozenset({"goal"}))
        code = UserCode(callbacks, members, self.said.append)
        self.desk = Desk(
            code, self.plan.config, self.run_dir, self.arena, self.progress, self.controller
        )

    def record(self, **values: Any) -> None:
        self.records.append(values)

    def evaluated(self, mean: float, is_best: bool) -> None:
        value = {"is_best": is_best, "time_s": 1.0, "env_steps": 10, "updates": 5}
        metrics = {"eval/mean_reward": mean, "eval/info/x": None}
        Document(self.arena, EVALUATION).write(value | {"metrics": metrics})


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Any]:
    made: list[Office] = []

    def make(*callbacks: spreeze.Callback, **knobs: Any) -> Office:
        made.append(Office(tmp_path, *callbacks, **knobs))
        return made[-1]

    yield make
    for each in made:
        each.desk.finish({}, lambda: False)
        each.arena.close()


def hooks(callback: Noted) -> list[str]:
    return [seen[0] for seen in callback.seen]


def test_each_hook_is_called_when_its_event_happens(office: Any, tmp_path: Path) -> None:
    noted = Noted()
    made = office(noted)
    made.desk.start()
    assert hooks(noted) == ["on_start"]
    made.desk.tick([])
    assert hooks(noted) == ["on_start"], "nothing has happened"
    made.evaluated(3.0, is_best=False)
    made.desk.tick([])
    made.evaluated(4.0, is_best=True)
    made.desk.tick(["sampler-1"])
    made.control.learner["checkpoints"] += 1
    (tmp_path / "checkpoints" / "000000064").mkdir()
    (tmp_path / "checkpoints" / "last").symlink_to("000000064")
    made.desk.tick([])
    made.desk.finish({"reason": "time"}, lambda: False)
    names = [
        "on_evaluation",
        "on_restart",
        "on_evaluation",
        "on_new_best",
        "on_checkpoint",
        "on_end",
    ]
    assert hooks(noted)[1:] == names
    result = noted.seen[4][1]
    assert (result.mean_reward, result.metrics, result.updates) == (
        4.0,
        {"eval/mean_reward": 4.0},
        5,
    )
    assert noted.seen[5][1] == tmp_path / "checkpoints" / "000000064"
    assert noted.seen[6][1]["reason"] == "time"


@pytest.mark.fault("F64")
def test_what_callbacks_log_on_a_full_disk_is_counted(
    office: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Logs(spreeze.Callback):
        def on_restart(self, run: Any, role: str) -> None:
            run.log("mine", 1.0)

    def full(_: int, __: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    made = office(Logs())
    monkeypatch.setattr(metrics, "_append_whole", full)
    made.desk.tick(["sampler-0"])
    assert [made.desk.take_lost() for _ in range(2)] == [1, 0]


def test_metrics_of_all_roles_reach_on_log(office: Any, tmp_path: Path) -> None:
    noted = Noted()
    made = office(noted)
    for role, values in (
        ("sampler-0", {"rollout/ep_rew_mean": 1.0}),
        ("sampler-1", {"rollout/ep_rew_mean": 3.0}),
        ("learner-0", {"train/critic_loss": 0.5, "bad": None}),
    ):
        recorder = Recorder(tmp_path / "metrics" / f"{role}.jsonl")
        recorder.record(time_s=1.0, env_steps=1, updates=1, **values)
        recorder.close()
    made.control.samplers["env_steps"] = 1000  # in serial mode, a thousand steps are a second
    made.desk.tick([])
    assert noted.seen == [("on_log", {"rollout/ep_rew_mean": 2.0, "train/critic_loss": 0.5})]
    made.control.samplers["env_steps"] = 2000
    made.desk.tick([])
    assert len(noted.seen) == 1, "nothing is new"


def test_what_callbacks_log_is_recorded_with_the_axes(
    office: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def log(run: Any) -> None:
        run.log("difficulty", 0.5)
        run.log("mine/x", np.float32(2))

    monkeypatch.setattr(Noted, "doings", {"on_start": log})
    office(Noted()).desk.start()
    metrics = NewestMetrics(tmp_path / "metrics")
    assert metrics.update()
    assert metrics.values() == {"callback/difficulty": 0.5, "mine/x": 2.0}


def test_requests_are_carried_out(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(run: Any) -> None:
        run.save_checkpoint()
        run.evaluate()
        run.set_knob("algo.lr", 0.01)
        run.set_knob("learner.updates_per_step", 0.5)
        run.set_knob("exploration", 2)
        run.stop("  seen \n enough ")
        run.stop("again")

    monkeypatch.setattr(Noted, "doings", {"on_start": ask})
    made = office(Noted())
    made.desk.start()
    words = made.control.supervisor
    assert (words["checkpoints_asked"], words["evaluations_asked"]) == (1, 1)
    assert (words["learning_rate"], words["exploration"]) == (0.01, 2.0)
    assert (words["min_updates_per_step"], words["max_updates_per_step"]) == (0.5, 0.5)
    assert made.desk.stop_reason == "seen enough"


def test_the_newest_call_of_each_method_is_on_the_wire(
    office: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(run: Any) -> None:
        run.call_envs("set_difficulty", 0.1)
        run.set_env_attr("goal", np.array([1.0, 2.0]))
        run.call_envs("set_difficulty", np.float64(0.2), roles=["sampler"], now=True)

    monkeypatch.setattr(Noted, "doings", {"on_start": ask})
    made = office(Noted())
    made.desk.start()
    document = Document(made.arena, ENV_CALLS)
    assert document.refresh()
    goal = [2, "goal", [[1.0, 2.0]], True, False]
    assert document.value == {
        "sampler": [goal, [3, "set_difficulty", [0.2], False, True]],
        "evaluator": [[1, "set_difficulty", [0.1], False, False], goal],
        "visualizer": [[1, "set_difficulty", [0.1], False, False], goal],
    }
    events = [record["event"] for record in made.records if "event" in record]
    assert events[0] == "environments: set_difficulty(0.1)"
    assert events[2] == "environments: set_difficulty(0.2) for sampler"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda run: run.log("two words", 1), "two words"),
        (lambda run: run.log("x", "much"), "'much' is not a number"),
        (lambda run: run.log("x", float("nan")), "not finite"),
        (lambda run: run.set_knob("learning_rate", 1), r"Did you mean algo\.lr\?"),
        (lambda run: run.set_knob("algo.gamma", 1), "cannot change during a run"),
        (lambda run: run.set_knob("algo.lr", 2), "from 1e-08 to 1"),
        (lambda run: run.call_envs("set_dificulty"), "Did you mean set_difficulty?"),
        (lambda run: run.set_env_attr("gaol", 1), "Did you mean goal?"),
        (lambda run: run.call_envs("set_difficulty", object()), "numbers, text, lists"),
        (lambda run: run.call_envs("set_difficulty", "x" * 3000), "2,000 bytes"),
        (lambda run: run.call_envs("set_difficulty", roles="learner"), "sampler, evaluator"),
    ],
)
def test_a_wrong_request_raises_in_the_callback(
    office: Any, monkeypatch: pytest.MonkeyPatch, ask: Any, message: str
) -> None:
    refused: list[str] = []

    def try_it(run: Any) -> None:
        with pytest.raises(ValueError, match=r"\w") as error:
            ask(run)
        refused.append(str(error.value))

    monkeypatch.setattr(Noted, "doings", {"on_start": try_it})
    office(Noted()).desk.start()
    assert message.replace("\\", "") in refused[0]


def test_exploration_of_a_policy_with_its_own_distribution_is_refused(tmp_path: Path) -> None:
    made = Office(tmp_path, Noted())
    made.arena.close()
    ppo = config_with(default_config(env="x", algo="ppo"), {})
    from spreeze.run.callbacks.live_knobs import check_live_knob

    with pytest.raises(ValueError, match="--algo ppo decide how much they explore"):
        check_live_knob(ppo, "exploration", 2.0)


class Raising(Noted):
    def on_evaluation(self, run: Any, result: Any) -> None:
        super().on_evaluation(run, result)
        raise KeyError("a mistake")


def test_a_callback_that_raises_is_switched_off_and_shown(office: Any, tmp_path: Path) -> None:
    raising, noted = Raising(), Noted()
    made = office(raising, noted)
    for mean in (1.0, 2.0):
        made.evaluated(mean, is_best=False)
        made.desk.tick([])
    assert hooks(raising) == ["on_evaluation"]
    assert hooks(noted) == ["on_evaluation", "on_evaluation"]
    assert 'raise KeyError("a mistake")' in made.said[0]
    assert made.progress.notes[0].startswith("Raising raised in on_evaluation and was switched off")
    assert "a mistake" in (tmp_path / "logs" / "callbacks-0.log").read_text()
    assert made.desk.failure is None
    summary: dict[str, Any] = {}
    made.desk.finish(summary, lambda: False)
    assert summary["callbacks"]["switched_off"] == {"Raising": "KeyError: 'a mistake'"}


def test_a_fatal_callback_ends_the_run(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Raising, "fatal", True)
    made = office(Raising())
    made.evaluated(1.0, is_best=False)
    made.desk.tick([])
    assert 'raise KeyError("a mistake")' in made.desk.failure
    assert made.progress.stop_reason == "Raising raised in on_evaluation: KeyError: 'a mistake'"


def test_a_callback_that_blocks_holds_up_nothing(
    office: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, began = threading.Event(), threading.Event()

    def block(_: Any) -> None:
        began.set()
        go_on.wait()

    monkeypatch.setattr(Noted, "doings", {"on_start": block})
    monkeypatch.setattr("spreeze.run.callbacks.runner.SLOW_S", 0.0)
    noted = Noted()
    made = office(noted, serial=False)
    made.desk.start()
    assert began.wait(10)
    try:
        for i in range(MAX_EVENTS + 10):
            made.evaluated(float(i), is_best=False)
            made.desk.tick([])
            made.seconds += 1.0
        dropped, *_ = [w for w in made.progress.standing["callbacks"] if "dropped" in w]
        assert "Noted.on_start has been running" in made.progress.standing["callbacks"][0]
    finally:
        go_on.set()
    made.desk.finish({}, lambda: False)
    assert int(dropped.split()[0]) >= 10
    assert hooks(noted)[0] == "on_start"
    assert hooks(noted).count("on_evaluation") >= MAX_EVENTS - 1


def test_a_callback_that_never_returns_does_not_hold_up_the_end(
    office: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(Noted, "doings", {"on_end": lambda _: go_on.wait()})
    monkeypatch.setattr("spreeze.run.callbacks.runner.END_LIMIT_S", 0.2)
    made = office(Noted(), serial=False)
    made.desk.start()
    try:
        made.desk.finish({}, lambda: False)
        assert made.progress.notes == ["Noted.on_end did not end; the run ended without it"]
    finally:
        go_on.set()
        deadline = time.monotonic() + 5
        while threading.active_count() > 1 and time.monotonic() < deadline:
            time.sleep(0.01)


def test_without_callbacks_nothing_is_written(office: Any, tmp_path: Path) -> None:
    made = office()
    made.desk.start()
    made.desk.tick([])
    summary: dict[str, Any] = {}
    made.desk.finish(summary, lambda: False)
    assert (summary, made.desk.metrics()) == ({}, {})
    assert list((tmp_path / "metrics").iterdir()) == []
