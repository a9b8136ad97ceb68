"""Writes the figures in README.md and docs/ from bench/results: tables, pictures, and the README's sentence.

    python bench/tables.py            write what is not current
    python bench/tables.py --check    change nothing; exit 1 if something is not current

A table stands between `<!-- table: NAME -->` and `<!-- end -->` in any of these documents, a sentence between
`<!-- sentence: NAME -->` and `<!-- end -->`. NAME is one of TABLES or SENTENCES below. Medians, intervals and ratios are
computed here; nothing is estimated.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import claims
import curves
import headline
import numpy as np
from contest import peer_table, rate_table
from scores import (
    MISSING,
    Results,
    Rows,
    Task,
    machine,
    middle,
    millions,
    number,
    percent,
    seconds,
    start_up,
    steady,
    time_to_score,
)

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- (?:table|sentence): ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
OPENING = re.compile(r"<!-- (?:table|sentence):")
NUMBER = re.compile(r"(not in )?-?[\d.,]+( M| %| s)?|\N{EN DASH}")
"""A cell that is aligned to the right."""
SAMPLED = ("Pendulum-v1", "HalfCheetah-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5")
TUNED = {
    "2cores": (("tuner-Pendulum-v1-128-2cores",), ("tuner-HalfCheetah-v5-128-2cores",)),
    "h200": (
        ("tuner-HalfCheetah-v5-h200",),
        ("tuner-Humanoid-v5-h200", "tuner-Humanoid-v5-finals-h200"),
    ),
}
FITTED = ((("tuner-Pendulum-v1-2cores",), 1.5),
          (("tuner-HalfCheetah-v5-2cores", "tuner-HalfCheetah-v5-64-2cores"), 3.0))  # fmt: skip
"""The grids behind the exponents of learning_speed, and the seconds that a start takes there."""
LOG = ("rare-rewards", "flat-noise", "small-failing", "lasting-noise", "fused-cpu", "fused-h200", "first-runs-h200", "ppo-settings", "ant-changes", "statistics-memory", "policy-average", "frame-rate",
       "small-tasks", "bfloat16")  # fmt: skip
"""Tables of docs/experiments.md, by their id in recorded-experiments.json."""


def learner(results: Results) -> Rows:
    """Updates per second against plain PyTorch."""
    rows = [["machine", "batch", "updates/s", "transitions/s", "plain PyTorch, updates/s", "ratio"]]
    for name in ("learner-2cores", "learner-h200"):
        facts = results.read(name)
        for row in sorted(facts["results"], key=lambda row: row["batch_size"]):
            rates = (row["update_hz"], row["eager_update_hz"], row["ratio"])
            update_hz, eager_hz, ratio = (number(rate) for rate in rates)
            frames = millions(row["update_frame_hz"])
            rows.append(
                [machine(facts), f"{row['batch_size']:,}", update_hz, frames, eager_hz, ratio]
            )
    return rows


def sampling(results: Results) -> Rows:
    """Samplers against the bare simulator."""
    rows = [["task", "machine", "samplers", "environments each", "env steps/s",
             "bare simulator, steps/s", "share"]]  # fmt: skip
    for where in ("2cores", "h200"):
        for env in SAMPLED:
            facts = results.read(f"sampling-{env}-{where}")
            rows.append(
                [
                    env,
                    machine(facts),
                    number(facts["processes"]),
                    number(facts["envs_per_process"]),
                    number(facts["sample_hz"]),
                    number(facts["raw_hz"]),
                    percent(facts["ratio"]),
                ]
            )
    return rows


def sampler_step(results: Results) -> Rows:
    """Where the time of an env step goes on two cores."""
    parts = ("simulate", "act", "write", "rest")
    rows = [["task", *(f"{part}, us" for part in parts)]]
    for env in SAMPLED:
        spent = results.read(f"sampling-{env}-2cores")["us_per_step"]
        rows.append([env, *(number(spent[part]) for part in parts)])
    return rows


def pipeline(results: Results) -> Rows:
    """Both sides of a run together and alone."""
    facts = results.read("pipeline-HalfCheetah-v5-h200")
    rows = [["rate", "together", "alone", "share"]]
    for label, name in (("env steps/s", "sample"), ("updates/s", "update")):
        together, alone = facts[f"{name}_hz"], facts[f"{name}_alone_hz"]
        rows.append([label, number(together), number(alone), percent(facts[f"{name}_ratio"])])
    return rows


def tuner(results: Results, where: str) -> Rows:
    """The tuner's choice against fixed settings."""
    table = [["task", "settings", "samplers", "environments each", "batch", "runs", "env steps/s",
              "updates/s", "frames/s", "seconds"]]  # fmt: skip
    for names in TUNED[where]:
        files = [results.read(name) for name in names]
        runs = [run for facts in files for run in facts["runs"]]
        for setting in dict.fromkeys(run["name"] for run in runs):
            mine = [run for run in runs if run["name"] == setting]
            cell = mine[0]["cell"] or files[0]["chosen"]
            rates = [median(run[key] for run in mine) for key in ("sample_hz", "update_hz")]
            table.append(
                [
                    str(Task(files[0]["env"], round(files[0]["target"]))),
                    "fixed" if mine[0]["cell"] else "**tuned**",
                    *(number(cell[knob]) for knob in ("processes", "envs", "batch")),
                    str(len(mine)),
                    *(number(rate) for rate in rates),
                    millions(median(run["update_frame_hz"] for run in mine)),
                    seconds(middle([run["time_to_target_s"] for run in mine])),
                ]
            )
    return table


