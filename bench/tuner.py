"""Is the tuner right? A grid of fixed settings against its own choice.

    python bench/tuner.py ENV TARGET [--time 60s] [--repeat 1] [--device auto]
        [--processes 1,2] [--envs 8,32] [--batches 128,256,512]
        [--only-batches 128,...,65536] [--only-samplers 1,2,...] [--finalists 3] [--final-seeds 3]

Every cell is a real run of the command with `--tuner.off` and its update compiled beforehand. Cells and
tuned runs take turns. The fastest of many short runs was also lucky, so the fastest cells meet the
tuner again with new seeds, and only those runs decide which is faster. `--only-...` varies one
setting and leaves the rest as the tuner chose it. Writes bench/results/tuner-<env>-<machine>.json
after every run, draws docs/tuner-<env>-<machine>.svg and prints the verdict.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import product
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from spreeze.bench.result import machine_facts, machine_label
from spreeze.cli.commands.tune import compile_plan
from spreeze.machine.facts import detect_machine
from spreeze.run.plan import Plan, describe_env, make_plan
from spreeze.run.processes.pool import Processes
from spreeze.settings.config import resolved
from spreeze.settings.defaults import config_with, default_config
from spreeze.settings.speed import learning_speed
from spreeze.store.metrics import finite

ROOT = Path(__file__).parent.parent
FLAGS = {
    "processes": "sampler.processes",
    "envs": "sampler.envs_per_process",
    "batch": "learner.batch_size",
}
FIRST_FINAL_SEED = 100
Cell = dict[str, int]


def main() -> None:
    """Run all cells and the tuner's choice in turns; compare, save and draw the results."""
    args = arguments()
    began = time.monotonic()
    tuned = plan_of(args, {}, probe=True)
    chosen = {name: int(resolved(knob_of(tuned, name))) for name in FLAGS}
    asked = {"processes": args.processes, "envs": args.envs, "batch": args.batches}
    sides = [values or [chosen[name]] for name, values in asked.items()]
    grid = [dict(zip(FLAGS, cell, strict=True)) for cell in product(*sides)]
    grid = grid if any(asked.values()) else []
    ablations = {
        "batch": [chosen | {"batch": size} for size in args.only_batches],
        "processes": [chosen | {"processes": num} for num in args.only_samplers],
    }
    cells = []
    for asked_for in [*grid, *ablations["batch"], *ablations["processes"]]:
        cells += [] if asked_for in cells else [asked_for]
    for batch in sorted({chosen["batch"], *(cell["batch"] for cell in cells)}):
        compile_plan(plan_of(args, chosen | {"batch": batch}, probe=True))
    facts = {
        "command": ["python", "bench/tuner.py", *sys.argv[1:]],
        "machine": machine_facts(),
        "env": args.env,
        "target": args.target,
        "chosen": chosen,
    }
    where = machine_label(facts["machine"])
    path = ROOT / "bench" / "results" / f"tuner-{args.env}-{where}.json"
    rows: list[dict[str, Any]] = []

    def keep() -> dict[str, Any]:
        """Write all runs so far to the result file."""
        seconds = round(time.monotonic() - began, 1)
        kept = {**facts, "seconds": seconds, "runs": rows, "verdict": verdict(rows, grid, chosen)}
        path.write_text(json.dumps(kept, indent=2) + "\n")
        return kept

    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.repeat):
            for cell in [None, *cells]:
                rows.append(run(args, cell, folder, turn))
                keep()
        fastest = sorted(grid, key=lambda cell: typical(rows_of(rows, cell), "time_to_target_s"))
        for turn in range(FIRST_FINAL_SEED, FIRST_FINAL_SEED + args.final_seeds):
            for cell in [None, *fastest[: args.finalists]]:
                rows.append(run(args, cell, folder, turn))
                keep()
    result = keep()
    draw(result, ROOT / "docs" / f"tuner-{args.env}-{where}.svg")
    print(json.dumps(result["verdict"], indent=2))
    print(f"Written to {path}")


def arguments() -> argparse.Namespace:
    """Parse the command line."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("env")
    parser.add_argument("target", type=float)
    parser.add_argument("--time", default="60s")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--finalists", type=int, default=3)
    parser.add_argument("--final-seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    for name in ("processes", "envs", "batches", "only-batches", "only-samplers"):
        parser.add_argument(f"--{name}", type=numbers, default=[])
    return parser.parse_args()


def knob_of(plan: Plan, name: str) -> Any:
    """The value that a plan has for one of the grid's settings."""
    section, knob = FLAGS[name].split(".")
    return getattr(getattr(plan.config, section), knob)


def plan_of(args: argparse.Namespace, cell: Cell, probe: bool = False) -> Plan:
    """The plan of a run with these settings."""
    knobs = {FLAGS[name]: value for name, value in cell.items()}
    config = default_config(env=args.env, device=args.device)
    config = config_with(config, {"device": args.device, **knobs})
    processes = Processes()
    try:
        spec = describe_env(args.env, config, processes, [])
        return make_plan(config, spec, detect_machine(), processes if probe else None)
    finally:
        processes.close()


