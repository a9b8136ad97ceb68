"""Which settings differ between runs."""

from __future__ import annotations

import json
from typing import Any

from spreeze.settings.config import SECTIONS
from spreeze.settings.defaults import config_with, default_config
from spreeze.store.differences import PREFIXES, compared_knobs, differing, identity, used_knobs


def stored(algo: str = "sac", **knobs: Any) -> dict[str, Any]:
    """The config of a run with these knobs, as config.json has it."""
    dotted = {name.replace("__", "."): value for name, value in knobs.items()}
    config = config_with(default_config(algo, "Pendulum-v1"), dotted)
    return json.loads(json.dumps(config.to_json()))  # type: ignore[no-any-return]


def differing_knobs(configs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return differing([used_knobs({"config": config}) for config in configs])


def test_each_run_has_its_values_of_the_knobs_that_differ() -> None:
    runs = [
        stored(learner__batch_size=128),
        stored(learner__batch_size=256, algo__hidden=(32,)),
        stored(learner__batch_size=128),
    ]
    usual = runs[0]["hyper"]["hidden"]
    assert differing_knobs(runs) == [
        {"learner.batch_size": 128, "algo.hidden": usual},
        {"learner.batch_size": 256, "algo.hidden": [32]},
        {"learner.batch_size": 128, "algo.hidden": usual},
    ]
    assert differing_knobs(runs[:1]) == [{}]
    assert differing_knobs([]) == []


def test_seeds_limits_and_what_is_shown_or_kept_are_no_differences() -> None:
    other = {
        "seed": 3,
        "name": "again",
        "time": "5m",
        "target": -200.0,
        "dashboard": False,
        "visualizer__video_s": 3.0,
        "checkpoint__keep": 9,
        "limits__env_errors": 7,
    }
    assert differing_knobs([stored(), stored(**other)]) == [{}, {}]


def test_knobs_of_another_algorithm_are_not_compared() -> None:
    one, other = differing_knobs([stored("sac"), stored("dqn")])
    assert (one["algo"], other["algo"]) == ("sac", "dqn")
    assert one.keys() == other.keys()


def test_arguments_are_compared_by_value_and_callbacks_by_name() -> None:
    first = stored(
        env__kwargs='{"g": 5, "render": "no"}',
        callback=("a/x.py:Anneal",),
        evaluator__kwargs=("{}",),
    )
    again = stored(
        env__kwargs='{"render":"no","g":5.0}',
        callback=("/b/y.py:Anneal",),
        evaluator__kwargs=("{ }",),
    )
    assert differing_knobs([first, again]) == [{}, {}]
    other = stored(env__kwargs='{"g": 6}', callback=("a/x.py:Stop",), evaluator__kwargs=("{}",))
    assert [sorted(knobs) for knobs in differing_knobs([first, other])] == [
        ["callback", "env.kwargs"]
    ] * 2
    assert differing_knobs([stored(env__kwargs="{}"), stored()]) == [{}, {}]


def test_callbacks_from_python_count_and_the_device_is_the_one_that_was_used() -> None:
    asked, used = stored(), stored(device="cpu")
    plain = identity({"config": used, "asked": asked})
    assert plain == identity({"config": used, "asked": used})
    with_one = identity({"config": used, "asked": asked, "callbacks": ["Anneal"]})
    assert [with_one["callback"], plain["callback"]] == [["Anneal"], []]
    on_gpu = identity({"config": stored(device="cuda"), "asked": asked})
    assert differing([plain, on_gpu]) == [{"device": "cpu"}, {"device": "cuda"}]


def test_knobs_have_the_names_of_the_command_line() -> None:
    assert {name: SECTIONS[name] for name in PREFIXES} == PREFIXES
    assert all(name == prefix for name, prefix in SECTIONS.items() if name not in PREFIXES)
    assert "env.max_episode_steps" in compared_knobs(stored())
