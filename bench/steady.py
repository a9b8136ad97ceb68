"""How soon is a task learned, and does it stay learned?

    python bench/steady.py ENV TARGET [--seeds 1,2,3] [--after 60] [--time 180] [--runs FOLDER]
        [--out FILE] [FLAGS OF spreeze train]

Every seed is one run of the command with nothing but the seed and FLAGS. The update of a run without
FLAGS is compiled beforehand. A run is stopped `--after` seconds past its first evaluation at TARGET,
or after `--time` seconds. "Steady" is the lowest evaluation from then on, as a share of the best one
before it. Prints a line per run and writes all runs with their evaluations to FILE, by default
bench/results/steady-<env>-<machine>.json.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tuner import plan_of

from spreeze.bench.result import machine_facts, machine_label
from spreeze.cli.commands.tune import compile_plan
from spreeze.store.curves import read_curve
from spreeze.store.rundir import RunDir

ROOT = Path(__file__).parent.parent
TIME, RETURN = 0, 3
"""Columns of a curve."""


def main() -> None:
    """Run all seeds, print and save the results."""
    args, flags = arguments()
    compile_plan(plan_of(args, {}, probe=True))
    machine = machine_facts()
    usual = ROOT / "bench" / "results" / f"steady-{args.env}-{machine_label(machine)}.json"
    path = Path(args.out or usual)
    kept: dict[str, Any] = {
        "machine": machine,
        "env": args.env,
        "target": args.target,
        "runs": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            curve, summary = run(args, flags, seed, Path(args.runs or folder))
            row = {"seed": seed, **judge(curve, args.target), **summary}
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
            command = ["python", "bench/steady.py", *sys.argv[1:]]
            kept["runs"].append({**row, "curve": curve.round(1).tolist(), "command": command})
            path.write_text(json.dumps(kept) + "\n")
    print(f"Written to {path}")


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """The arguments of this script, and the flags for `spreeze train`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("env")
    parser.add_argument("target", type=float)
    parser.add_argument("--seeds", type=lambda text: text.split(","), default=["1", "2", "3"])
    parser.add_argument("--after", type=float, default=60.0)
    parser.add_argument("--time", type=float, default=180.0)
    parser.add_argument("--runs", help="keep the runs in this folder")
    parser.add_argument("--out", help="write the result to this file")
    parser.set_defaults(device="auto")
    return parser.parse_known_args()


def run(
    args: argparse.Namespace, flags: list[str], seed: str, folder: Path
) -> tuple[np.ndarray, dict[str, Any]]:
    """Run the command once; returns its evaluations and its speed."""
    path = folder / f"{args.env}-{seed}"
    command = ["train", args.env, "--seed", seed, "--time", f"{args.time}s", "--runs", str(folder)]
    command += ["--name", path.name, *flags]
    folder.mkdir(parents=True, exist_ok=True)
    log = path.with_suffix(".log")
    with (
        log.open("w") as said,
        subprocess.Popen(
            [sys.executable, "-m", "spreeze", *command], stdout=said, stderr=said
        ) as process,
    ):
        while process.poll() is None:
            time.sleep(0.5)
            if learned_for(read_curve(RunDir(path)), args.target) > args.after:
                process.send_signal(signal.SIGINT)
                process.wait()
    if process.returncode not in (0, 130):
        sys.exit(log.read_text())
    summary = RunDir(path).read("summary")
    speed = {key: round(summary[key]) for key in ("sample_hz", "update_hz")}
    lines = (RunDir(path).metrics / "evaluator-0.jsonl").read_text().splitlines()
    evaluation_s = middle([json.loads(line)["eval/seconds"] for line in lines])
    facts = {"batch_size": summary["batch_size"], "evaluation_s": evaluation_s}
    return read_curve(RunDir(path)), speed | facts


def middle(seconds: Sequence[float]) -> float | None:
    """The median, None without values."""
    return round(median(seconds), 2) if seconds else None


def learned_for(curve: np.ndarray, target: float) -> float:
    """Seconds from the first evaluation at the target to the last one."""
    since = curve[first_at(curve, target) :, TIME]
    return float(np.ptp(since)) if len(since) else 0.0


def first_at(curve: np.ndarray, target: float) -> int:
    """Index of the first evaluation at the target; the length of the curve if there is none."""
    reached = curve[:, RETURN] >= target
    return int(reached.argmax()) if reached.any() else len(curve)


def judge(curve: np.ndarray, target: float) -> dict[str, Any]:
    """When the target was reached, the best evaluation, and the deepest fall after the target."""
    first, returns = first_at(curve, target), curve[:, RETURN]
    best = np.maximum.accumulate(returns)
    share = 1 - (best - returns) / np.abs(best)
    reached = first < len(curve)
    return {
        "seconds": float(curve[first, TIME].round(1)) if reached else None,
        "best": float(returns.max().round(1)) if len(curve) else None,
        "steady": float(share[first:].min().round(3)) if reached else None,
        "for_s": round(learned_for(curve, target), 1),
        "evaluation_every_s": middle(np.diff(curve[:, TIME]).tolist()),
    }


if __name__ == "__main__":
    main()
