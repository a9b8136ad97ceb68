"""Fake run directories, for the tools that read them."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from spreeze.settings.defaults import config_with, default_config

PIXEL = bytes.fromhex(
    "ffd8ffe000104a46494600010100000100010000ffdb004300" + "01" * 64 + "ffc0000b080001000101011100"
    "ffc40014000100000000000000000000000000000009ffc40014100100000000000000000000000000000000"
    "ffda0008010100003f0054ffd9"
)
"""A tiny JPEG."""


def make_run(
    folder: Path,
    name: str,
    *,
    env: str = "Pendulum-v1",
    seed: int = 0,
    state: str = "finished",
    num: int = 20,
    extra: dict[str, Any] | None = None,
    talks: bool = False,
) -> Path:
    """Make a run of `num` seconds with an evaluation each. `extra` goes into each learner record.

    An environment that `talks` has numbers in its `info`.
    """
    path = folder / name
    (path / "metrics").mkdir(parents=True)
    config = config_with(default_config("sac", env), {"seed": seed, "replay.capacity": 1_000_000})
    reasons = {"replay.capacity": "40 bytes each"}
    write(path / "config.json", {"config": config.to_json(), "reasons": reasons})
    write(path / "system.json", {"cores": 2})
    progress = {"time_s": num, "env_steps": 1000 * num, "updates": 100 * num, "best_return": -100.0}
    bottleneck = "learner (the samplers wait 42 % of their time)"
    status = {"state": state, "pids": {"supervisor": os.getpid()}, "warnings": []}
    limit = {"bottleneck": bottleneck, "bottleneck_kind": "learner", "waiting_percent": 42.0}
    write(path / "status.json", status | {"progress": progress | limit})
    if state != "running":
        summary = {"state": state, "reason": "time", "wall_s": float(num), "best_return": -100.0}
        write(path / "summary.json", summary | {"env_steps": 1000 * num, "sample_hz": 1000.0})
    for i in range(num):
        axes = {"time_s": i + 1.0, "env_steps": 1000 * (i + 1), "updates": 100 * (i + 1)}
        mean = -1500 + 1400 * (1 - math.exp(-i / 5)) + seed
        evaluation = {"eval/mean_reward": mean, "eval/min_reward": mean - 90}
        said = {"eval/info/x_position": float(i), "eval/success_rate": i % 2} if talks else {}
        append(path, "evaluator-0", axes | evaluation | {"eval/max_reward": mean + 60} | said)
        learning = {"train/critic_loss": 9 / (i + 1), "async/policy_lag": 1.5, "replay/rows": 900}
        append(path, "learner-0", axes | learning | (extra or {}))
        rates = {"perf/sample_hz": 1000.0, "perf/update_hz": 100.0, "perf/update_frame_hz": 25600.0}
        use = {"perf/cpu_percent": 130.0, "perf/cpu_percent_others": 40.0, "replay/age_s": i / 2}
        use["perf/cpu_percent/learner"] = 98.0
        stalls = {"async/stall_percent/samplers": 42.0, "async/stall_percent/learner": 0.0}
        said = {"rollout/info/x_position": float(i)} if talks else {}
        append(path, "supervisor-0", axes | rates | use | stalls | said)
    return path


def append(run: Path, role: str, record: dict[str, Any]) -> None:
    """Append a line to the metrics of a role."""
    with (run / "metrics" / f"{role}.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


def write(path: Path, value: Any) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value))