def run(args: argparse.Namespace, cell: Cell | None, folder: str, turn: int) -> dict[str, Any]:
    """Run the command once; without a cell the tuner chooses."""
    name = "tuned" if cell is None else "-".join(f"{k}{v}" for k, v in cell.items())
    command = ["train", args.env, "--target", str(args.target), "--time", args.time]
    command += ["--runs", folder, "--name", f"{turn}-{name}", "--seed", str(turn)]
    command += ["--device", args.device]
    for key, value in (cell or {}).items():
        command += [f"--{FLAGS[key].replace('_', '-')}", str(value)]
    command += [] if cell is None else ["--tuner.off"]
    subprocess.run([sys.executable, "-m", "spreeze", *command], check=True, capture_output=True)
    summary = json.loads(Path(folder, f"{turn}-{name}", "summary.json").read_text())
    row = {
        key: summary[key]
        for key in ("sample_hz", "update_hz", "update_frame_hz", "best_return", "time_to_target_s")
    }
    row["learning_speed"] = learning_speed(
        summary["update_hz"], summary["batch_size"], summary["sample_hz"]
    )
    print(f"{name:32} " + "  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    return {"name": name, "cell": cell, "seed": turn, **row}


def rows_of(rows: list[dict[str, Any]], cell: Cell | None) -> list[dict[str, Any]]:
    """The runs of one cell."""
    return [row for row in rows if row["cell"] == cell]


def typical(rows: list[dict[str, Any]], key: str) -> float:
    """The median. A missing value counts as infinite: the target was not reached."""
    return median(inf if row[key] is None else row[key] for row in rows) if rows else inf


def verdict(rows: list[dict[str, Any]], grid: list[Cell], chosen: Cell) -> dict[str, Any]:
    """The tuner against the cells: its rates at its own batch size, and its time to the target."""
    measured = [group for cell in grid if (group := rows_of(rows, cell))]
    rivals = [group for group in measured if group[0]["cell"]["batch"] == chosen["batch"]]
    ours = rows_of(rows, None)
    if not rivals:
        return {}
    best = max(rivals, key=lambda group: typical(group, "learning_speed"))
    shares = {
        key: round(typical(ours, key) / max(typical(best, key), 1e-9), 3)
        for key in ("sample_hz", "update_frame_hz", "learning_speed")
    }
    finals = [row for row in rows if row["seed"] >= FIRST_FINAL_SEED]
    times = {
        row["name"]: finite(typical(rows_of(finals, row["cell"]), "time_to_target_s"))
        for row in finals
    }
    return {"best_cell_of_its_batch": best[0]["name"], "share": shares, "final_time_s": times}


def curve(
    result: dict[str, Any], key: str, values: list[int], metric: str
) -> list[tuple[int, float]]:
    """A metric over one setting; the others are as close to the tuner's choice as cells allow."""
    cells = [row["cell"] for row in result["runs"] if row["cell"]]
    chosen = {
        name: min((cell[name] for cell in cells), key=lambda ran: abs(ran - value))
        for name, value in result["chosen"].items()
    }
    at = []
    for value in values:
        middle = typical(rows_of(result["runs"], chosen | {key: value}), metric)
        at += [(value, middle)] if middle < inf else []
    return at


def short(number: int) -> str:
    """A label for an axis: 4096 as 4k."""
    return f"{number // 1024}k" if number >= 1024 else str(number)


def draw(result: dict[str, Any], file: Path) -> None:
    """Draw a row of panels for each setting that was varied."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    varied = {
        key: sorted({row["cell"][key] for row in result["runs"] if row["cell"]}) for key in FLAGS
    }
    varied = {key: values for key, values in varied.items() if len(values) > 1}
    if not varied:
        return
    panels = [
        ("sample_hz", "env steps/s"),
        ("update_frame_hz", "frames/s"),
        ("time_to_target_s", f"seconds to {result['target']:g}"),
    ]
    plt.rcParams.update({"svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(
        len(varied), 3, figsize=(10, 2.9 * len(varied)), squeeze=False, layout="constrained"
    )
    for line, (key, values) in zip(axes, varied.items(), strict=True):
        for axis, (metric, label) in zip(line, panels, strict=True):
            at = curve(result, key, values, metric)
            if at:
                axis.plot(*zip(*at, strict=True), "o-", color="#1f6feb")
            ours = typical(rows_of(result["runs"], None), metric)
            if ours < inf:
                axis.plot([result["chosen"][key]], [ours], "*", ms=13, color="#d1632e")
            axis.set(
                xscale="log",
                xlabel={"batch": "batch size", "envs": "environments per process"}.get(
                    key, "sampler processes"
                ),
                ylabel=label,
            )
            axis.set_xticks(values, [short(value) for value in values])
            axis.set_ylim(0, 1.1 * axis.get_ylim()[1])
            axis.minorticks_off()
            axis.grid(alpha=0.2)
    facts = result["machine"]
    machine = " and ".join([f"{facts['cores']} cores of {facts['cpu']}", *facts["gpu"]])
    figure.suptitle(f"{result['env']}, {machine}; the star is the tuner's choice", fontsize=10)
    figure.savefig(file)


if __name__ == "__main__":
    main()
