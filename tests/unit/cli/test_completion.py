"""Scripts that complete commands, flags and values in a shell."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from spreeze.cli import COMMANDS
from spreeze.cli.commands.completion import main
from spreeze.settings.config import Config, knob_names


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[[str], Path]:
    def write(shell: str) -> Path:
        main([shell], 0.0)
        path = tmp_path / shell
        path.write_text(capsys.readouterr().out)
        return path

    return write


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("spreeze tr", ["train"]),
        ("spreeze train --cor", ["--cores"]),
        ("spreeze train --cores s", ["separate", "shared"]),
        ("spreeze train Pendulum-v1 --algo fast", ["fastsac", "fasttd3"]),
        ("spreeze train --algo.gae", ["--algo.gae-lambda"]),
        ("spreeze train --no-das", ["--no-dashboard"]),
        ("spreeze train --runs r", []),  # a file
        ("spreeze bench le", ["learner"]),
        ("spreeze bench learner --devi", ["--device", "--devices"]),
        ("spreeze plot --x ", ["time", "steps", "updates"]),
        ("spreeze completion f", ["fish"]),
        ("spreeze sweep --pruner h", ["halving", "hyperband"]),
        ("spreeze sweep --learner.batch", ["--learner.batch-size"]),
        ("spreeze eval --checkpoint ", ["best", "last"]),
        ("spreeze eval --s", ["--seed"]),
    ],
)
def test_bash_completes(script: Callable[[str], Path], typed: str, completed: list[str]) -> None:
    words = " ".join(f"'{word}'" for word in typed.split(" "))
    code = f"""
source {script("bash")}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_spreeze
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == completed
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_knob_is_completed(script: Callable[[str], Path], shell: str) -> None:
    path = script(shell)
    text = path.read_text()
    flags = set(re.findall(r"(?:--|-l )([\w.-]+)", text))
    assert {name.replace("_", "-") for name in knob_names(Config())} - flags <= {"env"}
    assert all(re.search(rf"\b{name}\b", text) for name in COMMANDS)
    if shutil.which(shell):
        subprocess.run([shell, "-n", path], check=True)
