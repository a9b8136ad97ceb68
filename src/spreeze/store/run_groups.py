"""Which runs are seeds of one setting: grouped by all that defines them but the seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spreeze.store.curves import Group, Numbers, read_curve
from spreeze.store.differences import Knobs, differing, identity
from spreeze.store.metrics import is_number
from spreeze.store.rundir import RunDir, run_facts
from spreeze.text import plain, plural

MOST_NAMED = 3


class Grouped(NamedTuple):
    """Runs as groups, and those that are in none."""

    groups: list[Group]
    without: list[RunDir]
    """The runs without an evaluation."""


@dataclass(frozen=True)
class _Member:
    """A run with its evaluations; those of the run that it continues are before its own."""

    run: RunDir
    config: Mapping[str, Any]
    knobs: Knobs
    curve: Numbers
    earlier_s: float = 0.0
    """How long the runs that it continues had trained."""

    def continued(self, origin: _Member) -> _Member:
        """With the evaluations that `origin` had made when this run went on from it."""
        kept = origin.curve[origin.curve[:, 2] < self.curve[0, 2]]
        earlier_s = float(kept[-1, 0]) if len(kept) else 0.0
        own = self.curve + np.array([earlier_s, 0.0, 0.0, 0.0])
        joined = np.concatenate([kept, own])
        return _Member(self.run, self.config, self.knobs, joined, earlier_s)


def group_runs(runs: Sequence[RunDir]) -> Grouped:
    """Group runs by all that defines them but the seed: task, algorithm and settings.

    A run given twice is one, and so are a run and the one that continues it.
    """
    unique = {run.path.resolve(): run for run in runs}
    without: list[RunDir] = []
    kinds: dict[tuple[str, str], list[_Member]] = {}
    for run in unique.values():
        curve = read_curve(run)
        if not len(curve):
            without.append(run)
            continue
        stored = run.read("config")
        config, knobs = _mapping(stored.get("config")), identity(stored)
        kind = plain(str(knobs.pop("env", "?"))[:200]), plain(str(knobs.pop("algo", "?"))[:200])
        kinds.setdefault(kind, []).append(_Member(run, config, knobs, curve))
    groups: list[Group] = []
    for (task, algo), found in kinds.items():
        labelled: dict[str, list[_Member]] = {}
        for member, own in zip(found, differing([x.knobs for x in found]), strict=True):
            parts = [algo, *(f"{name} {plain(_value(own[name]))}" for name in sorted(own))]
            labelled.setdefault(", ".join(parts), []).append(member)
        groups += [_as_group(task, label, _joined(x)) for label, x in labelled.items()]
    return Grouped(groups, without)


def describe_without(runs: Sequence[RunDir]) -> str:
    """What to say of runs without an evaluation, in one line."""
    names = [plain(run.path.name) for run in runs[:MOST_NAMED]]
    more = ", ..." if len(runs) > MOST_NAMED else ""
    have = "has no evaluation" if len(runs) == 1 else "have no evaluation"
    return f"{plural(len(runs), 'run')} {have}: {', '.join(names)}{more}"


def _joined(members: Sequence[_Member]) -> list[_Member]:
    """Runs of one setting, each with what it continues; a run that is continued is no run of its own."""
    by_path = {member.run.path.resolve(): member for member in members}
    origins = {path: _origin(member, by_path) for path, member in by_path.items()}
    continued = {origin for origin in origins.values() if origin is not None}

    def whole(path: Path, seen: frozenset[Path]) -> _Member:
        member, origin = by_path[path], origins[path]
        if origin is None or origin in seen:
            return member
        return member.continued(whole(origin, seen | {origin}))

    return [whole(path, frozenset({path})) for path in by_path if path not in continued]


def _origin(member: _Member, known: Mapping[Path, _Member]) -> Path | None:
    """The run that this one continues, if it is among those known; both may have moved together."""
    resumed = member.config.get("resume")
    if not isinstance(resumed, str):
        return None
    beside = member.run.path.resolve().parent / Path(resumed).name
    found = next((path for path in (Path(resumed), beside) if path in known), None)
    return None if found == member.run.path.resolve() else found


def _as_group(task: str, label: str, members: Sequence[_Member]) -> Group:
    facts = [run_facts(member.run) for member in members]
    group = Group(task, label, [member.curve for member in members])
    group.seeds = [fact["seed"] for fact in facts]
    group.states = [str(fact["state"]) for fact in facts]
    _read_times(group, members)
    return group


def _read_times(group: Group, members: Sequence[_Member]) -> None:
    """When each run reached its target, if all that have ended had the same one."""
    target, *others = (member.config.get("target") for member in members)
    summaries = [member.run.read("summary") for member in members]
    if not is_number(target) or any(x != target for x in others) or not all(summaries):
        return
    group.target = float(target)  # type: ignore[arg-type]
    for member, summary in zip(members, summaries, strict=True):
        seconds = summary.get("time_to_target_s")
        group.seconds.append(float(seconds) + member.earlier_s if is_number(seconds) else None)  # type: ignore[arg-type]


def _value(value: Any) -> str:
    """A setting in a few words."""
    parts = value if isinstance(value, list) else [value]
    return " ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in parts)[:60]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
