"""The paper's claims beside today's figures, and what each part of Spreeze brings: rows of tables from bench/results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from contest import best_peer, fastest_of_each, peers, rates_of_spreeze, spreeze
from headline import by_machine
from scores import MISSING, Facts, Results, Rows, Task, machine, millions, number, percent

from spreeze.bench.commands.ablations import TRANSPORTS

PAPER = json.loads((Path(__file__).parent / "paper.json").read_text())["figures"]
ABLATED = "HalfCheetah-v5"
"""The task by which the parts are compared. Of other tasks there is only the run."""


def claims(results: Results) -> Rows:
    """Each claim of the paper's abstract beside the same figure on each machine."""
    columns = by_machine(results)
    rows = [["figure", "the paper", *columns]]
    for name, words, figure, shown in CLAIMS:
        values = [figure(results, tasks) for tasks in columns.values()]
        cells = [MISSING if value is None else shown(value) for value in values]
        rows.append([words, shown(PAPER[name]["value"]), *cells])
    return rows


def _highest(results: Results, tasks: list[Task], column: str) -> float | None:
    """Of Spreeze's runs."""
    return max(_known(getattr(rates_of_spreeze(results, task), column) for task in tasks), default=None)  # fmt: skip


def _over_others(results: Results, tasks: list[Task]) -> float | None:
    """The lowest ratio of env steps/s to those of another framework with the most."""
    ratios = []
    for task in tasks:
        others = _known(one.rates.sample_hz for one in fastest_of_each(peers(results, task)))
        own = rates_of_spreeze(results, task).sample_hz
        if others and own:
            ratios.append(own / max(others))
    return min(ratios, default=None)


def _time_saved(results: Results, tasks: list[Task]) -> float | None:
    """The lowest share by which a first run is shorter than the fastest other framework."""
    best = {task: best_peer(results, task) for task in tasks}
    shares = [1 - spreeze(results, task)[0].middle / other for task, other in best.items() if other]
    return min(shares, default=None)


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


Figure = Callable[[Results, list[Task]], float | None]
CLAIMS: tuple[tuple[str, str, Figure, Callable[[float], str]], ...] = (
    ("sample_hz", "env steps/s of a run, the highest of all tasks",
     lambda results, tasks: _highest(results, tasks, "sample_hz"), number),
    ("update_frame_hz", "transitions/s through its updates, the highest of all tasks",
     lambda results, tasks: _highest(results, tasks, "frame_hz"), millions),
    ("over_others", "env steps/s over the other framework with the most, the lowest of all tasks",
     _over_others, number),
    ("time_saved", "training time saved against the fastest other framework, the lowest of all tasks",
     _time_saved, percent),
)  # fmt: skip
"""By its name in paper.json: what it is, how it is found, how it is shown."""


def ablated(results: Results) -> list[Facts]:
    """The results with all parts."""
    return results.matching(f"ablations-{ABLATED}-*")


def batch_sizes(results: Results) -> Rows:
    """The learner alone."""
    rows = [["machine", "batch", "updates/s", "transitions/s", "plain PyTorch, updates/s"]]
    for facts in ablated(results):
        for row in facts["batch_size"]["results"]:
            rates = (number(row["update_hz"]), millions(row["update_frame_hz"]))
            batch = number(row["batch_size"])
            rows.append([machine(facts), batch, *rates, number(row["eager_update_hz"])])
    return rows


def samplers(results: Results) -> Rows:
    """Samplers alone."""
    rows = [["machine", "samplers", "env steps/s", "bare simulator, steps/s", "share"]]
    for facts in ablated(results):
        for row in facts["samplers"]:
            rates = (number(row["sample_hz"]), number(row["raw_hz"]), percent(row["ratio"]))
            rows.append([machine(facts), number(row["processes"]), *rates])
    return rows


def transports(results: Results) -> Rows:
    """A process that sends and one that reads."""
    rows = [["machine", "transport", "rows/s", "age of weights when read, us"]]
    for facts in ablated(results):
        for words, name in TRANSPORTS.items():
            rate, age = (facts["transport"][f"{name}{it}"] for it in ("rows_hz", "latency_us"))
            rows.append([machine(facts), words, millions(rate), number(age)])
    return rows


def devices(results: Results) -> Rows:
    """The critic on the first device and the actor on the second."""
    rows = [["machine", "devices", "batch", "one device, updates/s", "two, updates/s", "ratio"]]
    pairs = [(facts, facts["devices"]) for facts in ablated(results) if facts["devices"]]
    earlier = results.read("pair-h200")
    for facts, pair in [*pairs, (earlier, earlier)]:
        for row in pair["results"]:
            rates = (row["one_device"]["update_hz"], row["two_devices"]["update_hz"])
            names = " and ".join(pair["devices"])
            cells = (number(rate) for rate in (*rates, row["speedup"]))
            rows.append([machine(facts), names, number(row["batch_size"]), *cells])
    return rows
