"""Sweeps: what is refused before the start, what counts, what is pruned, and what a study remembers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fake_runs import append, make_run, write
from spreeze.cli.commands import sweep
from spreeze.cli.sweep.plan import Plan, sweep_folder
from spreeze.cli.sweep.report import repeat_command
from spreeze.cli.sweep.score import Score, share_done
from spreeze.cli.sweep.study import FINISHED, INTERRUPTED, PRUNED, RUNNING, Study, Trial
from spreeze.cli.sweep.trials import Setup
from spreeze.errors import DamagedFile, UsageError
from spreeze.settings.config import Config
from spreeze.settings.space import Choices, Range
from spreeze.store.rundir import RunDir

SPACE = {"algo.lr": Range(1e-4, 1e-2, log=True), "algo.hidden": Choices(((8, 8), (16, 16)))}
RETURN = Score("best", "eval/mean_reward")


def a_plan(**changes: str) -> Plan:
    values = {"space": "", "score": "best", "metric": "eval/mean_reward", "pruner": "median"}
    return Plan(("Pendulum-v1", "--steps", "3k"), **values | {"search": "tpe"} | changes)


def a_study(folder: Path, **changes: str) -> Study:
    return Study(folder, a_plan(**changes), SPACE, seed=0, at_once=1)


def names(number: int) -> list[str]:
    return [f"t{number}"]


def finish(study: Study, score: float, values: tuple[float, ...] = ()) -> Trial:
    trial = study.ask(names)
    for step, value in enumerate(values, 1):
        study.report(trial, step, value)
    study.end(trial, FINISHED, score=score, seconds=1.0)
    return trial


@pytest.fixture
def space_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text("algo.lr = { low = 1e-4, high = 1e-2, log = true }")
    return "--space s.toml"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--trials 3 --steps 3k", "the environment is missing"),
        ("Pendulum-v1 --steps 3k", "--trials is missing"),
        ("Pendulum-v1 --trials 3", "how long may a trial take? Add --steps 100k or --time 2m."),
        ("Pendulum-v1 --trials 0 --steps 3k", "--trials 0: must be a whole number from 1"),
        ("Pendulum-v1 --trails 3 --steps 3k", "--trails: there is no such flag. Did you mean --trials?"),
        ("Pendulum-v1 --trials 3 --steps 3k --lerner.threads 1", "Did you mean --learner.threads?"),
        ("Pendulum-v1 --trials 3 --steps 3k --score time", "Add --target RETURN."),
        ("Pendulum-v1 --trials 3 --steps 3k --metric rollout/success_rate", "must be a number of evaluations"),
        ("Pendulum-v1 --trials 3 --steps 3k --name a/b", "--space"),
        ("Pendulum-v1 --trials 3 --steps x", "--steps x: not a number of steps"),
        ("Pendulum-v1 --trials 3 --steps 3k --algo.lr 1e-3", "--algo.lr is a flag of all trials"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_and_leaves_nothing(
    space_file: str, words: str, said: str, tmp_path: Path
) -> None:
    if "a/b" in words:
        words, said = words.replace("a/b", "'?'"), "--name \"'?'\": it names a folder"
    with pytest.raises(UsageError) as caught:
        sweep.main([*words.split(), *space_file.split()], 0.0)
    assert any(said in problem for problem in caught.value.problems), caught.value.problems
    assert [path.name for path in tmp_path.iterdir()] == ["s.toml"]


def test_values_that_contradict_the_flags_are_refused(space_file: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("learner.batch-size = [64, 4096]")
    words = f"Pendulum-v1 --trials 3 --steps 3k --replay.capacity 1000 {space_file}"
    with pytest.raises(UsageError, match=r"4096 is larger than --replay\.capacity 1000"):
        sweep.main(words.split(), 0.0)


def test_without_optuna_the_extra_is_named(
    space_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r'pip install "spreeze\[sweep\]"'):
        sweep.main(f"Pendulum-v1 --trials 3 --steps 3k {space_file}".split(), 0.0)


def test_a_sweep_is_continued_by_the_same_command_only(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with sweep_folder(folder, a_plan()):
        a_plan().write(folder, 5, {})
        with pytest.raises(UsageError, match="in another process"), sweep_folder(folder, a_plan()):
            pass
    assert Plan.read(folder) == (a_plan(), 5)
    with sweep_folder(folder, a_plan()):
        pass
    with (
        pytest.raises(UsageError, match="with other values of: space, --pruner"),
        sweep_folder(folder, a_plan(space="x", pruner="none")),
    ):
        pass


def test_a_stored_sweep_chooses_no_code(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    plan = Plan(("x.py:Env", "--steps", "9"), "", "best", "eval/mean_reward", "none", "tpe")
    plan.write(tmp_path / "a", 5, {})
    with pytest.raises(UsageError, match=r"x\.py:Env, and a stored sweep never chooses code"):
        sweep.main(["--resume", str(tmp_path / "a")], 0.0)
    for words in (["--callback=a.py:B"], ["--algo", "m:A"]):
        assert Plan(("E", *words), *[""] * 5).code_named()
    for words in (["--device", "cuda:0,cuda:1"], ["--env.kwargs", '{"a": "b:c"}']):
        assert Plan(("E", *words), *[""] * 5).code_named() is None
    write(tmp_path / "a" / "sweep.json", {"asked": {"arguments": [1]}, "trials": 5})
    with pytest.raises(DamagedFile):
        Plan.read(tmp_path / "a")


def test_what_counts_is_the_best_the_last_or_the_time(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", num=4)
    for mean in (5.0, 3.0):
        axes = {"time_s": 9.0, "env_steps": 9000, "updates": 9}
        append(
            path, "evaluator-0", {**axes, "eval/mean_reward": mean, "eval/success_rate": mean / 10}
        )
    run = RunDir(path)
    assert RETURN.of_run(run) == 5.0
    assert Score("final", "eval/mean_reward").of_run(run) == 3.0
    assert Score("best", "eval/success_rate").of_run(run) == 0.5
    assert Score("best", "eval/info/none").of_run(run) is None
    time = Score("time", "eval/mean_reward")
    assert time.of_run(run) == 8.0, "it missed its target, so it counts twice"
    summary = json.loads((path / "summary.json").read_text())
    write(path / "summary.json", summary | {"time_to_target_s": 2.5})
    assert time.of_run(run) == 2.5


def test_runs_are_compared_at_equal_parts_of_their_way(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", num=0)
    for steps, mean in ((50, 1.0), (200, 7.0), (420, 2.0)):
        append(
            path,
            "evaluator-0",
            {"time_s": 1.0, "env_steps": steps, "updates": 0, "eval/mean_reward": mean},
        )
    config = Config(steps="1000")
    best = dict(RETURN.on_the_way(RunDir(path), config))
    assert sorted(best) == list(range(1, 9))
    assert [best[part] for part in (1, 3, 4, 5, 8)] == [1.0, 1.0, 1.0, 7.0, 7.0]
    times = dict(Score("time", "eval/mean_reward").on_the_way(RunDir(path), config))
    assert times[5] == -7.0, "smaller values are better where times count"


def test_time_counts_from_when_training_began(tmp_path: Path) -> None:
    path = make_run(tmp_path, "a", num=0)
    write(path / "status.json", {"progress": {"time_s": 12.0, "training_s": 10.0, "env_steps": 9}})
    append(
        path,
        "evaluator-0",
        {"time_s": 22.5, "env_steps": 5, "updates": 0, "eval/mean_reward": 1.0},
    )
    config = Config(time="100s", steps="1k")
    assert dict(RETURN.on_the_way(RunDir(path), config)) == dict.fromkeys(range(1, 5), 1.0)
    assert share_done(RunDir(path), config) == 0.1


@pytest.mark.parametrize(("score", "good", "bad"), [("best", 10.0, 0.0), ("time", -10.0, 0.0)])
def test_a_trial_below_the_median_is_pruned(
    tmp_path: Path, score: str, good: float, bad: float
) -> None:
    study = a_study(tmp_path, score=score)
    for _ in range(5):
        finish(study, 1.0, values=(good,) * 6)
    trial = study.ask(names)
    steps = [study.report(trial, step, bad) for step in range(1, 5)]
    assert steps == [False, False, False, True], "not judged in the first parts"
    study.end(trial, PRUNED)
    better = study.ask(names)
    assert not any(study.report(better, step, 2 * good) for step in range(1, 7))
    study.end(better, FINISHED, score=2.0)
    assert [one.state for one in study.trials()][-2:] == [PRUNED, FINISHED]
    assert study.num_done() == 7


def test_values_of_a_trial_that_was_cut_short_are_tried_again(tmp_path: Path) -> None:
    study = a_study(tmp_path)
    first = finish(study, -3.0)
    stopped = study.ask(names)
    study.end(stopped, INTERRUPTED)
    killed = study.ask(names)
    assert [one.state for one in study.trials()] == [FINISHED, INTERRUPTED, RUNNING]
    again = a_study(tmp_path)  # in another process
    assert again.recover() == 2
    assert again.recover() == 0
    assert [again.ask(names).values for _ in range(2)] == [stopped.values, killed.values]
    assert again.num_done() == 1
    assert again.ask(names).values not in (first.values, stopped.values, killed.values)
    assert again.ranked()[0].values == first.values


def test_the_best_is_repeated_by_its_command(tmp_path: Path) -> None:
    setup = Setup(
        tmp_path, ["Pendulum-v1", "--time", "5 s"], ["--x"], Config(), (1, 2), RETURN, 3, False
    )
    trial = Trial(1, {"algo.lr": 0.001, "algo.hidden": (8, 8)}, FINISHED, 1.0, [], [], None, 1.0)
    assert repeat_command(setup, trial) == (
        "spreeze train Pendulum-v1 --time '5 s' --algo.lr 0.001 --algo.hidden 8 8 --seeds 1,2"
    )


def test_knobs_that_matter_are_told_from_those_that_do_not(tmp_path: Path) -> None:
    study = a_study(tmp_path)
    for _ in range(2):
        finish(study, 0.0)
    assert study.importances() == {}, "too few trials"
    for _ in range(10):
        trial = study.ask(names)
        study.end(trial, FINISHED, score=float(trial.values["algo.lr"]))
    found = study.importances()
    assert found["algo.lr"] > found["algo.hidden"]


def test_all_of_a_sweep_is_drawn(tmp_path: Path) -> None:
    from spreeze.cli.sweep.picture import draw

    study = a_study(tmp_path)
    for score in (1.0, 3.0, 2.0):
        finish(study, score)
    panels: Any = draw(study.trials(), SPACE, RETURN).axes
    assert [axes.get_xlabel() for axes in panels] == ["trial", "algo.lr", "algo.hidden"]
    assert list(panels[0].lines[1].get_ydata()) == [1.0, 3.0, 3.0]
