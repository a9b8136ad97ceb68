"""Space files: what is read, and what is refused by name."""

from __future__ import annotations

import pytest

from spreeze.errors import UsageError
from spreeze.settings.space import Choices, Range, as_flags, read_space, typed

TEXT = """
algo.lr = { low = 1e-5, high = 1e-2, log = true }
algo.hidden = [[64, 64], [256, 256]]
algo.layer-norm = [true, false]
[learner]
batch-size = { low = 64, high = 256, step = 64 }
warmup-rows = { choices = [1e3, 2000] }
[replay.capacity]
low = 1e4
high = 1e5
"""


def refused(text: str, **given: str) -> str:
    with pytest.raises(UsageError) as caught:
        read_space(text, "Pendulum-v1", given, "s.toml")
    assert all(problem.startswith("--space s.toml: ") for problem in caught.value.problems)
    return "\n".join(caught.value.problems)


def test_knobs_are_named_as_on_the_command_line() -> None:
    space = read_space(TEXT, "Pendulum-v1", {"algo": "sac"}, "s.toml")
    assert space == {
        "algo.lr": Range(1e-5, 1e-2, log=True),
        "algo.hidden": Choices(((64, 64), (256, 256))),
        "algo.layer_norm": Choices((True, False)),
        "learner.batch_size": Range(64, 256, step=64, whole=True),
        "learner.warmup_rows": Choices((1000, 2000)),
        "replay.capacity": Range(10_000, 100_000, whole=True),
    }


def test_values_become_flags_that_are_short_to_type() -> None:
    gamma = Range(0.9, 0.99999)
    assert gamma.value(0.98765432109) == 0.987654
    assert gamma.value(0.99998999999) == 0.99999  # within the range, although rounded
    hidden = Choices(((64, 64), (256, 256)))
    assert hidden.value(typed((256, 256))) == (256, 256)
    values = {"algo.lr": 1e-4, "algo.hidden": (64, 64), "algo.layer_norm": False}
    assert as_flags(values) == [
        "--algo.lr",
        "0.0001",
        "--algo.hidden",
        "64",
        "64",
        "--algo.no-layer-norm",
    ]
    assert as_flags({"learner.compile": True}) == ["--learner.compile"]


def test_knobs_of_one_algorithm_may_be_tried_without_naming_it() -> None:
    space = read_space("algo.policy-delay = [1, 2]", "Pendulum-v1", {}, "s.toml")
    assert space == {"algo.policy_delay": Choices((1, 2))}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("algo.lr = {low = 1", "not TOML"),
        ("", "it names no knob. For instance: algo.lr"),
        ("algo.lrr = [1, 2]", "there is no knob algo.lrr. Did you mean algo.lr?"),
        ("learning-rate = [1, 2]", "there is no knob learning-rate. Did you mean algo.lr?"),
        ("learnr.batch-size = [64, 128]", "there is no knob learnr.batch-size. Did you mean learner.batch-size?"),
        ("seed = [1, 2]", "seed is the same for all trials: give it as --seed."),
        ("algo.clip = [0.1, 0.2]", "algo.clip for this algorithm; it is one of ppo"),
        ("algo.lr = 0.1", "one value is no choice. Give it as --algo.lr 0.1"),
        ("algo.lr = [0.1]", "two or more different values"),
        ("algo.lr = [0.1, 0.1]", "two or more different values"),
        ("algo.lr = [0.1, -1]", "algo.lr -1: must be a number from"),
        ("algo.lr = { low = 0.1, hihg = 1 }", "'hihg' is none of low, high, log, step, choices. Did you mean high?"),
        ("algo.lr = { low = 0.1 }", "high is missing"),
        ("algo.lr = {}", "low and high is missing"),
        ("algo.lr = { low = 0.2, high = 0.1 }", "low 0.2 must be a number below high 0.1"),
        ("algo.lr = { low = 1e-3, high = 5000 }", "algo.lr 5000: must be a number from"),
        ("algo.gamma = { low = 0, high = 0.9, log = true }", "low must be above 0"),
        ("algo.gamma = { low = 0.1, high = 0.9, step = 3 }", "step must be a number above 0"),
        ("algo.lr = { choices = [1e-3, 2e-3], log = true }", "choices are given alone, without log"),
        ("algo.activation = { low = 1, high = 2 }", "it has no range. Give a list of values; each must be one of"),
        ("algo.activation = ['relu', 'tahn']", "algo.activation tahn: must be one of relu"),
        ("learner.batch-size = { low = 1.5, high = 8 }", "learner.batch-size 1.5: must be a whole number"),
        ("algo = ['sac', 'pppo']", "Did you mean ppo?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_by_name(text: str, words: str) -> None:
    given = {} if text.startswith("algo =") else {"algo": "sac"}
    assert words in refused(text, **given)


def test_a_flag_of_all_trials_is_not_in_the_space_too() -> None:
    assert "--algo.lr is a flag of all trials" in refused(
        "algo.lr = [1e-3, 1e-4]", **{"algo.lr": "1"}
    )


def test_everything_that_is_wrong_is_said_at_once() -> None:
    said = refused("algo.lr = 3\nlearner.bach-size = [1, 2]", algo="sac")
    assert "algo.lr" in said
    assert "learner.bach-size" in said
