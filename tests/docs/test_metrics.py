"""The list of metrics, and so docs/metrics.md, has what the code records: all of it, and nothing else."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import cases
import fakes
import spreeze
from spreeze.store.metric_names import METRICS

ROOT = Path(__file__).parents[2]
GROUPS = "rollout|eval|train|perf|async|replay|tuner|cluster"
LITERAL = re.compile(rf'"((?:{GROUPS})/[\w/{{}}]+)"')
"""A metric's name in the source; an f-string has its variable in braces."""


def listed(*roles: str) -> set[str]:
    """The names in the list, of these roles."""
    return {metric.name for role in roles for metric in METRICS[role]}


def in_source() -> Iterator[str]:
    """The names that the code records, except those that each algorithm chooses for `train/`."""
    for path in (ROOT / "src" / "spreeze").rglob("*.py"):
        for name in LITERAL.findall(path.read_text()) if path.name != "metric_names.py" else ():
            if name != "train/{name}":
                yield re.sub(r"\{(\w+)\}", r"<\1>", name)


def of_algorithms() -> Iterator[str]:
    for case in cases.CASES:
        algorithm = cases.built(*case)
        actor, critic = algorithm.init(torch.Generator())
        batch = cases.random_batch(algorithm, 4)
        noise = torch.zeros(4, algorithm.spec.action_size)
        policy = critic if algorithm.actor_loss is None else actor
        _, metrics = algorithm.critic_loss(critic, critic, policy, batch, noise)
        if algorithm.actor_loss is not None:
            metrics |= algorithm.actor_loss(actor, critic, batch, noise)[1]
        yield from (f"train/{name}" for name in metrics)


def test_the_list_has_the_metrics_of_the_code_and_no_others() -> None:
    roles = METRICS.keys() - {"axes"}
    assert listed(*roles) == {*in_source(), *of_algorithms()}
    assert sum(len(METRICS[role]) for role in roles) == len(listed(*roles)), (
        "each is explained once"
    )


def test_the_page_is_current_and_has_every_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    page = importlib.import_module("metrics")
    assert list(page.stale(ROOT)) == [], "run: python docs/metrics.py"
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert re.findall(r"<!-- metrics: (\w+) -->", text) == list(METRICS)
    changed = text.replace("| `time_s` | s |", "| `time_s` | ms |")
    assert page.rewrite(changed) == text != changed


def test_every_record_of_a_run_has_the_axes_and_metrics_of_its_role(runs: str) -> None:
    run = spreeze.train(fakes.ReachEnv, runs=runs, steps="2k", serial=True)
    seen = set()
    for path in (run.path / "metrics").glob("*.jsonl"):
        role = path.stem.split("-")[0]
        for line in path.read_text().splitlines():
            record = json.loads(line)
            assert record.keys() >= listed("axes")
            names = {name for name in record if "/" in name}
            general = {re.sub(r"(_percent)/\w+", r"\1/<role>", name) for name in names}
            assert general <= listed(role), path.name
            seen.add(role)
    assert seen == {"sampler", "learner", "evaluator", "supervisor"}
