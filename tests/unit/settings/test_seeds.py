"""Seeds as people write them, and the runs that follow."""

from __future__ import annotations

import pytest

from spreeze.settings.build import each_seed
from spreeze.settings.checks import check_config
from spreeze.settings.config import Config
from spreeze.settings.parse import parse_seeds


@pytest.mark.parametrize(
    ("text", "first", "seeds"),
    [("1,2,3", 0, [1, 2, 3]), ("3", 0, [0, 1, 2]), ("3", 7, [7, 8, 9]), ("7,", 0, [7])],
)
def test_seeds_are_listed_or_counted(text: str, first: int, seeds: list[int]) -> None:
    assert parse_seeds(text, first) == seeds


@pytest.mark.parametrize(
    "text", ["", "0", "1,1", "1;2", "-1,2", "4294967296,1", "1001", "one", ","]
)
def test_other_seeds_are_refused_by_name(text: str) -> None:
    (problem,) = check_config(Config(env="Pendulum-v1", seeds=text))
    assert problem.startswith(f"--seeds {text}: must be different seeds such as 1,2,3")


def test_seeds_and_resume_exclude_each_other() -> None:
    (problem,) = check_config(Config(seeds="1,2", resume="old"))
    assert "--seeds 1,2" in problem
    assert "--resume" in problem


def test_each_run_has_its_seed_and_a_name_that_ends_with_it() -> None:
    configs = each_seed(Config(env="Pendulum-v1", seeds="4,2", name="a"))
    assert [(one.seed, one.name, one.seeds) for one in configs] == [
        (4, "a-4", None),
        (2, "a-2", None),
    ]
    assert [one.name for one in each_seed(Config(seeds="2"))] == [None, None]
