"""Tuning as a user sees it: the command, its cache, and what a run makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fakes
import spreeze
from spreeze.cli.commands.tune import main
from spreeze.learning.compiled.key import CompileKey
from spreeze.roles.learner.compile_key import compile_keys
from spreeze.run import plan
from spreeze.settings.config import resolved
from spreeze.settings.defaults import config_from_json
from spreeze.settings.probe import ProbeRequest
from spreeze.spec import EnvSpec
from spreeze.store.rundir import RunDir

pytestmark = pytest.mark.probe


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ProbeRequest]:
    """Requests that the cache did not answer; it is empty at first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked: list[ProbeRequest] = []
    call = plan.call

    def listen(processes: Any, function: Any, *arguments: Any, **options: Any) -> Any:
        asked.extend(argument for argument in arguments if isinstance(argument, ProbeRequest))
        return call(processes, function, *arguments, **options)

    monkeypatch.setattr(plan, "call", listen)
    return asked


def test_the_command_reports_what_it_measured_and_chose_and_caches_it(
    tmp_path: Path,
    questions: list[ProbeRequest],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("spreeze.cli.commands.tune.SAMPLING_S", 0.5)
    files = [tmp_path / "first.json", tmp_path / "again.json"]
    for file in files:
        assert main(["fakes:ReachEnv", "--json", str(file)], 0.0) == 0
    assert len(questions) == 1, "the second time it is cached"
    first, again = (json.loads(file.read_text()) for file in files)
    assert set(first["chosen"]) == set(first["reasons"])
    assert first["chosen"]["learner.batch_size"] == again["chosen"]["learner.batch_size"]
    assert first["probes"]["update_hz"] == again["probes"]["update_hz"]
    assert all(hz > 0 for hz in first["probes"]["sample_hz"].values())
    assert main(["fakes:ReachEnv", "--retune", "--json", str(files[0])], 0.0) == 0
    assert len(questions) == 2
    (kept,) = (tmp_path / "cache").rglob("tuned/*.json")
    assert (
        capsys.readouterr().out.count(
            f"Kept:  {kept}\n       spreeze train fakes:ReachEnv   reads it"
        )
        == 3
    )


@pytest.fixture
def uncertain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of thumb do not suffice, as with many cores or two GPUs."""
    monkeypatch.setattr(plan, "rules_suffice", lambda _: False)


def test_where_rules_of_thumb_choose_as_well_a_run_measures_nothing(
    runs: str, questions: list[ProbeRequest]
) -> None:
    spreeze.train(fakes.ReachEnv, runs=runs, steps="2k")
    assert not questions
    spreeze.train(fakes.ReachEnv, runs=runs, steps="2k", retune=True)
    assert len(questions) == 1, "unless it is asked to"


def test_an_algorithm_without_a_probe_reports_the_rest(
    tmp_path: Path,
    questions: list[ProbeRequest],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("spreeze.cli.commands.tune.SAMPLING_S", 0.1)
    picture = tmp_path / "rates.png"
    assert main(["fakes:ReachEnv", "--algo", "ppo", "--plot", str(picture)], 0.0) == 0
    assert not questions
    printed = capsys.readouterr().out
    assert "env steps/s by sampler processes" in printed
    assert "segments of 64 steps" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("uncertain")
def test_a_run_measures_once_and_keeps_the_reasons(
    runs: str, questions: list[ProbeRequest]
) -> None:
    for _ in range(2):
        run = spreeze.train(fakes.ReachEnv, runs=runs, steps="2k")
    assert len(questions) == 1
    reasons = RunDir(run.path).read("config")["reasons"]
    assert "updates/s" in reasons["learner.batch_size"]
    assert "updates/s" in reasons["learner.threads"]


def test_what_it_compiles_is_what_a_run_looks_for(
    runs: str, questions: list[ProbeRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.cli.commands.tune.SAMPLING_S", 0.1)
    made: list[CompileKey] = []
    monkeypatch.setattr("spreeze.learning.compiled.job.compile_and_wait", made.append)
    assert main(["fakes:ReachEnv", "--compile"], 0.0) == 0
    run = spreeze.train("fakes:ReachEnv", runs=runs, steps="2k")
    assert len(questions) == 1, "the measurement is cached"
    kept = RunDir(run.path).read("config")
    config, spec = config_from_json(kept["config"]), EnvSpec.from_json(kept["env_spec"])
    wanted = compile_keys(config, spec, resolved(config.learner.batch_size))
    assert [key.path() for key in made] == [key.path() for key in wanted]


def test_a_missing_compiler_is_reported_in_one_sentence(
    questions: list[ProbeRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spreeze.cli.commands.tune.SAMPLING_S", 0.1)
    monkeypatch.setattr("spreeze.learning.compiled.job.compiler", lambda: None)
    with pytest.raises(spreeze.UsageError, match=r"not compiled: no C\+\+ compiler was found"):
        main(["fakes:ReachEnv", "--compile"], 0.0)


def test_switched_off_it_measures_nothing(runs: str, questions: list[ProbeRequest]) -> None:
    run = spreeze.train(fakes.ReachEnv, runs=runs, steps="2k", **{"tuner.off": True})
    assert questions == []
    assert run.summary["batch_size"] == 128


def test_an_environment_variable_forbids_the_probe(
    runs: str, questions: list[ProbeRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPREEZE_PROBE", "0")
    run = spreeze.train(fakes.ReachEnv, runs=runs, steps="2k")
    assert questions == []
    assert run.summary["batch_size"] == 128


def test_a_failed_probe_is_reported_and_the_run_continues(
    runs: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ProbeRequest) -> None:
        raise MemoryError("out of luck")

    monkeypatch.setattr(plan, "measure", fail)
    run = spreeze.train(fakes.ReachEnv, runs=runs, steps="2k", retune=True)
    assert run.summary["reason"] == "steps"
    assert "out of luck); rules of thumb decide" in capsys.readouterr().err
