"""`spreeze bench ablations`: what it asks the other benchmarks for, and what it keeps of a run."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from spreeze.bench import ablations
from spreeze.bench.commands import main
from spreeze.errors import UsageError
from spreeze.machine.facts import Gpu, detect_machine
from spreeze.settings.arguments import read_arguments
from spreeze.store.rundir import RunDir

RUN = {"sample_hz": 1e4, "update_hz": 300.0, "transition_hz": 76_800.0, "cpu_percent": 150.0}
WIRES = {
    f"{means}{figure}": 5.0
    for means in ("", "queue_", "pipe_", "file_")
    for figure in ("rows_hz", "latency_us")
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The benchmarks that are run, each with an answer of its form."""
    seen: list[tuple[str, ...]] = []

    def answer(arguments: tuple[str, ...]) -> dict[str, Any]:
        seen.append(arguments)
        row: dict[str, Any] = {"batch_size": 256, "update_hz": 300.0, "update_frame_hz": 76_800.0}
        row |= {"one_device": {"update_hz": 300.0}, "two_devices": {"update_hz": 400.0}}
        learner = {"device": "cpu", "devices": ["cpu", "cpu"], "results": [row]}
        sampling = {"processes": 1, "sample_hz": 1000.0}
        return {"machine": {}, **{"learner": learner, "sampling": sampling, "wires": WIRES}[arguments[0]]}  # fmt: skip

    monkeypatch.setattr(ablations, "run_benchmark", answer)
    monkeypatch.setattr(ablations, "run_facts", lambda _env, seconds: {"seconds": seconds, **RUN})
    return seen


def test_every_part_is_measured_by_its_benchmark(
    asked: list[tuple[str, ...]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    arguments = ["--samplers", "1,2", "--batch-size", "64,512", "--seconds", "3"]
    assert main(["ablations", "Pendulum-v1", *arguments, "--json", str(file)], 0.0) == 0
    assert [benchmark[0] for benchmark in asked] == ["learner", *["sampling"] * 2, "wires", "learner"]  # fmt: skip
    for name, *given in asked:
        module = import_module(f"spreeze.bench.commands.{name}")
        assert read_arguments(module.Arguments, given, f"bench {name}").seconds == 3.0
    facts = json.loads(file.read_text())
    assert facts["run"]["seconds"] == 6.0
    assert len(facts["samplers"]) == 2
    assert {"run", "batch_size", "samplers", "transport", "devices"} <= set(facts)
    assert "shared memory" in capsys.readouterr().out


def test_the_run_alone(asked: list[tuple[str, ...]], tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert main(["ablations", "CartPole-v1", "--run-only", "--json", str(file)], 0.0) == 0
    facts = json.loads(file.read_text())
    assert (facts["env"], facts["run"]["cpu_percent"]) == ("CartPole-v1", 150.0)
    assert asked == []


def test_an_algorithm_without_an_actor_has_no_second_device(
    asked: list[tuple[str, ...]], tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    assert main(["ablations", "CartPole-v1", "--samplers", "1", "--json", str(file)], 0.0) == 0
    assert json.loads(file.read_text())["devices"] is None
    assert not any("--devices" in benchmark for benchmark in asked)
    assert asked[0][2:4] == ("--algo", "dqn")


@pytest.mark.parametrize(
    ("gpus", "devices", "largest"),
    [(0, "cpu,cpu", 8192), (1, "cuda:0,cuda:0", 32_768), (4, "cuda:0,cuda:1", 32_768)],
)
def test_what_is_compared_follows_from_the_machine(gpus: int, devices: str, largest: int) -> None:
    machine = replace(detect_machine(), cores=6, gpus=(Gpu("GPU", 1 << 30),) * gpus)
    parts = ablations.parts_of(machine, "Pendulum-v1", "sac", has_actor=True)
    assert parts.devices == devices
    assert parts.batch_sizes[-1] == largest
    assert list(parts.samplers) == [1, 2, 4, 8]
    assert parts.threads == (1 if gpus else 3)


def test_use_counts_from_the_first_update_on(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    lines = [
        {"updates": 0, "perf/cpu_percent": 900.0},
        {"updates": 4},
        {"updates": 8, "perf/cpu_percent": 100.0, "perf/cpu_percent/learner": 60.0},
        {"updates": 9, "perf/cpu_percent": 150.0, "perf/cpu_percent/learner": 80.0, "perf/gpu_percent": 7.0},
    ]  # fmt: skip
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics" / "supervisor-0.jsonl").write_text(text)
    used = ablations.use_of(RunDir(tmp_path))
    assert used == {"cpu_percent": 125.0, "cpu_percent/learner": 70.0, "gpu_percent": 7.0}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--batch-size", "0"], "--batch-size 0: must be whole numbers"),
        (["--samplers", "1,many"], "--samplers 1,many: must be whole numbers"),
        (["--seconds", "0"], "--seconds 0.0"),
        (["--algo", "dqn"], "--algo dqn does not support the actions of Pendulum-v1"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_the_start(
    arguments: list[str], problem: str, asked: list[tuple[str, ...]]
) -> None:
    with pytest.raises(UsageError, match=problem):
        main(["ablations", "Pendulum-v1", *arguments], 0.0)
    assert asked == []
