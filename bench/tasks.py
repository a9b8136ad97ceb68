"""How many tasks are learned with no flags, and how soon?

    python bench/tasks.py [--only PATTERN,...] [--seeds 1,2] [--time 120] [--at-once N] [--out FILE]
        [FLAGS OF spreeze train]

Each task of published.json is one run per seed with nothing but FLAGS (`--preset none`, for instance),
until an evaluation reaches 90 % of the published score, or `--time` seconds. With `--at-once N`, N runs
share the machine, each with its share of the cores. Runs that FILE already holds are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from spreeze.bench.result import machine_facts, machine_label
from spreeze.store.curves import read_curve
from spreeze.store.rundir import RunDir

HERE = Path(__file__).parent
SHARE = 0.1
"""How much of the size of the published score may be missing."""


def main() -> None:
    """Run what is missing, and add it to the file."""
    args, flags = arguments()
    machine = machine_facts()
    path = Path(args.out or HERE / "results" / f"tasks-{machine_label(machine)}.json")
    empty: dict[str, Any] = {"machine": machine, "runs": []}
    kept = json.loads(path.read_text()) if path.exists() else empty
    known = {(run["env"], run["seed"], *run["flags"]) for run in kept["runs"]}
    todo = [
        (env, published, seed)
        for seed in args.seeds
        for env, published, _ in json.loads((HERE / "published.json").read_text())
        if any(fnmatch(env, pattern) for pattern in args.only) and (env, seed, *flags) not in known
    ]
    slots: SimpleQueue[set[int]] = SimpleQueue()
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // args.at_once
    for i in range(args.at_once):
        slots.put(set(cores[i * each : (i + 1) * each]))

    def measure(task: tuple[str, float, int]) -> dict[str, Any]:
        mine = slots.get()
        try:
            return run(*task, args.time, flags, mine)
        finally:
            slots.put(mine)

    with ThreadPoolExecutor(args.at_once) as pool:
        for row in pool.map(measure, todo):
            print("  ".join(f"{key} {row[key]}" for key in SHOWN), flush=True)
            kept["runs"].append(row)
            path.write_text(json.dumps(kept) + "\n")


SHOWN = ("env", "seed", "target", "seconds", "best", "algo", "updates", "env_steps", "error")


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """The arguments of this script, and the flags for `spreeze train`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", type=lambda text: text.split(","), default=["*"])
    parser.add_argument(
        "--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1]
    )
    parser.add_argument("--time", type=float, default=120.0)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--out", help="write the result to this file")
    return parser.parse_known_args()


def run(
    env: str, published: float, seed: int, time_s: float, flags: list[str], cores: set[int]
) -> dict[str, Any]:
    """Run the command once on these cores."""
    target = published - SHARE * abs(published)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "spreeze", "train", env, "--seed", str(seed)]
        command += ["--target", f"{target:g}", "--time", f"{time_s}s", "--runs", folder]
        command += ["--name", "r", "--no-dashboard", *flags]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            env=os.environ | {"SPREEZE_BACKGROUND": "0"},
        )
        row: dict[str, Any] = dict.fromkeys(SHOWN)
        row |= {"env": env, "seed": seed, "flags": flags, "published": published}
        row |= {"target": round(target, 1), "time_s": time_s, "cores": len(cores)}
        if done.returncode:
            return row | {"error": done.stderr.strip().splitlines()[-1][-200:]}
        summary = RunDir(Path(folder) / "r").read("summary")
        curve = read_curve(RunDir(Path(folder) / "r"))
        return row | {
            "seconds": summary["time_to_target_s"],
            "best": summary["best_return"],
            "curve": curve.round(1).tolist(),
            **{key: summary[key] for key in ("algo", "updates", "env_steps")},
        }


if __name__ == "__main__":
    main()
