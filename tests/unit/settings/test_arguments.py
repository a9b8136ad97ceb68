"""The arguments of commands: what is wrong with them is said in one line each, and the rest is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
import tyro

from spreeze.cli.commands.train import parse
from spreeze.errors import UsageError
from spreeze.settings.arguments import read_arguments


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """A command."""

    env: tyro.conf.Positional[str]
    run: tyro.conf.Positional[str | None] = None
    episodes: int = 10
    seconds: float | None = None
    axis: Literal["time", "steps"] = "time"
    hosts: tuple[str, ...] = ()
    quick: bool = False


def test_arguments_are_read_in_any_order() -> None:
    line = "--hosts a b --quick Ant-v5 --episodes=3 r --seconds -1.5 --axis steps"
    found = read_arguments(Arguments, line.split(), "try")
    assert found == Arguments(
        env="Ant-v5", run="r", episodes=3, seconds=-1.5, axis="steps", hosts=("a", "b"), quick=True
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "which environment? For instance: spreeze try Pendulum-v1"),
        ("A b c", "c: one word too many. See: spreeze try --help"),
        ("A -x", "-x: there is no such flag. See: spreeze try --help"),
        ("A --episode 3", "--episode: there is no such flag. Did you mean --episodes?"),
        ("A --no-axis", "--no-axis: there is no such flag. Did you mean --axis?"),
        ("A --episodes", "--episodes: a value is missing; it must be a whole number."),
        ("A --episodes many", "--episodes many: must be a whole number."),
        ("A --seconds=soon", "--seconds soon: must be a number, or None."),
        ("A --axis step", "--axis step: must be one of time, steps. Did you mean steps?"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(line: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_arguments(Arguments, line.split(), "try")
    assert refused.value.problems == [message]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--target high", "--target high: must be a number, or None."),
        ("--learner.batch-size many", "--learner.batch-size many: must be a whole number from 1"),
        ("--algo.hidden big", "--algo.hidden big: must be one or more whole numbers"),
        ("--cores share", "--cores share: must be one of separate, shared, auto. Did you mean sha"),
        ("--seed 1.5", "--seed 1.5: must be a whole number from 0"),
        ("more", "more: one word too many. See: spreeze train --help"),
        ("-x", "-x: there is no such flag. See: spreeze train --help"),
    ],
)
def test_train_says_it_in_the_same_words(line: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(["Pendulum-v1", *line.split()])
    (problem,) = refused.value.problems
    assert problem.startswith(message)
