"""Wrong input: exit code 2, one line per problem, nothing started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fakes
import spreeze
from spreeze.cli.commands import doctor


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spreeze", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ("train Pendulum-v9", ["Pendulum-v9", "Did you mean Pendulum-v1"]),
        ("train", ["which environment"]),
        ("train CartPole-v1 --algo td3", ["CartPole-v1 has Discrete actions", "dqn, ppo"]),
        ("train Pendulum-v1 --algo dqn", ["Pendulum-v1 has Box actions", "sac, td3"]),
        ("train Pendulum-v1 --algo mine.py:ENTRY", ["mine.py", "no such file"]),
        ("train Pendulum-v1 --algo fakes:ReachEnv", ["fakes has no spreeze.algos.Entry"]),
        (
            "train Pendulum-v1 --evaluator.env CartPole-v1 Pendulum-v9",
            ["--evaluator.env CartPole-v1", "(4,)", "Did you mean Pendulum-v1"],
        ),
        ("train Pendulum-v1 --seeds 1,1", ["--seeds 1,1", "1 is there twice"]),
        ("train Pendulum-v1 --preset swimer", ["Did you mean swimmer"]),
        ("train Pendulum-v1 --algo tqc --algo.drop-per-critic 30", ["--algo.drop-per-critic 30"]),
        ("export", ["export as what"]),
        ("export --onnx nowhere/x.onnx", ["there is no folder"]),
        ("train fakes:camera_env", ["'camera', of shape", "looks like an image", "np.uint8"]),
        ("train fakes:ReachEnv --env.engine envpool", ["--env.engine envpool"]),
        ("train Pendulum-v1 --env.engine warp", ["warp", "envpool"]),
        ("train fakes:open_ended_env", ["1: [0.0, inf]", "without bounds"]),
        ("train Pendulum-v1 --algo sacc", ["--algo sacc", "Did you mean sac"]),
        (
            "train Pendulum-v1 --learner.batch-sise 3",
            ["--learner.batch-sise", "--learner.batch-size"],
        ),
        ("train Pendulum-v1 --learner.batch-size three", ["three"]),
        ("train Pendulum-v1 --learner.batch-size 2000 --replay.capacity 1000", ["2000", "1000"]),
        ("train Pendulum-v1 --replay.capacity 1000000000", ["GiB", "--replay.capacity"]),
        ("train Pendulum-v1 --device cuda:7", ["--device cuda:7"]),
        ("train Pendulum-v1 --device cpu,cuda:7", ["--device cpu,cuda:7", "no such GPU"]),
        ("bench learner --devices cpu", ["--devices cpu", "two with a comma"]),
        ("tune Pendulum-v9", ["Pendulum-v9", "Did you mean Pendulum-v1"]),
        ("tune Pendulum-v1 --plot rates.jpg", ["rates.jpg", ".png"]),
        ("tune Pendulum-v1 --plot no/such/rates.png", ["no folder"]),
        ("train Pendulum-v1 --runs file/runs", ["is a file"]),
        ("train Pendulum-v1 --resume nothing", ["there is no run 'nothing'"]),
        ("train Pendulum-v1 --target 1 --target-metric eval/sucess_rate", ["eval/success_rate?"]),
        ("train Pendulum-v1 --target-metric eval/info/laps", ["needs the value", "--target"]),
        ("train Pendulum-v1 --callback no.py:Mine", ["no.py: there is no such file"]),
        ("train Pendulum-v1 --callback fakes:ReachEnv", ["not a spreeze.Callback"]),
        ("train Pendulum-v1 --steps 1e999", ["--steps 1e999"]),
        ("train Pendulum-v1 --algo.init-alpha 0", ["--algo.init-alpha 0"]),
        ("train Pendulum-v1 --learner.ratio-bounds 0 inf", ["--learner.ratio-bounds"]),
        ("train Pendulum-v1 --name " + "x" * 300, ["--name"]),
        ("train Foo*Bar", ["Foo*Bar"]),
        ("tran", ["there is no command 'tran'", "spreeze train"]),
        ("eval", ["Train one first"]),
        ("eval nothing", ["there is no run 'nothing'"]),
        ("eval --episodes 0", ["--episodes 0"]),
    ],
)
def test_wrong_input_is_refused_in_one_paragraph(
    tmp_path: Path, arguments: str, messages: list[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "fakes.py").symlink_to(Path(__file__).parents[1] / "fakes.py")
    done = run(*arguments.split(), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    text = done.stdout + done.stderr
    assert "Traceback" not in text
    assert all(message in text for message in messages), text
    assert not (tmp_path / "runs").exists(), "nothing was started"


def test_all_errors_come_at_once(tmp_path: Path) -> None:
    flags = "--learner.batch-size -4 --algo.gamma 2 --time soon --device tpu"
    done = run("train", "Pendulum-v9", *flags.split(), cwd=tmp_path)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 5
    assert all(line.startswith("spreeze: ") for line in lines)


def test_the_installed_command_finds_environments_where_the_user_is(tmp_path: Path) -> None:
    (tmp_path / "mine.py").symlink_to(Path(__file__).parents[1] / "fakes.py")
    command = [
        str(Path(sys.executable).parent / "spreeze"),
        "train",
        "mine:ReachEnv",
        "--steps",
        "1500",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "all steps are done" in done.stdout


def test_python_raises_the_same_messages(runs: str) -> None:
    with pytest.raises(spreeze.UsageError, match=r"Did you mean time\?"):
        spreeze.train("Pendulum-v1", tme="3s", runs=runs)
    with pytest.raises(spreeze.UsageError, match="must be a whole number"):
        spreeze.train("Pendulum-v1", runs=runs, **{"sampler.processes": 1.5})
    with pytest.raises(spreeze.UsageError, match="--target abc"):
        spreeze.train("Pendulum-v1", runs=runs, target="abc")
    with pytest.raises(spreeze.UsageError, match="for those there are dqn, ppo"):
        spreeze.train("CartPole-v1", runs=runs, algo="sac")
    assert not Path(runs).exists()


def test_a_users_file_does_not_shadow_a_library(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("raise RuntimeError('not the library')")
    command = [
        str(Path(sys.executable).parent / "spreeze"),
        "train",
        "Pendulum-v1",
        "--steps",
        "1500",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-", "0<&- >&- 2>&-"])
def test_closed_standard_streams_are_harmless(tmp_path: Path, closed: str) -> None:
    command = f"{sys.executable} -m spreeze train Pendulum-v1 --steps 1500 --name r {closed}"
    assert (
        subprocess.run(command, shell=True, cwd=tmp_path, check=False, timeout=60).returncode == 0
    )
    assert (tmp_path / "runs" / "r" / "summary.json").exists()


def test_evaluating_on_another_environment_is_refused(tmp_path: Path) -> None:
    spreeze.train(fakes.ReachEnv, runs=str(tmp_path / "runs"), steps="1500", name="r", serial=True)
    for flags, message in (
        ("", "ReachEnv"),
        ("--env Nope-v0", "Nope-v0"),
        ("--env Pendulum-v1", "(3,)"),
    ):
        done = run("eval", "r", *flags.split(), cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command", ["", "train", "eval", "runs", "export", "algos", "bench", "doctor"]
)
def test_help_is_quick_and_loads_no_torch(command: str) -> None:
    code = (
        "import sys; sys.argv = ['spreeze', *sys.argv[1:], '--help']\n"
        "from spreeze.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command.split()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "spreeze" in done.stdout


def test_the_doctor_names_the_extra_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "mujoco", "no_such_module")
    doctor.main([], 0.0)
    assert 'pip install "spreeze[mujoco]"' in capsys.readouterr().out


def test_the_doctor_knows_why_every_start_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Container images often disable bytecode: torch then takes twice as long to import."""
    (tmp_path / "slow_package").mkdir()
    (tmp_path / "slow_package" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert doctor.bytecode("slow_package").ok, "the first run writes it"
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    finding = doctor.bytecode("slow_package")
    assert not finding.ok
    assert "PYTHONDONTWRITEBYTECODE" in finding.advice
    subprocess.run(finding.advice.partition("or run: ")[2].split(), check=True)
    assert doctor.bytecode("slow_package").ok, "what it advises helps"
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "not" / "there"))
    monkeypatch.setattr("os.access", lambda *_: False)  # as for any user but root
    assert "PYTHONPYCACHEPREFIX" in doctor.bytecode("slow_package").advice


@pytest.mark.parametrize("command", ["doctor", "algos"])
def test_facts_are_available_as_json(command: str, tmp_path: Path) -> None:
    import json

    done = run(command, "--json", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert run(command, cwd=tmp_path).stdout.strip()