def exponents(results: Results) -> Rows:
    """Least squares: 1 / seconds = updates/s x batch^a x (env steps/s)^b, up to a factor."""
    rows = [
        ["task", "runs", "batch", "env steps/s", "left unexplained", "batch, env steps at 0.25"]
    ]
    for names, start_s in FITTED:
        files = [results.read(name) for name in names]
        runs = [run for facts in files for run in facts["runs"] if run["time_to_target_s"]]
        update_hz, frame_hz, sample_hz, reached_s = np.array(
            [[r["update_hz"], r["update_frame_hz"], r["sample_hz"], r["time_to_target_s"]]
             for r in runs]).T  # fmt: skip
        batch, steps = np.log(frame_hz / update_hz), np.log(sample_hz)
        speed = -np.log(reached_s - start_s) - np.log(update_hz)
        ones = np.ones_like(batch)
        both, rest = fit(speed, batch, steps, ones)
        alone, _ = fit(speed - 0.25 * steps, batch, ones)
        fitted = [f"{value:.2f}" for value in both[:2]]
        rows.append([files[0]["env"], str(len(runs)), *fitted, percent(rest), f"{alone[0]:.2f}"])
    return rows


def fit(values: np.ndarray, *columns: np.ndarray) -> tuple[np.ndarray, float]:
    """Factors of the columns, and the standard deviation of what they leave."""
    matrix = np.stack(columns, axis=1)
    factors = np.linalg.lstsq(matrix, values, rcond=None)[0]
    return factors, float(np.std(values - matrix @ factors))


def recorded(results: Results, table_id: str) -> Rows:
    """A table of docs/experiments.md: figures as they were written down, with their units."""
    kept = results.read("recorded-experiments")["tables"]
    facts = next(table for table in kept if table["id"] == table_id)
    cells = [zip(row, facts["units"], strict=True) for row in facts["rows"]]
    return [facts["header"], *([as_recorded(*cell) for cell in row] for row in cells)]


def as_recorded(value: float | str | None, unit: str | None) -> str:
    """A recorded value with all its digits; text as it is."""
    if value is None:
        return MISSING
    if isinstance(value, str):
        return value
    return f"{value:,} {unit}" if unit else f"{value:,}"


TABLES: dict[str, Callable[[Results], Rows]] = {
    "time-to-score": time_to_score,
    "start-up": start_up,
    "steady": steady,
    "peers": peer_table,
    "rates": rate_table,
    "claims": claims.claims,
    "ablation-batch": claims.batch_sizes,
    "ablation-samplers": claims.samplers,
    "ablation-transport": claims.transports,
    "ablation-devices": claims.devices,
    "learner": learner,
    "sampling": sampling,
    "sampler-step": sampler_step,
    "pipeline": pipeline,
    "tuner-2cores": lambda results: tuner(results, "2cores"),
    "tuner-h200": lambda results: tuner(results, "h200"),
    "exponents": exponents,
    **{f"log-{table_id}": partial(recorded, table_id=table_id) for table_id in LOG},
}
SENTENCES: dict[str, Callable[[Results], str]] = {"headline": headline.sentence}
PICTURES: dict[str, Callable[[Results], str]] = {
    "docs/headline.svg": headline.draw,
    "docs/curves.svg": curves.draw,
}


def markdown(rows: Rows) -> str:
    """A table; columns that hold numbers are aligned to the right."""
    header, *body = rows
    numeric = [all(NUMBER.fullmatch(cell) for cell in column) for column in zip(*body, strict=True)]
    rule = ["---:" if right else "---" for right in numeric]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, rule, *body))


def documents(root: Path) -> Iterable[Path]:
    """Where tables and sentences may stand."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def rewrite(text: str, results: Results) -> str:
    """A document as the results say."""
    if len(BLOCK.findall(text)) != len(OPENING.findall(text)):
        sys.exit("A table has no name or no end: write <!-- table: NAME --> and <!-- end -->.")

    def block(match: re.Match[str]) -> str:
        opening, name, end = match.groups()
        if name in SENTENCES:
            return f"{opening}{SENTENCES[name](results)}\n{end}"
        if name in TABLES:
            return f"{opening}{markdown(TABLES[name](results))}{end}"
        sys.exit(f"There is no table {name!r}. There are: {', '.join([*TABLES, *SENTENCES])}.")

    return BLOCK.sub(block, text)


def stale(root: Path) -> dict[Path, str]:
    """The documents and pictures that are not current, and what they should say."""
    results = Results(root / "bench" / "results")
    wanted = {path: rewrite(path.read_text(), results) for path in documents(root)}
    wanted |= {root / name: draw(results) for name, draw in PICTURES.items()}
    return {
        path: new for path, new in wanted.items() if not path.exists() or path.read_text() != new
    }


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> None:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="only say what is not current")
    check = parser.parse_args(arguments).check
    outdated = stale(root)
    for path, text in outdated.items():
        print(f"{path.relative_to(root)}: {'not current' if check else 'written'}")
        if not check:
            path.write_text(text)
    if check and outdated:
        sys.exit("Run: python bench/tables.py")


if __name__ == "__main__":
    main()
