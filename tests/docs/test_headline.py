"""The headline: what it takes from results with other frameworks, and how it shows what was not reached."""

from __future__ import annotations

import importlib
import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PENDULUM = "time-to-score-Pendulum-v1-2cores"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The results, to be changed; Pendulum-v1 with known times and without other frameworks."""
    folder = Path(shutil.copytree(ROOT / "bench" / "results", tmp_path / "results"))
    path = folder / f"{PENDULUM}.json"
    facts = json.loads(path.read_text())
    facts["wall_s"] = {"spreeze": [3.21] * 5, "spreeze prepared": [2.7] * 5}
    facts["curves"] = {name: facts["curves"][name] for name in facts["wall_s"]}
    path.write_text(json.dumps(facts | {"trials": {}}))
    return folder


def trial(reached_s: float) -> dict[str, Any]:
    """A run with 100 env steps and 50 updates of 8 transitions in each second."""
    curve = [[second, 100 * second, 50 * second, -1000.0] for second in (1, 2, 3)]
    curve.append([4, 300, 150, -1000.0])  # judged again, with nothing new
    return {"curve": curve, "learned_rows": 800, "own_cores": 1.5, "gpu_percent": 40.0}


def add_peers(folder: Path, seconds: dict[str, list[float | None]]) -> None:
    """Other frameworks in the result of Pendulum-v1, as `spreeze bench time-to-score` writes them."""
    path = folder / f"{PENDULUM}.json"
    facts = json.loads(path.read_text())
    facts |= {"limit_s": 90.0, "versions": {"sb3": {"stable_baselines3": "2.9.2"}}}
    facts["trials"] = {name: [trial(9.0) for _ in times] for name, times in seconds.items()}
    for name, times in seconds.items():
        facts["wall_s"][name] = times
        facts["curves"][name] = [one["curve"] for one in facts["trials"][name]]
    path.write_text(json.dumps(facts))


def words_of(picture: str) -> list[str]:
    """All that is written in a picture."""
    return [element.text or "" for element in ET.fromstring(picture).iter() if element.text]


def test_measured_frameworks_replace_those_written_down_by_hand(
    bench: Callable[[str], ModuleType], folder: Path
) -> None:
    contest, scores = bench("contest"), bench("scores")
    pendulum, cart_pole, *_ = contest.HEADLINE
    recorded = {entry.name for entry in contest.peers(scores.Results(folder), pendulum)}
    assert {"Tianshou", "SBX", "RLlib"} <= recorded
    fast, slow = [10.0, 12.0, 11.0], [40.0, 30.0, 50.0]
    add_peers(folder, {"sb3": slow, "sb3, 4 environments": fast, "sbx, Spreeze's recipe": [5.0]})
    results = scores.Results(folder)
    entries = contest.peers(results, pendulum)
    assert [entry.name for entry in entries] == ["SBX", "Stable-Baselines3", "Stable-Baselines3"]
    assert entries[1].version == "2.9.2"
    (best,) = contest.fastest_of_each(entries)
    assert (best.name, best.settings, best.middle) == ("Stable-Baselines3", "4 environments", 11.0)
    assert contest.best_peer(results, pendulum) == 11.0
    assert len(contest.peers(results, cart_pole)) > 1, "others keep what was written down"


def test_seeds_in_several_results_count_together(
    bench: Callable[[str], ModuleType], folder: Path
) -> None:
    contest, scores = bench("contest"), bench("scores")
    ant = next(task for task in contest.HEADLINE if task.env == "Ant-v5")
    for name, seconds in zip(ant.first, ([50.0], [None]), strict=True):
        path = folder / f"{name}.json"
        facts = json.loads(path.read_text())
        facts["wall_s"]["skrl"] = seconds
        path.write_text(json.dumps(facts))
    (entry,) = contest.peers(scores.Results(folder), ant)
    assert (entry.name, list(entry.seconds)) == ("skrl", [50.0, None])
    assert len(contest.spreeze(scores.Results(folder), ant)[0].curves) == 2


def test_rates_are_those_between_the_first_policy_and_the_last(
    bench: Callable[[str], ModuleType], folder: Path
) -> None:
    add_peers(folder, {"sb3": [10.0, 12.0]})
    contest, scores = bench("contest"), bench("scores")
    (entry,) = contest.peers(scores.Results(folder), contest.HEADLINE[0])
    assert entry.rates == (100.0, 50.0, 400.0, 1.5, 40.0)
    assert contest.rates_of({"curve": [[1, 2, 3, 4.0]]}) == (None,) * 5


def test_the_median_and_its_interval_count_runs_that_missed_the_target(
    bench: Callable[[str], ModuleType],
) -> None:
    interval = bench("contest").interval
    assert interval([1.0, 2.0]) is None
    assert interval([3.0, 3.0, 3.0]) == (3.0, 3.0)
    low, high = interval([2.0, 1.0, 5.0, 4.0, 3.0])
    assert 1.0 <= low < 3.0 < high <= 5.0
    assert interval([1.0, None, None])[1] == inf


def test_every_framework_is_in_the_picture_and_what_it_missed_too(
    bench: Callable[[str], ModuleType], folder: Path
) -> None:
    add_peers(folder, {"sb3": [20.0, 30.0, 40.0], "torchrl": [None, 80.0, None]})
    results = bench("scores").Results(folder)
    words = words_of(bench("headline").draw(results))
    assert {"Spreeze, first run", "Spreeze, prepared", "Stable-Baselines3", "TorchRL"} <= set(words)
    assert words[words.index("TorchRL") + 1] == "not in 90 s"
    assert words[words.index("Stable-Baselines3") + 1] == "30.0"
    assert {"2 cores", "16 cores, H200", "Pendulum-v1 to -200"} <= set(words)
    drawn = words_of(bench("curves").draw(results))
    assert {"Spreeze, first run", "Stable-Baselines3", "TorchRL"} <= set(drawn)


@pytest.mark.parametrize(
    ("theirs", "words"), [(320.0, "4.9 to 99 times"), (1.6, "0.4 to 12 times")]
)
def test_the_sentence_rounds_no_ratio_up(
    bench: Callable[[str], ModuleType], folder: Path, theirs: float, words: str
) -> None:
    add_peers(folder, {"sb3": [theirs]})
    headline = bench("headline")
    sentence = headline.sentence(bench("scores").Results(folder))
    assert f"{words} as fast as the fastest of" in sentence
