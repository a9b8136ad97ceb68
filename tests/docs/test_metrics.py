"""docs/metrics.md lists the metrics that the code records: all of them, and no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import torch

import cases
import fakes
import spreeze

ROOT = Path(__file__).parents[2]
AXES = {"time_s", "env_steps", "updates"}
GROUPS = "rollout|eval|train|perf|async|replay|tuner|cluster"
LITERAL = re.compile(rf'"((?:{GROUPS})/[\w/{{}}]+)"')
"""A metric's name in the source; an f-string has its variable in braces."""


def documented() -> dict[str, set[str]]:
    """The names in the tables, by the section of the role that writes them."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {
        section.split("\n", 1)[0].lower(): set(re.findall(r"^\| `([^`]+)` \|", section, re.M))
        for section in sections
    }


def in_source() -> Iterator[str]:
    """The names that the code records, except those that each algorithm chooses for `train/`."""
    for path in (ROOT / "src" / "spreeze").rglob("*.py"):
        for name in LITERAL.findall(path.read_text()):
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


def test_the_tables_list_the_metrics_of_the_code_and_no_others() -> None:
    assert set().union(*documented().values()) == {*in_source(), *of_algorithms()}


def test_every_record_of_a_run_has_the_axes_and_metrics_of_its_role(runs: str) -> None:
    run = spreeze.train(fakes.ReachEnv, runs=runs, steps="2k", serial=True)
    tables, seen = documented(), set()
    for path in (run.path / "metrics").glob("*.jsonl"):
        role = path.stem.split("-")[0]
        for line in path.read_text().splitlines():
            record = json.loads(line)
            assert record.keys() >= AXES
            names = {name for name in record if "/" in name}
            general = {re.sub(r"(_percent)/\w+", r"\1/<role>", name) for name in names}
            assert general <= tables[role], path.name
            seen.add(role)
    assert seen == {"sampler", "learner", "evaluator", "supervisor"}
