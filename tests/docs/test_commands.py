"""Every command in the documents is one that its program takes."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import spreeze
from pages import DOCS, PAGES, ROOT, commands, mentions, write_named
from spreeze.bench.commands import BENCHMARKS
from spreeze.cli import COMMANDS
from spreeze.cli.commands import completion, sweep, train
from spreeze.cli.flags import split_flags
from spreeze.settings.arguments import read_arguments
from spreeze.settings.checks import check_config

HISTORY = {"CHANGELOG.md", "experiments.md"}
"""Pages on what was: their commands need not be those of today."""
PLACEHOLDERS = {"COMMAND": "eval", "ENV": "Pendulum-v1", "NAME": "my-run", "RUN": "my-run", "SHELL": "bash"}  # fmt: skip
AFTER = re.compile(r"\s(?:>|\||&&|2>)\s?.*")
"""What the shell does with the output of a command."""
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
FLAGS = {
    command: {flag.name for flag in flags} | {"--help", "--from"}
    for command, flags in completion._table().items()
}
"""The flags of each command of ours."""


def words(line: str) -> list[str]:
    """A command as its program gets it."""
    said = shlex.split(AFTER.sub("", line), comments=True)
    return [PLACEHOLDERS.get(word, word) for word in said]


def command_of(arguments: list[str]) -> str:
    """`eval`, or with the name of a benchmark `bench learner`."""
    assert arguments[0] in COMMANDS, f"there is no command {arguments[0]}"
    if arguments[0] != "bench" or len(arguments) == 1 or arguments[1] == "my-run":
        return arguments[0]
    assert arguments[1] in BENCHMARKS, f"there is no benchmark {arguments[1]}"
    return " ".join(arguments[:2])


def check_flags(arguments: list[str]) -> None:
    """The command exists and has these flags; it may lack what it needs."""
    if arguments[0] not in ("--help", "--version", "compiler"):  # that one is a process
        given = {word.partition("=")[0] for word in arguments if word.startswith("--")}
        assert given <= FLAGS.get(command_of(arguments), set())


def check_spreeze(arguments: list[str]) -> None:
    """Parse a whole command of ours."""
    name = command_of(arguments)
    given = arguments[len(name.split()) :]
    if "--help" in arguments or name == "bench":
        check_flags(arguments)
    elif name == "train":
        problems = check_config(train.parse(given))
        assert [text for text in problems if "needs a missing package" not in text] == []
    else:
        if name == "sweep":
            given, of_train = split_flags(given, sweep.own_flags())
            if of_train:
                check_spreeze(["train", *of_train])
        module = f"bench.commands.{name[6:].replace('-', '_')}"
        module = module if name.startswith("bench") else f"cli.commands.{name}"
        read_arguments(import_module(f"spreeze.{module}").Arguments, given, name)


def check_pip(arguments: list[str]) -> None:
    """The extras exist."""
    for extras in re.findall(r"\[(.*?)\]", " ".join(arguments)):
        assert set(extras.split(",")) <= set(EXTRAS)


def check_python(arguments: list[str]) -> None:
    """The program exists and has the flags."""
    if arguments[0][0] != "-":
        source = (ROOT / arguments[0]).read_text()
        flags = [word[2:] for word in arguments if word.startswith("--")]
        assert [flag for flag in flags if flag not in source] == []


def check_make(arguments: list[str]) -> None:
    """The targets exist."""
    assert {word for word in arguments if "=" not in word} <= TARGETS


CHECKS = {
    "spreeze": check_spreeze,
    "pip": check_pip,
    "python": check_python,
    "make": check_make,
}


@pytest.fixture(scope="module")
def with_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run that commands name."""
    folder = tmp_path_factory.mktemp("commands")
    runs, limits = folder / "runs", {"steps": 300, "serial": True, "quiet": True}
    spreeze.train("Pendulum-v1", algo="sac", name="my-run", runs=runs, **limits)
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_is_taken(
    path: Path, with_a_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path.name in HISTORY:
        return
    monkeypatch.chdir(with_a_run)
    page, wrong = os.path.relpath(path, DOCS), []
    write_named(page, with_a_run)
    said = [(line, CHECKS.get(line.split(" ")[0])) for line in commands(page)]
    for line, check in [*said, *((line, check_flags) for line in mentions(page))]:
        if check is not None and " ..." not in line:
            try:
                check(words(line)[1:])
            except (Exception, SystemExit) as error:
                wrong.append(f"{line}: {error}")
    assert wrong == []


@pytest.mark.parametrize(
    "line",
    [
        "spreeze trian Pendulum-v1",
        "spreeze train Pendulum-v1 --algo.clipp 0.2",
        "spreeze train Pendulum-v1 --evaluator.episodes 0",
        "spreeze train --resume other-run",
        "spreeze eval --episodes many",
        "spreeze bench learning",
        "make documents",
        "pip install '.[mujoco,dashbord]'",
        "python bench/tables.py --ceck",
        "python bench/nothing.py",
    ],
)
def test_a_wrong_command_is_noticed(
    line: str, with_a_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(with_a_run)
    with pytest.raises((Exception, SystemExit)):
        CHECKS[line.split(" ", maxsplit=1)[0]](words(line)[1:])
